"""Messages that their output topic can never take, given up by a machine.

The machine knows two ways in which a message ends without an ack. A term is one of them, but under `ack_policy: all` it would
settle every message before it, and it takes a delivery to be termed. So the other one is taken: the message leaves, as one does
that the log has lost. What is told of it is what a term tells, with a reason of its own, whether it was delivered before (when
the topic took more than now) or never was; then it takes no consumer sequence.
"""

from __future__ import annotations

from overlay.arrays import Ints
from overlay.consumer.effects import Advise, Advisory, DeadLetter, Effect
from overlay.consumer.events import Removed
from overlay.consumer.machine import Machine

from .dead_letters import UNDELIVERABLE, give_up


def refuse(machine: Machine, sequences: Ints, now: int) -> list[Effect]:
    """Have a machine give up these messages, rising; what is to be done: an advisory and a dead letter for each, and whatever
    else follows. `now`: ns."""
    pending = machine.window.pending
    rows = pending.find(sequences)
    names = ("sequence", "consumer_seq", "deliveries", "first", "last")
    delivered = zip(*(pending.view(name)[rows].tolist() for name in names), strict=True)
    letters = {sequence: (0, give_up(sequence)) for sequence in sequences.tolist()}
    for sequence, consumer_seq, *history in delivered:
        letters[sequence] = consumer_seq, DeadLetter(sequence, UNDELIVERABLE, *history)
    effects = [effect for effect in machine.handle(Removed(sequences=sequences), now, 0) if not _is_loss(effect)]
    for sequence, (consumer_seq, letter) in letters.items():
        effects.append(Advise(Advisory.TERMINATED, sequence, consumer_seq, letter.deliveries, UNDELIVERABLE))
        effects.append(letter)
    return effects


def _is_loss(effect: Effect) -> bool:
    """Whether it tells of a message that the log has lost, which these are not."""
    return isinstance(effect, Advise) and effect.kind is Advisory.TERMINATED
