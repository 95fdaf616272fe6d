"""Which acks count.

An ack of a delivery that was never made is refused. So is an ack that names another incarnation
than the one that gave out the consumer sequence (lineage.py). The sender of a refused ack gets an
answer only if the message is settled already, as for any late ack. Under an ack policy without acks
by token no ack settles anything, and no sender gets an answer.

A known incarnation may have ended with deliveries that it did not commit. An ack of one of these
still says something about committed deliveries:

- With `all` it stands for the last committed delivery that it covers. Its sender is answered only
  if the message that it names is settled already.
- With `explicit` and `delivery: at_least_once` an ack or a term counts by its stream sequence, if
  that was delivered since: the application has had this very message. Not so with `exactly_once`:
  there the transaction of the delivery was aborted, and the sequence may have gone to another
  message since.

The name of an incarnation of an earlier version is no secret, so any client can write such an ack.
It counts only for a message that this incarnation delivered under the very consumer sequence, and
that is not settled. It settles nothing by deliveries that were never committed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overlay.arrays import Flags, Ints
from overlay.config.consumer import AckPolicy, Delivery

from .acks import Verb
from .pending import Row
from .state import MachineState
from .window import Window

_FINAL = (Verb.ACK, Verb.TERM)


class Meant(NamedTuple):
    """The deliveries that acks by token stand for, as columns with an item per ack: stream sequence
    and consumer sequence.

    `counts`: whether the ack is accepted; if False, it has to be refused.
    """

    sequences: Ints
    consumer_seqs: Ints
    counts: Flags


def find_meant(state: MachineState, verb: Verb, incarnation: str, sequences: Ints, consumer_seqs: Ints) -> Meant:
    """Return which deliveries some tokens stand for, all with this verb and incarnation, and
    whether their acks are accepted. Changes nothing.

    A token counts as it is if its incarnation has made the delivery (`find_own`). An ACK of a
    delivery that its incarnation never committed may count all the same, unless any client can make
    up the incarnation's name. With `ack_policy: all` it stands for the last message at or below its
    stream sequence that the incarnation or an earlier one committed (`Pending.find_covered`: stream
    sequence 0 if none is known). With `explicit` and `delivery: at_least_once` it counts as it is,
    and so does a TERM. Under a policy without acks by token all are accepted as they are.

    `sequences`, `consumer_seqs`: of the tokens. The caller has to check whether the stream
    sequences have been delivered at all.
    """
    policy, lineage = state.config.ack_policy, state.lineage
    if not policy.takes_acks:
        every = np.ones(sequences.size, np.bool_)  # no ack counts under this policy, and none is refused
        return Meant(sequences, consumer_seqs, every)
    given = find_own(state, incarnation, sequences, consumer_seqs)
    if lineage.is_guessable(incarnation):
        return Meant(sequences, consumer_seqs, given)
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


def find_own(state: MachineState, incarnation: str, sequences: Ints, consumer_seqs: Ints) -> Flags:
    """Return for each token whether this incarnation of the consumer has given out its consumer
    sequence; if it is an earlier incarnation, also committed it. All tokens name this incarnation.

    Stream sequences matter only if any client can make up the incarnation's name. Then the token's
    message must also be known still (not GONE), and delivered under this consumer sequence.
    """
    given = state.lineage.find_given(incarnation, consumer_seqs, state.window.delivered.consumer)
    if state.lineage.is_guessable(incarnation) and given.any():
        given &= _find_deliveries(state.window, sequences, consumer_seqs)
    return given


def _find_deliveries(window: Window, sequences: Ints, consumer_seqs: Ints) -> Flags:
    """Return for each stream sequence whether its message has a row that is not GONE, and was
    delivered, for the first time or again, under the consumer sequence at the same index.
    """
    own = window.pending.view("sequence")
    if not own.size:
        return np.zeros(sequences.size, np.bool_)
    rows = np.minimum(own.searchsorted(sequences), own.size - 1)
    found: Flags = window.pending.view("consumer_seq")[rows] == consumer_seqs
    numbers, named = window.again
    if numbers.size:
        at = np.minimum(numbers.searchsorted(consumer_seqs), numbers.size - 1)
        found |= (numbers[at] == consumer_seqs) & (named[at] == sequences)
    is_known: Flags = (own[rows] == sequences) & (window.pending.view("state")[rows] != Row.GONE)
    return found & is_known
