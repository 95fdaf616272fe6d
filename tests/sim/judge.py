"""Whether a history broke a promise: the outputs against the source, the ack topic and the answers, in plain Python.

The promises, for each consumer:

- nothing is lost or invented: its output has the committed records that it wants, and no others;
- what Kafka deleted from the source may be missing, and so may what an output held, when it was deleted, of transactions that
  had not ended; what it held of others counts as delivered;
- the same where an output loses its end; there a transaction whose marker is lost has not ended, whatever the marker said;
- where a file says another ack policy, the consumer runs as it was;
- where the stream is reset to its start, all is delivered again; then sequences, counts, and acks are not compared;
- where its filter changes, its output has what every version wants, nothing that no version wants, and of the records that are
  written last those that the latest version wants;
- where the state of a consumer's shard has lost its end, each loss may have all of it delivered, and given up, once more, with
  the consumer sequences that it had; nothing is missing, and what waits for an ack is not forgotten;
- where the index has lost the end of the ledger, the stream is reset, and its sequences begin at 1 again;
- what a dead-letter topic has lost with its end counts as given up;
- where an output was too small for a record, the record has a dead letter instead, if the consumer asks for that;
- no chunk header contradicts the log, where the log has lost nothing but its oldest records;
- without acks every record is there once, and the records of a source partition keep their order;
- one stream sequence names one record, in all outputs; sequences first appear in rising order in each output partition;
- a record has no sequence only where the source lost it before the ledger numbered it; consumers with acks do not get it;
- `exactly_once`: consumer sequences count from 1 without a hole, and a message comes again only with the next number of
  deliveries, never more than max_deliver;
- what was acked and answered does not come again, and has no dead letter after that (a range has to name the last delivery; to
  a pull request that was made before the answer it may come: it was on its way); with `ack_policy: all` nothing that has a
  lower sequence does either (with `at_least_once` a former owner may still deliver it that has not noticed that it is fenced);
- what was acked before its ack_wait was over does not come again (where clocks do not jump, no acks are lost, and ack_wait
  begins when the reader group has committed past the delivery);
- a message comes again, or is given up, before its ack_wait is over no more often than readers refuse it (where clocks do not
  jump, and ack_wait begins when the reader group has committed past the delivery);
- no more messages than max_ack_pending wait for an ack when a new one is delivered (where the times can be compared; an ack
  counts from when it is in Kafka, and where the limit changes the highest one counts);
- every delivered message was acked or terminated by a reader, or has its dead letter; no dead letter without a reason (with
  `at_least_once` a delivery may be lost with its owner; where the filter changes then, the message does not come again).

Deliveries to pull consumers may be lost or sent twice on their way, so they have no order and no holes are looked for.
`at_least_once` may deliver again what it delivered before a failure: only the first appearance of a record is in order, and
where the filter changes only that of records that each version wants.
Times are the cluster's, but for topics that the service creates: those are the workers', unless the cluster stamps all.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from overlay.kafka.header_names import CORRELATION
from overlay.kafka.own_topics import shard_of
from overlay.units import parse_duration
from tests.oracle.push import Token, parse_token

from .applications import CONTROL, Run
from .chunk_headers import find_contradictions
from .plan import ACKS, REPLIES, SOURCE, STREAM, Consumer
from .reading import Found, read_topic

SHOWN = 5
FINAL = (b"+ACK", b"+TERM")
DEAD_REASON = "Overlay-Dead-Reason"
UNDELIVERABLE = b"undeliverable"


class Delivery(NamedTuple):
    """A record of an output topic."""

    record: Found
    token: Token

    @property
    def value(self) -> bytes:
        return self.record.value or b""

    @property
    def correlation(self) -> bytes | None:
        """Of the pull request that it is for."""
        return self.record.header(CORRELATION)


@dataclass(slots=True)
class Said:
    """What the ack topic holds about one message of one consumer: times of records, ms since 1970."""

    acked: list[int] = field(default_factory=list)
    termed: list[int] = field(default_factory=list)
    nakked: list[int] = field(default_factory=list)
    progressed: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    """When acks and terms of it were answered."""
    dated: list[int] = field(default_factory=list)
    """When a range named a delivery of it that was not its last one any more. The machine may have forgotten such a
    delivery, and then the ack changes nothing (docs/consumers.md)."""


class Broken(AssertionError):
    """A promise was broken."""


class Judge:
    """Looks at the logs of a history that is over, or has become calm."""

    def __init__(self, run: Run) -> None:
        self._run, self._cluster = run, run.world.cluster
        self._names: dict[int, bytes] = {}
        """The value of the record of each sequence, over all outputs."""
        self._archive = run.archive
        self._source = self._archive.read(SOURCE)
        present = {record.value for record in read_topic(self._cluster, SOURCE)}
        self._gone = {record.value or b"" for record in self._source if record.value not in present}
        """What the source has lost. Where it was not delivered before, it may be missing."""
        self._places = {record.value or b"": (record.partition, record.offset) for record in self._source}

    # read when they are asked for: who waits until all is delivered asks for none of them

    @cached_property
    def _acks(self) -> list[Found]:
        return self._archive.read(ACKS)

    @cached_property
    def _answers(self) -> dict[bytes | None, int]:
        """When requests and acks were answered, by correlation."""
        return {record.header(CORRELATION): record.timestamp for record in reversed(read_topic(self._cluster, REPLIES))}

    @cached_property
    def _asked(self) -> dict[bytes | None, int]:
        """When each request was made, by correlation."""
        return {
            (record.key or b"").removeprefix(b"request "): record.timestamp
            for record in self._archive.read(CONTROL)
            if record.value is not None
        }

    def list_source(self) -> list[Found]:
        """Return all records that the source has had."""
        return self._source

    def list_present(self) -> list[Found]:
        """Return the records that the source has now."""
        return [record for record in self._source if record.value not in self._gone]

    def find_wanted(self, consumer: Consumer) -> set[bytes]:
        """Return the values of the records that a consumer wants, by every version of its file, and that are still there."""
        return self._find_values(consumer, self._run.files.find_always(consumer.name)) - self._gone

    def _find_values(self, consumer: Consumer, keys: Container[bytes]) -> set[bytes]:
        """Return the values of the records with these keys; of the last ones, those that the consumer wants now."""
        last = self._run.last
        return {
            record.value or b""
            for record in self._source
            if record.key in (consumer.keys if record.value in last else keys)
        }

    def find_missing(self, consumer: Consumer) -> set[bytes]:
        """Return the values that have not been delivered, nor given up since the output could not take them."""
        since = self._run.resets[-1] if self._run.resets else 0.0
        delivered = {each.value for each in self._read_deliveries(consumer) if each.record.timestamp >= since}
        return self.find_wanted(consumer) - delivered - self._find_given_up(consumer) - self._find_undecided(consumer)

    def _judge_begun_anew(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """Judge the deliveries of a stream that was reset to the start of its topics: each reset has all delivered again."""
        self._blame(consumer, "not delivered since the stream was reset", self.find_missing(consumer))
        # in a stream of one partition sequences are offsets, and name other records of another log
        if self._run.plan.partitions > 1 and not self._run.plan.loses_sequences:
            self._check_names(consumer, deliveries)
        if consumer.is_exact and not consumer.is_pulled:
            self._check_consumer_sequences(consumer, deliveries)
        if consumer.is_exact and not consumer.acks:
            copies = Counter(each.value for each in deliveries)
            most = 1 + len(self._run.resets)
            self._blame(consumer, "delivered too often", {value for value, count in copies.items() if count > most})

    def _find_undecided(self, consumer: Consumer) -> set[bytes]:
        """Return the values of deliveries that an output lost, when it was deleted, before their transaction had ended."""
        return {each.value for each in self._read_undecided(consumer)}

    def _count_rewinds(self, consumer: Consumer) -> int:
        """Return how often the state of a consumer's shard has lost its end."""
        return self._run.rewound[shard_of((STREAM, consumer.name), self._run.plan.shards)]

    def _read_letters(self, consumer: Consumer) -> list[Found]:
        """Return the dead letters of a consumer, with those that were lost, or whose transaction had not ended then."""
        topic = consumer.letters
        return [*self._archive.read(topic), *self._archive.undecided[topic]] if topic else []

    def _find_given_up(self, consumer: Consumer) -> set[bytes]:
        """Return the values of the dead letters that say that the output can never take them."""
        if not consumer.buries or consumer.output not in self._run.tightened:
            return set()
        letters = self._read_letters(consumer)
        return {letter.value or b"" for letter in letters if letter.header(DEAD_REASON) == UNDELIVERABLE}

    def judge(self) -> None:
        """Raise Broken if a promise to any consumer was broken."""
        if not self._run.resets and (wrong := find_contradictions(self._cluster)):
            raise Broken(f"chunk headers that contradict the log: {len(wrong)}, such as {wrong[:SHOWN]}")
        for consumer in self._run.files.consumers:
            deliveries = self._read_deliveries(consumer)
            wanted = self.find_wanted(consumer)
            allowed = self._find_values(consumer, self._run.files.find_ever(consumer.name))
            found = {each.value for each in deliveries}
            given_up = self._find_given_up(consumer)
            self._blame(consumer, "not delivered", wanted - found - given_up - self._find_undecided(consumer))
            self._blame(consumer, "not wanted", (found | given_up) - allowed)
            if self._run.resets:
                self._judge_begun_anew(consumer, deliveries)
                continue
            if not consumer.acks and not self._count_rewinds(consumer):
                self._blame(consumer, "delivered and given up", found & given_up)
            self._check_sequences(consumer, deliveries)
            if consumer.is_pulled:
                self._check_pulled(consumer, deliveries)
            elif self._run.plan.tells_times or not self._count_rewinds(consumer):
                self._check_order(consumer, deliveries)
            if consumer.is_exact and not consumer.is_pulled:
                self._check_counts(consumer, deliveries)
            if consumer.acks:
                self._check_acks(consumer, deliveries)

    def _read_deliveries(self, consumer: Consumer) -> list[Delivery]:
        return _find_deliveries(self._archive.read(consumer.output), consumer)

    def _read_undecided(self, consumer: Consumer) -> list[Delivery]:
        return _find_deliveries(self._archive.undecided[consumer.output], consumer)

    def _blame(self, consumer: Consumer, what: str, which: Collection[object]) -> None:
        if which:
            shown = sorted(which, key=str)[:SHOWN]
            raise Broken(
                f"{consumer.name} ({consumer.policy}, {consumer.config['delivery']}): {what}: {len(which)}, such as {shown}"
            )

    def _check_names(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        odd = {
            each.token.sequence
            for each in deliveries
            if each.token.sequence and self._names.setdefault(each.token.sequence, each.value) != each.value
        }
        self._blame(consumer, "sequences that name two records", odd)
        unnumbered = {each.value for each in deliveries if not each.token.sequence}
        self._blame(consumer, "no sequence", unnumbered if consumer.acks else unnumbered - self._gone)

    def _check_sequences(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        self._check_names(consumer, deliveries)
        self._blame(consumer, "records with two sequences", _find_doubled(self._names))

    def _check_order(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        if not consumer.is_exact or self._count_rewinds(consumer):
            # what a wider filter adds comes after deliveries that were lost with their owner, or with its state, and are made
            # again
            always = self._find_values(consumer, self._run.files.find_always(consumer.name))
            deliveries = [each for each in deliveries if each.value in always]
        first: dict[bytes, Delivery] = {}
        for each in sorted(deliveries, key=lambda each: (each.token.deliveries, each.record.timestamp)):
            first.setdefault(each.value, each)
        highest: dict[int, int] = defaultdict(int)
        latest: dict[tuple[int, int], int] = {}
        late: set[bytes] = set()
        undecided = self._find_undecided(consumer)
        for each in deliveries:
            partition, sequence = each.record.partition, each.token.sequence
            if first[each.value] is not each:
                continue
            if each.token.deliveries > 1 and each.value in undecided:
                continue  # the output has lost its first delivery
            source, at = self._places[each.value]
            if 0 < sequence < highest[partition] or at < latest.get((partition, source), -1):
                late.add(each.value)
            highest[partition] = max(highest[partition], sequence)
            latest[partition, source] = at
        self._blame(consumer, "out of order", late)

    def _check_consumer_sequences(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        own = [each.token.consumer_sequence for each in deliveries]
        undecided = self._read_undecided(consumer)
        known = {*own, *(each.token.consumer_sequence for each in undecided)}
        odd = set(range(1, max(known, default=0) + 1)) ^ known
        most = 1 + self._count_rewinds(consumer)
        odd |= {number for number, count in Counter(own).items() if count > most}
        self._blame(consumer, f"consumer sequences are not 1 to {len(known)}", odd)

    def _check_counts(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        self._check_consumer_sequences(consumer, deliveries)
        counts: dict[bytes, list[int]] = defaultdict(list)
        for each in sorted(deliveries, key=lambda each: each.token.consumer_sequence):
            counts[each.value].append(each.token.deliveries)
        rewinds = self._count_rewinds(consumer)
        if not rewinds:
            odd = {value for value, found in counts.items() if found != list(range(1, len(found) + 1))}
            odd -= self._find_undecided(consumer)
            self._blame(consumer, "messages whose deliveries are not counted 1, 2, 3", odd)
        most = (int(consumer.config.get("max_deliver", -1)) if consumer.acks else 1) * (1 + rewinds)
        over = {value for value, found in counts.items() if 0 < most < len(found)}
        self._blame(consumer, "delivered too often", over)

    def _check_pulled(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """Check what was sent for pull requests. It is sent once its delivery is committed, and may be lost on its way."""
        seen: dict[tuple[str, int], int] = {}
        odd: set[int] = set()
        for each in deliveries:
            token = each.token
            if seen.setdefault((token.incarnation, token.consumer_sequence), token.sequence) != token.sequence:
                odd.add(token.consumer_sequence)
        self._blame(consumer, "consumer sequences of two messages", odd)

    # acks

    def _check_acks(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        said = self._collect(consumer, deliveries)
        letters: dict[int, list[Found]] = defaultdict(list)
        for letter in self._read_letters(consumer):
            letters[parse_token(letter.header("Nats-Reply-To") or b"").sequence].append(letter)
        gone = {each.token.sequence for each in deliveries if each.value in self._gone}
        unsettled = set(self._find_unsettled(consumer, deliveries, said, letters)) - gone
        if not consumer.is_exact:
            # such a delivery may be lost before it is committed, and not be wanted any more by the next owner of the shard
            wanted = self.find_wanted(consumer)
            unsettled -= {each.token.sequence for each in deliveries if each.value not in wanted}
        self._blame(consumer, "settled without an ack", unsettled)
        if self._count_rewinds(consumer):
            self._check_letters(consumer, deliveries, said, letters)
            return  # acks that the lost state had taken in count no more
        # topics that the service creates have the workers' times, which say nothing once a clock has jumped
        is_timed = self._run.plan.tells_times
        timed = self._leave_out_fenced(consumer, deliveries) if consumer.is_pulled or is_timed else []
        again = set(self._find_answered(timed, said, letters if is_timed else {}, self._asked))
        self._blame(consumer, "came again after the answer to its ack", again)
        self._check_letters(consumer, deliveries, said, letters)
        if consumer.is_exact and is_timed and not consumer.is_pulled:
            overfull = set(self._find_overfull(consumer, deliveries, said, letters))
            self._blame(consumer, "delivered beyond max_ack_pending", overfull)
        if consumer.is_exact and consumer.policy == "explicit" and consumer.config.get("interest") == "group":
            is_timely = not self._run.plan.has_jumps and not self._run.plan.loses_acks
            early = set(self._find_prompt(consumer, deliveries, said, letters)) if is_timely else set()
            self._blame(consumer, "came again though acked in time", early)
        if consumer.is_exact and not self._run.plan.has_jumps and consumer.config.get("interest") == "group":
            hasty = set(self._find_hasty(consumer, deliveries, said, letters))
            self._blame(consumer, "came again before its ack_wait was over", hasty)

    def _leave_out_fenced(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return the deliveries without those of owners that had lost the shard: with `at_least_once` Kafka does not refuse
        them."""
        if consumer.is_exact:
            return deliveries
        fenced = self._cluster.transactions.fenced
        ends = {f"{producer}x{epoch}": at for (producer, epoch), at in fenced.items()}
        return [each for each in deliveries if each.record.timestamp < ends.get(each.token.owner, math.inf)]

    def _collect(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> dict[int, Said]:
        """Return what was said of each message, by sequence; of a range ack the deliveries of its incarnation. With
        `ack_policy: all` an answer counts for all messages that its ack settles."""
        said: dict[int, Said] = defaultdict(Said)
        numbered = {(each.token.incarnation, each.token.consumer_sequence): each.token.sequence for each in deliveries}
        ends, delivered = _find_ends(deliveries), sorted({each.token.sequence for each in deliveries})
        for record in self._acks:
            token, body = record.header("Nats-Reply-To") or record.key or b"", record.value or b""
            parts = token.decode().split(".")
            if parts[4:6] != [str(consumer.config["stream"]), consumer.name]:
                continue
            if len(parts) == 6:
                pairs = json.loads(body[4:])["consumer_seq"]
                named = [(parts[3], each) for first, last in pairs for each in range(first, last + 1)]
                known = [each for each in named if each in numbered]  # others go beyond what was delivered
                for each in known:
                    if ends[each] <= record.timestamp:
                        said[numbered[each]].dated.append(record.timestamp)
                numbers = [numbered[each] for each in known if ends[each] > record.timestamp]
            else:
                numbers = [parse_token(token).sequence]
            answer = self._answers.get(record.header(CORRELATION) or b"")
            if answer is not None and consumer.policy == "all" and body.startswith(FINAL):
                for number in _find_covered(numbers, delivered):
                    said[number].answered.append(answer)
            for number in numbers:
                entry = said[number]
                if body.startswith(b"-NAK"):
                    entry.nakked.append(record.timestamp)
                elif body.startswith(b"+WPI"):
                    entry.progressed.append(record.timestamp)
                elif body.startswith(FINAL):
                    (entry.termed if body.startswith(b"+TERM") else entry.acked).append(record.timestamp)
                    if answer is not None:
                        entry.answered.append(answer)
        return said

    @staticmethod
    def _find_unsettled(
        consumer: Consumer, deliveries: Sequence[Delivery], said: dict[int, Said], letters: dict[int, list[Found]]
    ) -> Iterator[int]:
        highest = max((sequence for sequence, entry in said.items() if entry.acked), default=0)
        for sequence in {each.token.sequence for each in deliveries}:
            is_covered = consumer.policy == "all" and sequence <= highest
            entry = said[sequence]
            if not (entry.acked or entry.termed or entry.dated or sequence in letters or is_covered):
                yield sequence

    @staticmethod
    def _find_answered(
        deliveries: Sequence[Delivery],
        said: dict[int, Said],
        letters: dict[int, list[Found]],
        asked: Mapping[bytes | None, int],
    ) -> Iterator[int]:
        """Yield the sequences that came again after an answer. `asked`: when each pull request was made, by correlation."""
        for each in deliveries:
            answered = said[each.token.sequence].answered
            if answered and (asked.get(each.correlation) or each.record.timestamp) > min(answered):
                yield each.token.sequence
        for sequence, found in letters.items():
            answered = said[sequence].answered
            if answered and not said[sequence].termed and found[0].timestamp > min(answered):
                yield sequence

    def _check_letters(
        self, consumer: Consumer, deliveries: Sequence[Delivery], said: dict[int, Said], letters: dict[int, list[Found]]
    ) -> None:
        counts: dict[int, int] = defaultdict(int)
        undecided = self._read_undecided(consumer)
        for each in [*deliveries, *undecided]:
            counts[each.token.sequence] += 1
        unsure = {each.token.sequence for each in undecided}
        most = int(consumer.config["max_deliver"])
        groundless: set[int] = set()
        may_bury = consumer.buries and consumer.output in self._run.tightened
        for sequence, found in letters.items():
            reasons = {letter.header(DEAD_REASON) for letter in found}
            if not reasons <= ({b"term", b"max_deliver", UNDELIVERABLE} if may_bury else {b"term", b"max_deliver"}):
                groundless.add(sequence)
            if b"term" in reasons and not said[sequence].termed:
                groundless.add(sequence)
            if b"max_deliver" in reasons and not 0 < most <= counts[sequence]:
                groundless.add(sequence)
            value = found[0].value or b""
            known = self._names.setdefault(sequence, value) if UNDELIVERABLE in reasons else self._names.get(sequence)
            if value != known and sequence not in unsure:
                groundless.add(sequence)
        self._blame(consumer, "dead letters without a reason", groundless)
        if consumer.is_exact:
            undecided_letters = {letter.value for letter in self._archive.undecided[consumer.letters]}
            times = 1 + self._count_rewinds(consumer)
            doubled = {
                sequence
                for sequence, found in letters.items()
                if len([letter for letter in found if letter.value not in undecided_letters]) > times
            }
            self._blame(consumer, "two dead letters", doubled)

    def _find_prompt(
        self, consumer: Consumer, deliveries: Sequence[Delivery], said: dict[int, Said], letters: dict[int, list[Found]]
    ) -> Iterator[int]:
        """Yield the sequences that came again, or have a dead letter, after an ack that was in Kafka before the deadline."""
        for sequence, before, _ in self._list_again(consumer, deliveries, letters):
            entry = said[sequence]
            if entry.nakked or entry.termed or not entry.acked:
                continue
            if min(entry.acked) < self._find_deadline(consumer, before.record) - 1:
                yield sequence

    def _find_hasty(
        self, consumer: Consumer, deliveries: Sequence[Delivery], said: dict[int, Said], letters: dict[int, list[Found]]
    ) -> Iterator[int]:
        """Yield the sequences that came again, or have a dead letter, before the deadline, and more often so than readers asked
        for by naks. Not those with +WPI, by which ack_wait may begin before a commit.

        No history changes a deliver subject, which has all that waits delivered again.
        """
        buried = {
            sequence
            for sequence, found in letters.items()
            if any(letter.header(DEAD_REASON) == UNDELIVERABLE for letter in found)
        }
        early: Counter[int] = Counter()
        for sequence, before, at in self._list_again(consumer, deliveries, letters):
            if sequence not in buried and not (said[sequence].termed or said[sequence].progressed):
                early[sequence] += at < self._find_deadline(consumer, before.record) - 1
        for sequence, count in early.items():
            if count > len(said[sequence].nakked):
                yield sequence

    def _list_again(
        self, consumer: Consumer, deliveries: Sequence[Delivery], letters: dict[int, list[Found]]
    ) -> list[tuple[int, Delivery, int]]:
        """Return what came again, or has a dead letter: (sequence, the delivery before, when it came again in ms since 1970).

        Not what an output has lost: it may not have been read, and its deadline begins all the same.
        """
        out, archive = consumer.output, self._archive
        lost = _find_deliveries([*archive.lost[out], *archive.undecided[out]], consumer)
        unsure = {each.token.sequence for each in lost}
        last: dict[int, Delivery] = {}
        again: list[tuple[int, Delivery, int]] = []
        for each in sorted(deliveries, key=lambda each: each.token.consumer_sequence):
            if each.token.sequence in last:
                again.append((each.token.sequence, last[each.token.sequence], each.record.timestamp))
            last[each.token.sequence] = each
        again += [
            (sequence, last[sequence], found[0].timestamp) for sequence, found in letters.items() if sequence in last
        ]
        return [each for each in again if each[0] not in unsure]

    def _find_deadline(self, consumer: Consumer, record: Found) -> float:
        """Return the earliest time at which the ack_wait of a delivery can be over, ms since 1970; infinity if its readers
        never passed it.

        That is the shortest ack_wait after the first commit of the reader group past it.
        """
        waits = [str(version.config["ack_wait"]) for version in self._run.files.versions[consumer.name]]
        commits = self._run.read[consumer.name]
        read = [at for at, partition, offset in commits if partition == record.partition and offset > record.offset]
        began_ms = self._run.world.settings.wall_ms0
        return began_ms + min(read, default=math.inf) * 1000 + min(map(parse_duration, waits)) / 1e6

    def _find_overfull(
        self, consumer: Consumer, deliveries: Sequence[Delivery], said: dict[int, Said], letters: dict[int, list[Found]]
    ) -> Iterator[int]:
        """Yield the sequences that were delivered for the first time while max_ack_pending messages waited for an ack."""
        limits = [int(version.config["max_ack_pending"]) for version in self._run.files.versions[consumer.name]]
        most = max(limits) if min(limits) > 0 else math.inf
        settled: dict[int, float] = {}
        covered = math.inf
        for sequence in sorted({each.token.sequence for each in deliveries}, reverse=True):
            entry = said[sequence]
            covered = min([covered, *entry.acked]) if consumer.policy == "all" else min(entry.acked, default=math.inf)
            # what a reader delays need not count
            others = [
                *entry.termed,
                *entry.nakked,
                *entry.dated,
                *(each.timestamp for each in letters.get(sequence, ())),
            ]
            settled[sequence] = min([covered, *others])
        waiting: list[float] = []
        seen: set[int] = set()
        for each in sorted(deliveries, key=lambda each: each.token.consumer_sequence):
            sequence = each.token.sequence
            if sequence in seen:
                continue
            seen.add(sequence)
            waiting = [until for until in waiting if until > each.record.timestamp]
            if len(waiting) >= most:
                yield sequence
            waiting.append(settled[sequence])


def _find_ends(deliveries: Sequence[Delivery]) -> dict[tuple[str, int], float]:
    """Return for each delivery, by incarnation and consumer sequence, when its message was delivered again; infinity if it was
    not. ms since 1970."""
    ends: dict[tuple[str, int], float] = {}
    again: dict[int, float] = {}
    for each in sorted(
        deliveries, key=lambda each: (each.record.timestamp, each.token.consumer_sequence), reverse=True
    ):
        token = each.token
        ends[token.incarnation, token.consumer_sequence] = again.get(token.sequence, math.inf)
        again[token.sequence] = each.record.timestamp
    return ends


def _find_covered(acked: Sequence[int], delivered: Sequence[int]) -> Sequence[int]:
    """Return the sequences that were delivered and that an ack settles along with its own. `delivered`: rising."""
    return delivered[: bisect_left(delivered, max(acked, default=0))]


def _find_deliveries(records: Iterable[Found], consumer: Consumer) -> list[Delivery]:
    """Return the deliveries of a consumer among the records of its output, which may have those of others as well."""
    return [
        Delivery(record, token)
        for record in records
        if (text := record.header("Nats-Reply-To")) is not None and (token := _parse(text)).consumer == consumer.name
    ]


# a history that waits until all is delivered reads the same deliveries every second
_parse = lru_cache(maxsize=20_000)(parse_token)


def _find_doubled(names: dict[int, bytes]) -> set[bytes]:
    seen: set[bytes] = set()
    return {value for value in names.values() if value in seen or seen.add(value)}  # type: ignore[func-returns-value]
