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


def show_gate(gate: str) -> str:
    """Return why new messages are held back, in words, from the service's word for it, such as
    `paced`. "" if nothing does but the end of the stream; a word that is not known is returned as
    it is.
    """
    return _GATES.get(gate, gate)


def show_pending(found: ConsumerFacts) -> str:
    """Return how many matching messages the consumer has still to deliver, as `1,234 exact`, `1,234 estimate` or
    `1,234 at least`, without the word if the service has not said it; UNKNOWN if the number was not reported.
    """
    if found.num_pending is not None:
        return f"{show_count(found.num_pending)} {found.num_pending_is}".rstrip()
    return UNKNOWN


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
        ("redelivered", show_count(acks["num_redelivered"])),
        ("ack floor", f"consumer sequence {floor['consumer_seq']:,}, stream sequence {floor['stream_seq']:,}"),
        ("last", f"consumer sequence {last['consumer_seq']:,}, stream sequence {last['stream_seq']:,}"),
        ("pulls", show_count(acks["num_waiting"]) if acks["num_waiting"] else ""),
        ("held back", show_gate(acks["gate"])),
        ("paused", "yes" if acks["paused"] else ""),
    ]
