"""What the service answers about a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlay.client.html import write_sheet
from overlay.config import ConsumerConfig
from overlay.control.records import read_config
from overlay.errors import OverlayError

_FILTERS = ("filter_subject", "filter_subjects", "filter")


class FiltersDiffer(OverlayError):
    """A consumer was created or updated, but has other filters than the request asked for. The application acts."""


@dataclass(frozen=True, slots=True)
class Position:
    """A consumer sequence (the number of a delivery) and the stream sequence of the same message."""

    consumer_seq: int = 0
    stream_seq: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer as the service reports it.

    `created`: RFC 3339. `state`: such as `running` or `stalled`, and `reason`: why; "" if the
    service does not say. `raw`: the whole answer, with JetStream's fields and the overlay's.
    """

    stream: str
    name: str
    config: ConsumerConfig
    created: str
    delivered: Position
    ack_floor: Position
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    num_pending: int | None
    """None where the service does not know, as while the consumer's shard starts."""
    push_bound: bool
    paused: bool
    state: str
    reason: str
    origin: str
    """`file` if a file of the workers defines it, `request` if it was made by request; "" if a service of an older
    version does not say."""
    raw: Mapping[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        """Return the consumer's state and settings as HTML, for notebooks."""
        from overlay.config.spelling import list_settings  # only notebooks need it

        pairs = [
            ("consumer", f"{self.stream}/{self.name}"),
            ("state", "paused" if self.paused else self.state),
            ("reason", self.reason),
            ("delivered", f"{self.delivered.consumer_seq:,}, up to stream sequence {self.delivered.stream_seq:,}"),
            ("ack floor", f"{self.ack_floor.consumer_seq:,}, stream sequence {self.ack_floor.stream_seq:,}"),
            ("waiting for acks", f"{self.num_ack_pending:,}"),
            ("redelivered messages", f"{self.num_redelivered:,} without an ack"),
            ("to come", "not known" if self.num_pending is None else f"{self.num_pending:,}"),
            ("made by", self.origin),
        ]
        return write_sheet([*pairs, *list_settings(self.config)])


def read_info(answer: Mapping[str, Any]) -> ConsumerInfo:
    """Return a ConsumerInfo from the JSON object that the service sends for a consumer. Raises KeyError if one of
    JetStream's fields is missing that every answer has, and ConfigError if the consumer's config cannot be read.
    """
    own = answer.get("overlay", {})
    return ConsumerInfo(
        stream=answer["stream_name"],
        name=answer["name"],
        config=read_config(answer["stream_name"], answer["config"]),
        created=answer["created"],
        delivered=_read_position(answer["delivered"]),
        ack_floor=_read_position(answer["ack_floor"]),
        num_ack_pending=answer["num_ack_pending"],
        num_redelivered=answer["num_redelivered"],
        num_waiting=answer["num_waiting"],
        num_pending=answer.get("num_pending"),
        push_bound=bool(answer.get("push_bound")),
        paused=bool(answer.get("paused")),
        state=own.get("state", ""),
        reason=own.get("reason", ""),
        origin=own.get("origin", ""),
        raw=answer,
    )


def check_filters(wanted: Mapping[str, Any], found: ConsumerConfig) -> None:
    """Raise FiltersDiffer if the consumer `found` has other filters than `wanted` asks for. `wanted`:
    fields of a consumer file; all but the filters are ignored.

    They may differ because an older service does not know all kinds of filters.
    """
    asked = read_config(found.stream, {key: wanted[key] for key in _FILTERS if key in wanted} | {"name": "x"})
    for what, mine, theirs in (
        ("filter subjects", asked.filters, found.filters),
        ("filter", asked.filter, found.filter),
    ):
        if mine != theirs:
            raise FiltersDiffer(
                f"{'/'.join(found.id)} came back with other {what} than asked for: {theirs} instead of {mine}. It delivers"
                " by those; delete it, or update it"
            )


def _read_position(pair: Mapping[str, Any]) -> Position:
    return Position(pair["consumer_seq"], pair["stream_seq"])
