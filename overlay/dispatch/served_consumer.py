"""One consumer of the dispatcher: its machine, its topics, and the size of its stored state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from overlay.config.consumer import AckPolicy, ConsumerConfig, OnUndeliverable
from overlay.consumer.acks import Flaw, Verb
from overlay.consumer.effects import Refuse
from overlay.consumer.events import Acked, Event, Nakked, Progressed, Pulled, RangeAcked, Termed
from overlay.consumer.machine import Machine
from overlay.consumer.settling import find_meant
from overlay.consumer.snapshot import decode
from overlay.consumer.state import begin
from overlay.consumer.timer import find_blocked
from overlay.output.assemble import name_incarnation
from overlay.output.batch_builder import OutputTopic

from .ack_decoder import AckBatch


@dataclass(slots=True, eq=False)
class ConsumerSlot:
    """A consumer's machine and its topics.

    `output_topic`: None for a pull consumer, whose records go to the reply topics of pull requests.
    `dead_letter_topic`: None if the consumer has none.
    """

    machine: Machine
    output_topic: OutputTopic | None = None
    dead_letter_topic: OutputTopic | None = None
    base: int = 0
    """Bytes of the last checkpoint."""
    logged: int = 0
    """Bytes of the deltas since then."""

    @property
    def blocked_at(self) -> int:
        """The time (ns since 1970) of a redelivery that is due but waits for acks that were not
        read yet; NEVER if there is none.
        """
        return find_blocked(self.machine.state)

    @property
    def buries_refused(self) -> bool:
        """Whether messages that the output topic can never take become dead letters."""
        return (
            self.dead_letter_topic is not None
            and self.machine.state.config.on_undeliverable is OnUndeliverable.DEAD_LETTER
        )

    @property
    def names_itself(self) -> bool:
        """Whether the tokens of its deliveries contain an incarnation."""
        return bool(self.machine.state.lineage.incarnation)

    def take_output(self, output_topic: OutputTopic | None) -> None:
        """Deliver to this output from now on. Its envelope gets the incarnation if the tokens have one."""
        self.output_topic = _name_output(output_topic, self.machine.state.lineage.incarnation)

    def sift(self, said: AckBatch) -> tuple[AckBatch, list[Refuse]]:
        """Return the acks that count, and one refusal for each of the others.

        An ack counts if `find_meant` accepts it, and the stream sequence that it stands for is not
        above the last delivered one: usually if the incarnation that the token names made the
        delivery. The acks returned have the sequences of the deliveries that they stand for, which
        may differ from those in the token. `said` is not changed.
        """
        sequences, consumer_seqs = said.sequences.copy(), said.consumer_seqs.copy()
        given = np.zeros(sequences.size, np.bool_)
        for name, rows in said.split():
            meant = find_meant(self.machine.state, said.verb, name, sequences[rows], consumer_seqs[rows])
            sequences[rows], consumer_seqs[rows], given[rows] = meant
        said = replace(said, sequences=sequences, consumer_seqs=consumer_seqs)
        delivered = sequences <= self.machine.state.window.delivered.stream
        refused = [Refuse(Flaw.FUTURE)] * int((~delivered).sum())
        refused += [Refuse(Flaw.INCARNATION)] * int((delivered & ~given).sum())
        return (said.keep(np.flatnonzero(delivered & given)) if refused else said), refused

    def list_events(self, said: AckBatch) -> Iterable[Event]:
        """Return the events by which the machine learns of an ack batch: one for each nak or term,
        and as few as possible for other verbs. There are no events for an empty batch.
        """
        if not said.sequences.size:
            return ()
        if said.verb is Verb.PROGRESS:
            return (Progressed(said.sequences),)
        if said.verb is not Verb.ACK:
            return _one_by_one(said)
        if self.machine.state.config.ack_policy is AckPolicy.EXPLICIT:
            return (Acked(said.sequences, int(said.consumer_seqs[-1])),)
        return _top_down(said)

    def take_delta(self) -> bytes:
        """Return a state record of what changed since the last record, and count its bytes in `logged`."""
        record = self.machine.take_delta()
        self.logged += len(record)
        return record

    def take_checkpoint(self) -> bytes:
        """Return a state record of the whole machine. Sets `base` to its bytes and `logged` to 0."""
        record = self.machine.take_checkpoint()
        self.base, self.logged = len(record), 0
        return record


def count_unnamed(said: AckBatch | Event) -> Counter[str]:
    """Return how many acks name no incarnation, by kind: `token` or `range`. A range ack counts as
    one, and an ack that came with a pull request counts too. Events that are no acks count nothing.
    """
    count = Counter[str]()
    if isinstance(said, AckBatch):
        count["token"] = sum(rows.size for name, rows in said.split() if not name)
    elif isinstance(said, RangeAcked):
        count["range"] = int(not said.incarnation)
    elif isinstance(said, Pulled) and said.ack is not None:
        return count_unnamed(said.ack)
    elif isinstance(said, Acked | Nakked | Progressed | Termed):
        count["token"] = int(said.incarnation == "")
    return count


def _top_down(said: AckBatch) -> Iterable[Event]:
    """Yield Acked events for the acks of a batch with ack_policy all, as few as needed, from the
    highest stream sequence down.

    The ack of the highest stream sequence settles everything below it. But the machine ignores it
    if its consumer sequence is not above the floor. So each further ack is yielded too if its
    consumer sequence is higher than those of all acks yielded before.
    """
    order = np.lexsort((said.consumer_seqs, -said.sequences))
    latest = np.maximum.accumulate(said.consumer_seqs[order])
    for at in order[np.diff(latest, prepend=0) > 0].tolist():
        yield Acked(said.sequences[at : at + 1], int(said.consumer_seqs[at]))


def _one_by_one(said: AckBatch) -> Iterable[Event]:
    """Yield a Nakked or Termed event for each ack of a batch of naks or terms. Each may lead to an
    advisory of its own.
    """
    columns = (column.tolist() for column in (said.sequences, said.consumer_seqs, said.deliveries))
    for sequence, consumer_seq, deliveries in zip(*columns, strict=True):
        if said.verb is Verb.NAK:
            yield Nakked(sequence, consumer_seq, deliveries)
        else:
            yield Termed(sequence, consumer_seq, deliveries)


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a consumer's machine begins: with its stored state, `records`, or anew if that is
    empty.

    `start`: the first stream sequence that it may deliver. `sequence`: the last consumer sequence
    given out before. `last`: the stream's last sequence when the consumer was created, for replay
    original. `incarnation`: names this ownership of the consumer in its flow control requests, and
    in its tokens if it waits for acks or is pulled from (overlay/consumer/lineage.py).
    """

    start: int = 1
    sequence: int = 0
    last: int = 0
    records: Sequence[bytes] = field(default=())
    incarnation: str = ""


def slot(
    config: ConsumerConfig,
    beginning: Beginning,
    now: int,
    output_topic: OutputTopic | None,
    dead_letter_topic: OutputTopic | None,
) -> ConsumerSlot:
    """Return a consumer's slot, with its machine as the stored records describe it, or a new
    machine if there are none. Raises SnapshotUnreadable.

    `config`: with its defaults filled in. `now`: ns since 1970. A machine's record and the
    consumer's last sequence are written in one transaction. So if the records end below
    `beginning.sequence`, the consumer has been served without a machine since. Then they are
    outdated, and a new machine begins.
    """
    fresh = begin(
        config,
        now,
        start=beginning.start,
        sequence=beginning.sequence,
        replay_until=beginning.last,
        incarnation=beginning.incarnation,
    )
    output_topic = _name_output(output_topic, fresh.lineage.incarnation)
    records = [decode(value) for value in beginning.records]
    if records and records[-1].head["delivered"].consumer < beginning.sequence:
        records = []
    base, logged = 0, 0
    for record, value in zip(records, beginning.records, strict=False):
        base, logged = (len(value), 0) if record.is_checkpoint else (base, logged + len(value))
    return ConsumerSlot(Machine(fresh, records), output_topic, dead_letter_topic, base, logged)


def _name_output(output_topic: OutputTopic | None, incarnation: str) -> OutputTopic | None:
    """Return an output whose deliveries name this incarnation in their tokens; as it is if that is empty."""
    if output_topic is None or not incarnation:
        return output_topic
    return replace(output_topic, envelope=name_incarnation(output_topic.envelope, incarnation))
