"""What a new config changes in a running machine, apart from the numbers that the machine looks up
in its config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.config.consumer import ConsumerConfig

from .effects import Effect, Rewind
from .endings import Sampling

if TYPE_CHECKING:
    from .machine import Machine


def change(machine: Machine, new: ConsumerConfig) -> list[Effect]:
    """Switch a machine to the config `new` and return the effects.

    `new` has its defaults filled in and is an allowed update (overlay.config.update). If the filter
    has changed, offered messages are dropped and a Rewind asks for them again. If deliver_subject
    has changed, all pending messages go out again.
    """
    old, window = machine.config, machine.window
    machine.config = window.config = machine.waiting.config = new
    machine.sampling = Sampling(new.sample_freq, machine.sampling.rest)
    if (old.rate_limit_bps, old.flow_control) != (new.rate_limit_bps, new.flow_control):
        machine.pace = machine.pace.change(new, machine.burst, machine.lineage.incarnation)
    if old.deliver_subject != new.deliver_subject:
        # the old subject has no reader any more
        window.requeue_all()
    if (old.filters, old.filter) == (new.filters, new.filter):
        return []
    machine.up_to, machine.beyond = machine.position, 0
    machine.offers.clear()
    return [Rewind(machine.up_to)]
