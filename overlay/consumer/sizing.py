"""The size of a message's token, which max_bytes and the pace count as well, as nats-server does.

See docs/jetstream.md#pull and docs/jetstream.md#push.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.arrays import Ints

from .acks import write_head

if TYPE_CHECKING:
    from .machine import Machine

_TIME_DIGITS = 19


def measure_token(machine: Machine, again: Ints | None) -> int:
    """Return the length of the next message's token in bytes, 0 if nothing counts bytes.

    `again`: its row if it is a redelivery, None otherwise.
    """
    config, window = machine.config, machine.window
    if not config.max_bytes and machine.pace.is_even and config.is_push:
        return 0
    stream, consumer = config.id
    numbers = [window.delivered.consumer + 1, machine.num_pending - (again is None)]
    if again is None:
        numbers += [1, machine.offers.peek()[0]]
    else:
        pending = window.pending
        numbers += [int(pending.view("deliveries")[again[0]]) + 1, int(pending.view("sequence")[again[0]])]
    head = write_head(stream, consumer, machine.lineage.incarnation)
    return len(head) + 5 + sum(len(str(number)) for number in numbers) + _TIME_DIGITS
