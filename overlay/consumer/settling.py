"""Handlers of what applications say of deliveries: acks, naks, progress, terms, and answers to flow
control.

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

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from overlay.arrays import Ints
from overlay.config.consumer import AckPolicy, Delivery

from . import events
from .acks import Flaw, Verb
from .effects import Advise, Advisory, Answer, Refuse
from .window import Settled

if TYPE_CHECKING:
    from .machine import Machine

_ByToken = events.Acked | events.Nakked | events.Progressed | events.Termed
_FINAL = (Verb.ACK, Verb.TERM)


def ack(machine: Machine, event: events.Acked, now: int) -> None:
    """Acks by token."""
    sequences, consumer_seq, reply = event.sequences, event.consumer_seq, event.reply
    if event.incarnation is not None:
        meant = find_meant(machine, Verb.ACK, event.incarnation, sequences, np.full(sequences.size, consumer_seq))
        sequences, consumer_seq = meant.sequences, int(meant.consumer_seqs[-1])
        if sequences[-1] != event.sequences[-1] and not _is_settled(machine, event.sequences):
            reply = ""  # it covers what lies below, and the message itself comes again
    if sequences.size and int(sequences.max()) > machine.window.delivered.stream:
        machine.effects.append(Refuse(Flaw.FUTURE))
    elif _is_given(machine, event, sequences, Verb.ACK) and _hears(machine, reply, now):
        _settle(machine, machine.window.ack(sequences, consumer_seq), now)


def ack_ranges(machine: Machine, event: events.RangeAcked, now: int) -> None:
    """Handle acks by consumer sequence.

    If a range reaches beyond the last delivery, or if another incarnation gave out a part of it,
    that part is refused and the rest counts.
    """
    newest = machine.window.delivered.consumer
    if any(last > newest for _, last in event.ranges):
        machine.effects.append(Refuse(Flaw.FUTURE))
    known = tuple((first, min(last, newest)) for first, last in event.ranges if first <= newest)
    if event.incarnation is not None and machine.config.ack_policy.takes_acks:
        own = machine.lineage.clip(event.incarnation, known)
        if _count(own) < _count(known):
            machine.effects.append(Refuse(Flaw.INCARNATION))
        known = own
    if known and _hears(machine, event.reply, now):
        _settle(machine, machine.window.ack_ranges(known), now)


def nak(machine: Machine, event: events.Nakked, now: int) -> None:
    """Handle a nak: queue the message for redelivery, or delay it."""
    if not _is_taken(machine, event, Verb.NAK, now):
        return
    if machine.window.nak(event.stream_seq, event.consumer_seq, event.delay, now):
        machine.effects.append(Advise(Advisory.NAK, event.stream_seq, event.consumer_seq, event.deliveries))


def progress(machine: Machine, event: events.Progressed, now: int) -> None:
    """Handle a progress report: restart the timers of its messages."""
    known = _is_known(machine, int(event.sequences.max()))
    if known and _is_given(machine, event, event.sequences, Verb.PROGRESS) and _hears(machine, event.reply, now):
        machine.window.progress(event.sequences, now)


def term(machine: Machine, event: events.Termed, now: int) -> None:
    """Handle a term: settle the message for good, with an advisory and a dead letter."""
    if not _is_taken(machine, event, Verb.TERM, now):
        return
    ended = machine.window.ack(np.array([event.stream_seq]), event.consumer_seq)
    machine.acked_at = now if len(ended) else machine.acked_at
    numbers = event.stream_seq, event.consumer_seq, event.deliveries
    machine.effects.append(Advise(Advisory.TERMINATED, *numbers, event.reason))
    machine.bury(ended.only(event.stream_seq), "term")


def answer_flow(machine: Machine, event: events.FlowAnswered, now: int) -> None:
    """Handle an answer to flow control.

    With `ack_policy: flow_control`, settle everything up to the message it names.
    """
    if event.up_to > machine.window.delivered.consumer:
        machine.effects.append(Refuse(Flaw.FUTURE))
    elif machine.pace.flow is not None and machine.pace.flow.answer(event.subject):
        machine.active_at = now
        if machine.pace.flow.acks and event.up_to:
            _settle(machine, machine.window.ack_ranges(((1, event.up_to),)), now)


class Meant(NamedTuple):
    """The deliveries that acks by token stand for, as columns.

    `counts`: one per ack, whether it is accepted (bool).
    """

    sequences: Ints
    consumer_seqs: Ints
    counts: npt.NDArray[np.bool_]


def find_meant(machine: Machine, verb: Verb, incarnation: str, sequences: Ints, consumer_seqs: Ints) -> Meant:
    """Return the deliveries that tokens with this incarnation and these sequences stand for.

    The caller has to check whether they have been delivered at all.
    """
    policy, lineage = machine.config.ack_policy, machine.lineage
    if not policy.takes_acks:
        every = np.ones(sequences.size, np.bool_)  # no ack counts under this policy, and none is refused
        return Meant(sequences, consumer_seqs, every)
    given = lineage.find_given(incarnation, consumer_seqs, machine.window.delivered.consumer)
    end = lineage.find_end(incarnation)
    lost = ~given & (consumer_seqs > end)
    if not end or not lost.any():
        return Meant(sequences, consumer_seqs, given)
    if policy is AckPolicy.ALL and verb is Verb.ACK:
        found = machine.window.pending.find_covered(end, sequences)
        sequences, consumer_seqs = (
            np.where(lost, *pair) for pair in zip(found, (sequences, consumer_seqs), strict=True)
        )
        return Meant(sequences, consumer_seqs, given | lost)
    is_same = policy is AckPolicy.EXPLICIT and machine.config.delivery is Delivery.AT_LEAST_ONCE
    return Meant(sequences, consumer_seqs, given | lost if is_same and verb in _FINAL else given)


def _is_settled(machine: Machine, sequences: Ints) -> bool:
    """Return whether these messages were delivered, and none of them is pending."""
    window = machine.window
    return int(sequences.max()) <= window.delivered.stream and not window.pending.find(sequences).size


def _is_known(machine: Machine, stream_seq: int) -> bool:
    """Return whether this stream sequence has been delivered; refuse the event if not."""
    if stream_seq > machine.window.delivered.stream:
        machine.effects.append(Refuse(Flaw.FUTURE))
        return False
    return True


def _is_taken(machine: Machine, event: events.Nakked | events.Termed, verb: Verb, now: int) -> bool:
    """Return whether a nak or a term counts; refuse or answer it as needed."""
    is_given = _is_known(machine, event.stream_seq) and _is_given(machine, event, np.array([event.stream_seq]), verb)
    return is_given and _hears(machine, event.reply, now)


def _is_given(machine: Machine, event: _ByToken, sequences: Ints, verb: Verb) -> bool:
    """Return whether an ack counts by the incarnation in its token; refuse it if not.

    The sender of a refused ack gets an answer if all its messages are settled already.
    """
    if event.incarnation is None:
        return True
    if find_meant(machine, verb, event.incarnation, sequences[-1:], np.array([event.consumer_seq])).counts[0]:
        return True
    machine.effects.append(Refuse(Flaw.INCARNATION))
    if event.reply and not machine.window.pending.find(sequences).size:
        machine.effects.append(Answer(event.reply))
    return False


def _count(ranges: tuple[tuple[int, int], ...]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _hears(machine: Machine, reply: events.Reply, now: int) -> bool:
    """Return whether the consumer's policy takes acks by token; if so, queue the answer to the sender."""
    if not machine.config.ack_policy.takes_acks:
        return False
    machine.active_at = now
    if reply:
        machine.effects.append(Answer(reply))
    return True


def _settle(machine: Machine, ended: Settled, now: int) -> None:
    """Note the time of an ack and report samples of what it settled."""
    if len(ended):
        machine.acked_at = now
    if machine.config.ack_policy is AckPolicy.EXPLICIT:
        machine.effects.extend(machine.sampling.pick(ended, now))
