"""Which acks count.

An ack of a delivery that was never made is refused. So is an ack that names another incarnation
than the one that gave out the consumer sequence (lineage.py). The sender of a refused ack gets an
answer only if the message is settled already, as for any late ack. An ack policy without acks by
token ignores them all and sends no answers.

A known incarnation may have ended with deliveries that it did not commit. An ack of one of these
still says something about committed deliveries:

- With `all` it stands for the last delivery that the incarnation committed, which it covers. Its sender is answered only if
  the message that it names is settled already.
- With `explicit` and `delivery: at_least_once` an ack or a term counts by its stream sequence, if that was delivered since: the
  application has had this very message. Not so with `exactly_once`: there the transaction of the delivery was aborted, and the
  sequence may have gone to another message since.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlay.arrays import Ints
from overlay.config.consumer import AckPolicy, Delivery

from .acks import Verb
from .state import MachineState

_FINAL = (Verb.ACK, Verb.TERM)


class Meant(NamedTuple):
    """The deliveries that acks by token stand for, as columns with an item per ack: stream sequence
    and consumer sequence.

    `counts`: whether the ack is accepted; if False, it has to be refused.
    """

    sequences: Ints
    consumer_seqs: Ints
    counts: npt.NDArray[np.bool_]


def find_meant(state: MachineState, verb: Verb, incarnation: str, sequences: Ints, consumer_seqs: Ints) -> Meant:
    """Return which deliveries some tokens stand for, all with this verb and incarnation, and
    whether their acks are accepted. Changes nothing. An ack of a delivery that its incarnation
    never committed may stand for another delivery, as the module's docstring says.

    `sequences`, `consumer_seqs`: of the tokens. The caller has to check whether they have been
    delivered at all.
    """
    policy, lineage = state.config.ack_policy, state.lineage
    if not policy.takes_acks:
        every = np.ones(sequences.size, np.bool_)  # no ack counts under this policy, and none is refused
        return Meant(sequences, consumer_seqs, every)
    given = lineage.find_given(incarnation, consumer_seqs, state.window.delivered.consumer)
    end = lineage.find_end(incarnation)
    lost = ~given & (consumer_seqs > end)
    if not end or not lost.any():
        return Meant(sequences, consumer_seqs, given)
    if policy is AckPolicy.ALL and verb is Verb.ACK:
        found = state.window.pending.find_covered(end, sequences)
        sequences, consumer_seqs = (
            np.where(lost, *pair) for pair in zip(found, (sequences, consumer_seqs), strict=True)
        )
        return Meant(sequences, consumer_seqs, given | lost)
    is_same = policy is AckPolicy.EXPLICIT and state.config.delivery is Delivery.AT_LEAST_ONCE
    return Meant(sequences, consumer_seqs, given | lost if is_same and verb in _FINAL else given)
