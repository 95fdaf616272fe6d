"""Records that answer requests: JSON, pulled messages, and the statuses that end a pull."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from confluent_kafka import Message

from overlay.errors import OverlayError
from overlay.kafka.header_names import CODE, DESCRIPTION, SUBJECT, TOKEN
from overlay.kafka.message_headers import read_headers

from .refusals import read_error

_NO_MORE = ("No Messages", "Request Timeout", "Requests Pending", "Batch Completed", "Message Size Exceeds MaxBytes")
"""Statuses by which a pull ends without an error."""


class PullRefused(OverlayError):
    """A consumer has refused a pull request, or ended it by an error. The text is JetStream's status:
    its code and description.

    The application acts.
    """


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pulled message. `token`: the ack token, which Control.ack, nak, term and in_progress take.
    `headers`: all headers of the record in order, also those that the overlay added.
    """

    subject: str
    token: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class PullFields(TypedDict, total=False):
    """Further fields of a pull request, with JetStream's names. Durations are ns."""

    no_wait: bool
    max_bytes: int
    idle_heartbeat: int
    group: str
    min_pending: int
    min_ack_pending: int
    id: str
    priority: int


def read_answer(record: Message) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises Refused, one for each of JetStream's errors, if it is an error."""
    answer: dict[str, Any] = json.loads(record.value())
    if "error" in answer:
        raise read_error(answer["error"])
    return answer


def read_message(record: Message) -> Pulled:
    """Return the message of a record that answers a pull."""
    headers = tuple(read_headers(record))
    subject, token = (dict(headers).get(name) or b"" for name in (SUBJECT, TOKEN))
    return Pulled(subject.decode(), token.decode(), record.key(), record.value(), headers)


def collect_pulled(answers: Iterable[Message], batch: int, take: Callable[[Message], object]) -> None:
    """Call `take` with the messages of a pull, until there are `batch` of them or a status says that no
    more come (_NO_MORE). `answers`: the records that answer the pull request. Heartbeats are passed
    over. Raises PullRefused for any other status, and Refused if the service answers the request with
    an error.
    """
    count = 0
    for record in answers:
        headers = dict(read_headers(record))
        if CODE in headers and _is_end(headers):
            return
        if TOKEN in headers:
            take(record)
            count += 1
        elif CODE not in headers:
            read_answer(record)
        if count == batch:
            return


def _is_end(headers: Mapping[str, bytes | None]) -> bool:
    """Return whether a status record ends a pull: False for a heartbeat, True for a status of _NO_MORE,
    by which a pull ends without an error. Raises PullRefused for any other status. `headers`: those of
    the record, with a code.
    """
    code, text = ((headers.get(name) or b"").decode() for name in (CODE, DESCRIPTION))
    if code == "100":
        return False
    if text in _NO_MORE:
        return True
    raise PullRefused(f"{code} {text}")
