"""Records for clients: answers to acks, statuses of pull requests, heartbeats and flow control requests.

A status is a record with neither key nor value: its headers say everything, as in a NATS message
without a body (docs/control.md#answers). On an output topic it goes to every partition, because
each may have a reader of its own. The first answer to a flow control request counts, and later ones
change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from overlay.consumer.effects import Answer, Effect, Status
from overlay.kafka.header_names import CODE, CONSUMER, CORRELATION, DESCRIPTION, PIN, REPLY_TO, STREAM
from overlay.output.entry import Entry
from overlay.output.record import Headers, Record

from .reply_address import parse_address


def encode_answers(effects: Iterable[Effect]) -> list[Entry]:
    """Return a record for each Answer among the effects: an empty value for its reply address, with
    the sender's correlation id as key and header. Other effects are left out.
    """
    return [answer(effect.reply, b"") for effect in effects if isinstance(effect, Answer)]


def answer(reply: str, value: bytes | None, headers: Headers = ()) -> Entry:
    """Return a record for the topic and partition that a reply address names, with its correlation
    id as key and as header. `headers`: further ones. Raises ValueError if `reply` is not an
    address.
    """
    address = parse_address(reply)
    record = Record(address.correlation, value, [(CORRELATION, address.correlation), *headers])
    return Entry(address.topic, record, address.partition or 0)


def describe_reply(reply: str, pin: str = "") -> list[tuple[str, bytes]]:
    """Return the headers by which a client finds the pull request of a delivery: the correlation id
    of its reply address, and `pin`, the id of the pinned client, if that is not empty. Raises
    ValueError if `reply` is not an address.
    """
    more = [(CORRELATION, parse_address(reply).correlation)]
    return [*more, (PIN, pin.encode())] if pin else more


def encode_statuses(
    effects: Iterable[Effect], stream: str, consumer: str, topic: str = "", partitions: int = 0
) -> list[Entry]:
    """Return records for each Status among the effects. Other effects are left out.

    A status that answers a pull request is one record for its reply address, without a key. Any
    other status is one record for each partition of the output topic: `topic` is its name,
    `partitions` their number, 0 to leave such statuses out. `stream`, `consumer`: the names for the
    headers.
    """
    found: list[Entry] = []
    for effect in effects:
        if not isinstance(effect, Status):
            continue
        headers = _describe(effect, stream, consumer)
        if effect.reply:
            entry = answer(effect.reply, None, headers)
            # with a key, the null value would be a tombstone in a compacted topic
            found.append(entry._replace(record=entry.record._replace(key=None)))
        else:
            found += [Entry(topic, Record(None, None, headers), partition) for partition in range(partitions)]
    return found


def _describe(status: Status, stream: str, consumer: str) -> Headers:
    text = status.text
    pairs = [(CODE, str(text.code)), (DESCRIPTION, text.description), (STREAM, stream), (CONSUMER, consumer)]
    pairs += text.headers
    pairs += [(REPLY_TO, status.answer_to)] if status.answer_to else []
    return [(name, value.encode()) for name, value in pairs]
