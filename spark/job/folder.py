"""The consumers of a job as its config folder has them, followed while the job runs.

A change is taken up between two batches. A file with a mistake is logged, and its consumer goes on as
it was. If an error keeps a change from being taken up, such as an output topic that cannot be created,
it is logged, and all consumers go on as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from overlay.arrays import Ints
from overlay.client.client import check_settings
from overlay.client.read.bounds import ReadBounds
from overlay.clock import monotonic, now_ms
from overlay.config import ConsumerConfig, Loaded, StreamConfig, load
from overlay.config.consumer import DeliverPolicy, Engine
from overlay.config.filters import compile_filter
from overlay.credentials import resolve
from overlay.errors import OverlayError
from overlay.filter import Filter, compile_sql
from overlay.index.ledger.ledger import Ledger
from overlay.index.pending.last_per_subject import find_lows, merge_lasts
from overlay.index.start_positions import Start, find_start, patterns
from overlay.index.topic import Index
from overlay.kafka.admin import TopicFacts, connect
from overlay.kafka.log_position import TopicPartition
from overlay.logs import get_logger
from overlay.match import choose_values
from overlay.match.values import narrow as narrow_subjects
from overlay.output.side_topics import ensure_side_topics
from overlay.output.topics import ensure_topics, make_dead_letter_topic, make_output_topic
from overlay.state.handover import Claimed, claim_consumers
from overlay.state.job_plan import BatchPlan, ConsumerPlan, JobPosition
from overlay.state.job_reads import Ends, lower
from overlay.subject import Pattern
from spark.lease import ClaimWatch, Lease, run_apart
from spark.options import Ask, Ranges
from spark.output import Output, UnknownConsumer, find_output, name_refused
from spark.partitions import TaskPartition
from spark.plan import TRUNCATED, Planner, report_loss

from .consumers import JobConsumers, Plan, Search, find_first_offset, name_of
from .ranges import find_digest
from .readers import JobReader, JobScan

log = get_logger(__name__)

RETRY_S = 30.0
"""Seconds after which a change that could not be taken up is tried again, by a batch of its own if none comes."""
ANYTHING = (Pattern.parse(">"),)

FindLedger = Callable[[], Ledger | None]


class NotForSpark(OverlayError):
    """A consumer that a Spark job cannot deliver as it is or from where it stands, or consumers that one job cannot
    run together. The author of its file, or the caller, acts.
    """


@dataclass(frozen=True, slots=True)
class Chosen:
    """The consumers of one stream that a job runs, in the order of their names."""

    loaded: Loaded
    stream: StreamConfig
    outputs: tuple[Output, ...]

    @property
    def configs(self) -> tuple[ConsumerConfig, ...]:
        return tuple(output.consumer for output in self.outputs)

    @property
    def kafka(self) -> Mapping[str, str]:
        """Kafka settings by librdkafka's names."""
        return check_settings(self.loaded.service.kafka)

    @property
    def prefix(self) -> str:
        """The prefix of the overlay's own topics."""
        return self.loaded.service.topics.prefix

    @property
    def folder(self) -> Path:
        return Path(self.loaded.files[""].file).parent


def choose_consumers(loaded: Loaded, names: Sequence[str] = (), stream: str = "") -> Chosen:
    """Return the consumers that a job runs: the named ones, or without names all of a stream with `engine: spark`.

    `stream`: may be empty if the names, or the consumers with `engine: spark`, leave only one. Raises
    UnknownConsumer if there is no such consumer or no single stream, and NotForSpark for a named one without
    `engine: spark`, or for names of several streams.
    """
    if not names:
        names = [id[1] for id, config in loaded.consumers.items() if _is_sparks(config, stream)]
        streams = {id[0] for id, config in loaded.consumers.items() if _is_sparks(config, stream)}
        if len(streams) != 1:
            raise UnknownConsumer(_explain_none(loaded, stream, streams))
        (stream,) = streams
    outputs = [find_output(loaded, name, stream) for name in sorted(set(names))]
    if len({output.stream.name for output in outputs}) != 1:
        raise NotForSpark("a job runs consumers of one stream. Start a job for each stream")
    for output in outputs:
        check_consumer(output.consumer)
    return Chosen(loaded, outputs[0].stream, tuple(outputs))


def list_streams(loaded: Loaded) -> list[str]:
    """Return the names of the streams that have consumers with `engine: spark`, sorted."""
    return sorted({config.stream for config in loaded.consumers.values() if _is_sparks(config)})


def check_consumer(consumer: ConsumerConfig) -> None:
    """Raise NotForSpark unless the consumer's file says that Spark delivers it."""
    stream, name = consumer.id
    if consumer.engine is not Engine.SPARK:
        raise NotForSpark(
            f"consumer {name!r} of stream {stream!r} is delivered by the service. For a Spark job write `engine: spark` into"
            " its file"
        )


def _is_sparks(config: ConsumerConfig, stream: str = "") -> bool:
    return config.engine is Engine.SPARK and stream in ("", config.stream)


def _explain_none(loaded: Loaded, stream: str, streams: set[str]) -> str:
    """Return the message for a folder from whose consumers no single stream follows."""
    if streams:
        return f"several streams have consumers with `engine: spark`: {', '.join(sorted(streams))}. Name one of them"
    of = f" of stream {stream!r}" if stream else ""
    where = Path(loaded.files[""].file).parent
    return f"{where}: no consumer{of} has `engine: spark`. Write it into its file{name_refused(loaded)}"


def find_log(bounds: ReadBounds) -> Ends:
    """Return the log start and the last stable offset of each partition, where its range in `bounds` ends."""
    return {each.source: (bounds.log_starts[each.source], each.stop) for each in bounds.offset_ranges}


async def ensure_outputs(chosen: Chosen) -> dict[str, TopicFacts]:
    """Create the output and dead-letter topics of the chosen consumers that are missing. Return at least the facts of
    all of them, by topic. Raises OverlayError if one cannot be created or used.
    """
    async with connect(chosen.kafka) as (admin, _):
        found, refused = await ensure_topics(admin, chosen.configs, chosen.loaded.service.topics.replication)
        if any(config.dead_letter_topic for config in chosen.configs):
            names = chosen.stream.topic_names
            there = await admin.find_topics(names)
            sources = {name: there.get(name) for name in names}
            sides, unusable = await ensure_side_topics(admin, chosen.loaded, chosen.configs, sources)
            found, refused = found | sides, refused | unusable
    for topic in (name for config in chosen.configs for name in (config.deliver_subject, config.dead_letter_topic)):
        if topic in refused:
            raise OverlayError(refused[topic])
    return found


class JobFolder:
    """The config folder of a job, with the leases and the claims by which the job holds its consumers. Not thread-safe.

    `job`: its name. `names`: of the consumers; empty for all of the stream with `engine: spark`.
    `patience_s`: how long to wait for another pipeline's lease. `find_ledger`: returns the stream's ledger if the
    job keeps it, None otherwise; then it is read from Kafka.
    """

    def __init__(
        self,
        chosen: Chosen,
        job: str,
        names: Sequence[str],
        ask: Ask,
        patience_s: float,
        find_ledger: FindLedger,
    ) -> None:
        self.chosen, self._find_ledger = chosen, find_ledger
        self._job, self._names, self._ask, self._patience_s = job, names, ask, patience_s
        self._digest = find_digest(chosen.folder)
        self._files = {output.name: chosen.loaded.files[output.consumer.id].file for output in chosen.outputs}
        """The file of each consumer that the job has ever had, by name."""
        self._refused, self._retry_at = "", 0.0
        """A digest of the folder that could not be taken up, and when to try it again, monotonic seconds."""
        self._refusal = ""
        """A mark of the last refusal, empty once the change was taken up."""
        self._facts: dict[str, TopicFacts] = {}
        self._leases: dict[str, Lease] = {}
        self._starts: dict[str, JobPosition | None] = {}
        """Where a consumer stood at its claim, by name; None if the job's plan says it, or if it is new."""
        self._watch = ClaimWatch(chosen.kafka, chosen.prefix, chosen.stream.name, job)

    def check_owner(self, *, now: bool = False) -> None:
        """Raise NotOwner if another pipeline or the service may run one of the consumers.

        The service's state is looked up only if the last look was ten seconds ago or more, or `now` is set. Raises
        OverlayError if it cannot be read.
        """
        for lease in self._leases.values():
            lease.check()
        self._watch.check({output.name for output in self.chosen.outputs}, now=now)

    def close(self) -> None:
        """Give all leases back."""
        self._keep(())

    def _keep(self, names: Collection[str]) -> None:
        """Give back every consumer that is not among `names`, and forget where it stood: before the job takes it again, the
        service or another job may have delivered it."""
        for name in self._leases.keys() - names:
            self._leases.pop(name).release()
            self._watch.claims.pop(name, None)
            self._starts.pop(name, None)

    def restrict(self, names: Sequence[str]) -> None:
        """Leave out the consumers that are not among these, until `renew` finds them."""
        outputs = tuple(output for output in self.chosen.outputs if output.name in names)
        if outputs != self.chosen.outputs:
            self.chosen, self._digest = replace(self.chosen, outputs=outputs), ""

    @property
    def retry_mark(self) -> str:
        """A mark of a change that could not be taken up, once it is time to try it again; another one for each attempt. Empty
        if there is no such change."""
        return self._refusal if monotonic() >= self._retry_at else ""

    def look(self) -> Ends:
        """Ask Kafka for the log start and the last stable offset of each partition, and return them."""
        return find_log(Planner(self._ask).look())

    def find_ids(self) -> dict[str, str]:
        """Ask Kafka for the ids of the stream's topics, and return them."""
        return Planner(self._ask).find_ids()

    def own(self) -> None:
        """Create the outputs of the consumers that are missing, and take the lease of each consumer. Raises NotOwner
        if a lease is not to be had within `patience_s` seconds, and OverlayError.
        """
        self._facts = run_apart(ensure_outputs(self.chosen))
        self._own(self.chosen)

    def prepare(self, last: BatchPlan | None) -> JobConsumers:
        """Claim the job's consumers in the service's state, and return them with where each begins. Call `own` first.
        `last`: the job's last plan, None for a new job. Raises OverlayError.
        """
        return self._prepare(self.chosen, last)

    def renew(self, last: BatchPlan | None) -> JobConsumers | None:
        """Take up a change of the folder: own and claim the consumers that it has now, give back the others, and
        return them. `last`: the job's last plan, None for a new job.

        Return None if no consumer has changed, while a file is being changed, or if an error keeps the change from
        being taken up. The error is logged, and the change is tried again by the first call after RETRY_S
        (`retry_mark`), or once the folder has changed again. A file with a mistake, or a changed file of the stream, is
        logged and counts as unchanged.
        """
        digest = find_digest(self.chosen.folder)
        if not digest or digest == self._digest or (digest == self._refused and monotonic() < self._retry_at):
            return None
        try:
            chosen = self._choose_anew()
            if chosen.configs == self.chosen.configs:
                self._keep({output.name for output in self.chosen.outputs})
                self._digest, self._refusal = digest, ""
                return None
            self._facts = run_apart(ensure_outputs(chosen))
            self._own(chosen)
            found = self._prepare(chosen, last)
        except OverlayError as error:
            self._refused, self._retry_at, self._refusal = digest, monotonic() + RETRY_S, str(now_ms())
            log.error("a change of the folder is not taken up; all consumers go on as they were", reason=str(error))
            self._keep({output.name for output in self.chosen.outputs})
            return None
        self._keep({output.name for output in chosen.outputs})
        self.chosen, self._digest, self._refusal = chosen, digest, ""
        log.info("the folder has changed", stream=chosen.stream.name, consumers=len(chosen.outputs))
        return found

    def _choose_anew(self) -> Chosen:
        """Return the consumers with `engine: spark` that the folder has now, as far as the job may run them by name;
        one whose file has a mistake stays as it was. If the stream has another config now or none, log that and
        return the consumers as they were. Raises OverlayError.
        """
        loaded, before = load(self.chosen.folder), self.chosen
        for problem in loaded.problems:
            log.error("config problem", problem=str(problem))
        name = before.stream.name
        if loaded.streams.get(name) != before.stream:
            log.error(
                "the stream's file has changed. The job goes on with the old one until it is started again", stream=name
            )
            return before
        broken = {problem.place.file for problem in loaded.problems}
        found = {output.name: output for output in before.outputs if self._files[output.name] in broken}
        for (of, consumer), config in loaded.consumers.items():
            if of == name and _is_sparks(config) and (not self._names or consumer in self._names):
                found[consumer] = find_output(loaded, consumer, name)
                self._files[consumer] = loaded.files[config.id].file
        return Chosen(loaded, before.stream, tuple(found[consumer] for consumer in sorted(found)))

    def _prepare(self, chosen: Chosen, last: BatchPlan | None) -> JobConsumers:
        kept = self._find_ledger()
        bounds = Planner(self._ask).look(with_ledger=kept is None)
        ledger = bounds.ledger if kept is None else kept
        self._claim(chosen, last, {each.source: bounds.log_starts[each.source] for each in bounds.offset_ranges})
        begins = self._find_begins(chosen, last, {each.source: each.stop for each in bounds.offset_ranges}, ledger)
        writers, readers = _make_readers(chosen, self._facts)
        scan = JobScan(resolve(chosen.kafka), chosen.prefix, chosen.stream, readers, now_ms(), self._ask.fails_on_loss)
        plan, planner = make_plan(self._ask, chosen.configs, self._find_ledger), Planner(self._ask)
        pace, wanted = self._ask.pace, [narrow_subjects(reader.patterns, reader.values) for reader in readers]
        return JobConsumers(
            chosen.configs,
            scan,
            plan,
            lambda: find_log(planner.look()),
            planner.find_ids,
            make_search(self._ask, chosen.configs, self._find_ledger),
            lambda numbers, spans: planner.count_spans([wanted[number] for number in numbers], spans),
            planner.weigh,
            pace.records is not None or pace.bytes is not None,
            writers,
            begins,
        )

    def _own(self, chosen: Chosen) -> None:
        """Take the lease of each consumer that the job does not have yet. Raises NotOwner, SourceUnavailable."""
        for output in chosen.outputs:
            if output.name not in self._leases:
                lease = Lease(output)
                try:
                    lease.take(self._patience_s)
                except BaseException:
                    lease.release()
                    raise
                self._leases[output.name] = lease

    def _claim(self, chosen: Chosen, last: BatchPlan | None, starts: Mapping[TopicPartition, int]) -> None:
        """Make the job the owner of the consumers that it has not claimed yet. Raises OverlayError."""
        names = [output.name for output in chosen.outputs if output.name not in self._watch.claims]
        if not names:
            return
        service, stream = chosen.loaded.service, chosen.stream.name

        async def read_ledger() -> Ledger | None:
            return await asyncio.to_thread(Planner(self._ask).find_ledger)

        async def claim() -> dict[str, Claimed]:
            async with connect(chosen.kafka) as (admin, client):
                return await claim_consumers(
                    service, admin, client, stream, names, self._job, last, starts, read_ledger
                )

        claimed = run_apart(claim())
        self._starts |= {name: each.start for name, each in claimed.items()}
        self._watch.claims |= {name: each.claim for name, each in claimed.items()}

    def _find_begins(
        self, chosen: Chosen, last: BatchPlan | None, log_ends: Mapping[TopicPartition, int], ledger: Ledger | None
    ) -> dict[str, ConsumerPlan]:
        """Return where each consumer begins: as the job's last plan says, where its former owner stood, or by its
        policy. `log_ends`: the end of each partition's log, as a leader has told it. Raises OverlayError, such as NotForSpark
        (`check_start`, `check_snapshot`) and DataLoss.
        """
        begins, sources = dict[str, ConsumerPlan](), list(log_ends)
        for config in chosen.configs:
            name = name_of(config)
            claim, start = self._watch.claims[name], self._starts.get(name)
            known = None if last is None else last.consumers.get(name)
            left = None if last is None else last.left.get(name)
            if known is not None and known.claim == claim:
                begins[name] = known
            elif start is not None or (left is not None and left.claim == claim):
                # of a position in the job's plan each batch looks itself whether the log has lost it
                at = left if start is None else self._check_end(config, start, log_ends)
                assert at is not None
                begins[name] = ConsumerPlan("", at.sequence, at.sequence, 0, at.offsets, claim, snapshot=at.snapshot)
            else:
                check_start(config, len(sources), ledger)
                first = run_apart(_find_start(chosen, config, sources, ledger))
                floors = {source: max(at, first.floor.get(source, 0)) for source, at in first.positions.items()}
                snapshot = cut_snapshot(first.snapshot, ledger)
                begins[name] = ConsumerPlan("", 0, 0, 0, floors, claim, snapshot=snapshot)
            check_snapshot(config, begins[name].snapshot, ledger)
        return begins

    def _check_end(
        self, config: ConsumerConfig, at: JobPosition, log_ends: Mapping[TopicPartition, int]
    ) -> JobPosition:
        """Return where a consumer begins that its former owner has left `at` a position: there, but not beyond the end of a log
        that has lost its last records, as by an unclean election, since from there on it has other ones. `log_ends`: as in
        `_find_begins`. Raises DataLoss if there is such a log and failOnDataLoss is on.
        """
        beyond = {source: end for source, end in find_read(config, at).items() if end > log_ends.get(source, end)}
        if not beyond:
            return at
        cuts = Planner(self._ask).find_cuts(beyond)
        for source, end in sorted(cuts.items()):
            what = (
                f"consumer {name_of(config)!r} was at offset {beyond[source]}, behind the log's end, {end}: {TRUNCATED}"
            )
            report_loss(f"{source[0]}-{source[1]}", what, self._ask.fails_on_loss)
        return replace(at, offsets=lower(at.offsets, cuts), snapshot=lower(at.snapshot, cuts))


def find_read(config: ConsumerConfig, at: JobPosition) -> dict[TopicPartition, int]:
    """Return the offsets of a consumer's position that its owner has come to, without one that it only waits for: that of the
    first record by `by_start_sequence`, in a stream of one partition."""
    awaited = find_first_offset(config, len(at.offsets))
    return {source: offset for source, offset in at.offsets.items() if offset != awaited}


def check_start(config: ConsumerConfig, partitions: int, ledger: Ledger | None) -> None:
    """Raise NotForSpark if a new consumer begins at a sequence whose place is not known, or with the last messages of
    partitions that have no order.

    `partitions`: of the stream. `ledger`: None if the stream has none. With several partitions only the
    ledger says where a sequence is, and a job reads records before the ledger has them.
    """
    if partitions == 1 and ledger is None:
        return
    stream, name = config.id
    if config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT and ledger is None:
        raise NotForSpark(
            f"consumer {name!r} begins with the last message of each subject, and stream {stream!r} has {partitions}"
            " partitions and no ledger that says which one is the last. The service makes one: run it over the stream first"
        )
    if config.deliver_policy is not DeliverPolicy.BY_START_SEQUENCE:
        return
    instead = "Or begin with by_start_time"
    if ledger is None:
        raise NotForSpark(
            f"consumer {name!r} begins at sequence {config.opt_start_seq}, and stream {stream!r} has {partitions} partitions"
            f" and no ledger that says where this is. The service makes one: run it over the stream first. {instead}"
        )
    if config.opt_start_seq > ledger.next_sequence:
        raise NotForSpark(
            f"consumer {name!r} begins at sequence {config.opt_start_seq}, and the ledger of stream {stream!r} has come to"
            f" {ledger.next_sequence - 1}. Let the service come to that sequence first. {instead}"
        )


def cut_snapshot(snapshot: Mapping[TopicPartition, int], ledger: Ledger | None) -> Mapping[TopicPartition, int]:
    """Return a new consumer's snapshot (by partition, the offset before which it is given only the last messages), cut to
    what has sequences in the ledger; unchanged without a ledger.

    Among later records no order over the partitions says which is a subject's last. So they are
    delivered like all that come after the snapshot.
    """
    return snapshot if ledger is None else {s: min(end, ledger.end_of(s)) for s, end in snapshot.items()}


def check_snapshot(config: ConsumerConfig, snapshot: Mapping[TopicPartition, int], ledger: Ledger | None) -> None:
    """Raise NotForSpark if a consumer's snapshot is of several partitions, and there is no ledger or it ends before
    the snapshot does in one of them. A snapshot of one partition needs no ledger.
    """
    if len(snapshot) > 1 and any(ledger is None or ledger.end_of(source) < end for source, end in snapshot.items()):
        raise NotForSpark(
            f"consumer {config.id[1]!r} of stream {config.id[0]!r} is given the last message of each subject, and the"
            " stream's ledger does not reach to the end of these. Let the service write the ledger up to there first"
        )


async def _find_start(
    chosen: Chosen, config: ConsumerConfig, sources: Sequence[TopicPartition], ledger: Ledger | None
) -> Start:
    stream = chosen.stream
    async with connect(chosen.kafka) as (admin, client):
        for topic in stream.topic_names:
            await client.add_topic(topic)
        return await find_start(client, admin, config, stream, sources, ledger, Index(stream))


def _make_readers(
    chosen: Chosen, facts: Mapping[str, TopicFacts]
) -> tuple[tuple[TopicPartition, ...], tuple[JobReader, ...]]:
    """Return every output partition, in the order of the numbers of writers, and the readers of the consumers, without
    floors: those are in the plan of a batch."""
    first: dict[str, int] = {}
    writers: list[TopicPartition] = []
    readers: list[JobReader] = []
    stream = chosen.stream
    for config in chosen.configs:
        topic = replace(make_output_topic(facts[config.deliver_subject], config), transactional=True)
        if topic.topic not in first:
            first[topic.topic] = len(writers)
            writers += ((topic.topic, partition) for partition in range(topic.partitions))
        accepts, values = compile_filter(config.filter, stream), choose_values(config.filter, stream)
        letters = facts[config.dead_letter_topic] if config.dead_letter_topic else None
        readers.append(
            JobReader(
                config.id, patterns(config), accepts, values, topic, first[topic.topic],
                dead_letter_topic=replace(make_dead_letter_topic(letters, config), transactional=True) if letters else None,
            )
        )  # fmt: skip
    return tuple(writers), tuple(readers)


def make_plan(ask: Ask, configs: Sequence[ConsumerConfig], find_ledger: FindLedger) -> Plan:
    """Return the function that plans the tasks for some consumers, by their numbers, without the chunks that none wants.

    `find_ledger`: as for JobFolder.
    """
    made: dict[tuple[int, ...], Ask] = {}

    def plan(
        ends: Ends, numbers: Sequence[int], *, may_lose: bool = False, ranges: Ranges | None = None
    ) -> list[TaskPartition]:
        chosen = tuple(numbers)
        if chosen not in made:
            made[chosen] = narrow(ask, [configs[number] for number in chosen])
        return Planner(made[chosen]).plan_between(ends, may_lose=may_lose, ranges=ranges, ledger=find_ledger())

    return plan


def make_search(ask: Ask, configs: Sequence[ConsumerConfig], find_ledger: FindLedger) -> Search:
    """Return the function that finds the last messages of a consumer, by its number. `find_ledger`: as for JobFolder."""

    def search(
        number: int, offsets: Mapping[TopicPartition, int], snapshot: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Ints]:
        planner = Planner(narrow(ask, [configs[number]]))
        kept = find_ledger()
        ledger = planner.find_ledger() if kept is None else kept
        lows = dict(offsets) if ledger is None else find_lows(offsets, ledger)
        found = planner.find_lasts({source: (min(lows.get(source, end), end), end) for source, end in snapshot.items()})
        if ledger is not None:
            return merge_lasts(found, ledger)
        return {source: np.sort(np.fromiter(of.values(), np.int64, len(of))) for source, of in found.items()}

    return search


def narrow(ask: Ask, configs: Sequence[ConsumerConfig]) -> Ask:
    """Return the ask with the subjects and the filter of these consumers in place of its own: it finds every record that
    any of them wants, and if they are several, maybe others."""
    stream = ask.request.stream
    if len(configs) == 1:
        (config,) = configs
        accepts, values = compile_filter(config.filter, stream), choose_values(config.filter, stream)
        return replace(ask, request=replace(ask.request, patterns=patterns(config), filter=accepts, values=values))
    subjects = tuple(pattern for config in configs for pattern in patterns(config))
    if not all(config.filters for config in configs):
        subjects = ANYTHING
    return replace(ask, request=replace(ask.request, patterns=subjects, filter=_unite(configs, stream), values=None))


def _unite(configs: Sequence[ConsumerConfig], stream: StreamConfig) -> Filter | None:
    """Return a filter that is true where the `filter.sql` of any of the consumers is. None, which accepts every record, if
    one of them has no `filter.sql`, or if the whole would be too long or too deep."""
    conditions = [config.filter.sql for config in configs]
    texts = sorted({text for text in conditions if text is not None})
    if None in conditions or not texts:
        return None
    try:
        return compile_sql(" OR ".join(f"({text})" for text in texts), stream.properties)
    except OverlayError:  # too long or too deep for one expression: then nothing is skipped by conditions
        return None
