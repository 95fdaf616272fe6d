"""A consumer's pending acks, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .figures import UNKNOWN, show_count

if TYPE_CHECKING:
    from .facts import ConsumerFacts

_GATES = {
    "open": "",
    "state": "no reader",
    "stalled": "flow control waits",
    "paced": "slowed down",
    "max_ack_pending": "max_ack_pending",
    "no_request": "no pull request",
    "drained": "",
}
"""The reasons why new messages are held back, in words.

"" if only the stream's end holds them back.
"""


def show_gate(gate: str, *, is_paused: bool = False) -> str:
    """Return why new messages are held back, in words, from the service's word for it, such as
    `paced`. "" if nothing does but the end of the stream; a word that is not known is returned as
    it is. `is_paused`: whether the consumer is paused. Its gate is `state` then, as without a reader.
    """
    return "paused" if is_paused and gate == "state" else _GATES.get(gate, gate)


def show_pending(found: ConsumerFacts) -> str:
    """Return how many matching messages the consumer has still to deliver, as `1,234 exact`, `1,234 estimate` or
    `1,234 at least`, without the word if the service has not said it; UNKNOWN if the number was not reported.
    """
    if found.num_pending is not None:
        return f"{show_count(found.num_pending)} {found.num_pending_is}".rstrip()
    return UNKNOWN


def show_dead_letters(found: ConsumerFacts) -> str:
    """Return how many dead letters the service has written since it started, and why, such as `3 since the service started:
    max_deliver 1, term 2`. "" if that is unknown, or if there are none and the consumer is not known to have a topic for them.
    """
    if found.dead_letters is None:
        return ""
    total = sum(found.dead_letters.values())
    has_topic = found.config is not None and found.config.dead_letter is not None
    if not total and not has_topic:
        return ""
    causes = ", ".join(f"{cause} {show_count(count)}" for cause, count in sorted(found.dead_letters.items()) if count)
    return f"{show_count(total)} since the service started" + (f": {causes}" if causes else "")


def list_ack_rows(acks: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return names and values about acks for `overlay consumer info`; "" is a value that is not to be shown. `acks`:
    as in ConsumerFacts.

    The list is empty if the consumer has no acks, or if nothing is known of them.
    """
    if not acks:
        return []
    floor, last = acks["ack_floor"], acks["delivered"]
    return [
        ("unacked", show_count(acks["num_ack_pending"])),
        ("delayed", show_count(acks["num_delayed"]) if acks["num_delayed"] else ""),
        (
            "redelivered messages",
            f"{show_count(acks['num_redelivered'])} without an ack" if acks["num_redelivered"] else "0",
        ),
        ("ack floor", f"consumer sequence {floor['consumer_seq']:,}, stream sequence {floor['stream_seq']:,}"),
        ("last", f"consumer sequence {last['consumer_seq']:,}, stream sequence {last['stream_seq']:,}"),
        ("pulls", show_count(acks["num_waiting"]) if acks["num_waiting"] else ""),
        ("held back", show_gate(acks["gate"], is_paused=acks["paused"])),
    ]
