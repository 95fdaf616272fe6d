"""Messages that their output topic can never take, given up by a machine.

A machine knows two ways in which a message ends without an ack. A term needs a delivery, and under
`ack_policy: all` it would settle every message before it. So the other way is used: the message is
removed, like one that the log has lost. The advisory is that of a term, with a reason of its own.
It is the same whether the message was delivered before (when the topic took more than now) or never
was. A message that was never delivered takes no consumer sequence.
"""

from __future__ import annotations

from overlay.arrays import Ints
from overlay.consumer.effects import Advise, Advisory, DeadLetter, Effect
from overlay.consumer.events import Removed
from overlay.consumer.machine import Machine

from .dead_letters import UNDELIVERABLE, give_up


def refuse(machine: Machine, sequences: Ints, now: int) -> list[Effect]:
    """Make a machine give up these messages (rising) and return the effects. `now`: ns since 1970.

    Each message gets an advisory and a dead letter; other effects of the removal are returned as
    well.
    """
    pending = machine.state.window.pending
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
    """Return whether the effect is the advisory of a message that the log has lost, which these
    messages are not.
    """
    return isinstance(effect, Advise) and effect.kind is Advisory.TERMINATED
