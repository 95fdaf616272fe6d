"""The start of a job: its consumers and outputs are looked up, and its query begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from overlay.clock import now_ms
from overlay.config import ConsumerConfig, Loaded
from overlay.config.filters import compile_filter
from overlay.errors import OverlayError
from overlay.index.start_positions import Start, find_start, patterns
from overlay.index.topic import Index
from overlay.kafka.admin import TopicFacts, connect
from overlay.kafka.log_position import TopicPartition
from overlay.match import choose_values
from overlay.output.topics import ensure_topics, make_output_topic
from spark.lease import run_apart
from spark.options import read_options
from spark.output import Output
from spark.partitions import TaskPartition
from spark.plan import Planner

from .job import Job, name_of
from .journal import Journal
from .ranges import NAME, RangesSource
from .readers import JobReader, JobScan
from .records import Ends


@dataclass(frozen=True, slots=True)
class Chosen:
    """The consumers of one stream that a job runs, in the order of their names."""

    loaded: Loaded
    outputs: tuple[Output, ...]

    @property
    def stream(self) -> str:
        return self.outputs[0].stream.name

    @property
    def configs(self) -> tuple[ConsumerConfig, ...]:
        return tuple(output.consumer for output in self.outputs)


@contextmanager
def start_job(
    spark: SparkSession,
    chosen: Chosen,
    name: str,
    checkpoint: str,
    *,
    once: bool,
    options: Mapping[str, str],
    check_owner: Callable[[], None],
    note: Callable[[Mapping[str, int]], None],
) -> Iterator[StreamingQuery]:
    """Run the job of some consumers as a query, which is stopped at the end of the block.

    `name`: of the job, under which its state is kept. `once`: end with what there is now. `options`:
    more options of format("overlay"). `note`: called with the records delivered to each consumer.
    Raises OverlayError; later errors come out of the query.
    """
    kafka, prefix, stream = chosen.outputs[0].kafka, chosen.outputs[0].prefix, chosen.outputs[0].stream
    replication = chosen.loaded.service.topics.replication
    facts = run_apart(ensure_outputs(chosen))
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(kafka, prefix, name, replication))
        planner = Planner(read_options(_choose_options(chosen, chosen.configs, options)))
        floors = _find_floors(chosen, journal, planner)
        writers, readers = _make_readers(chosen, facts, floors)
        scan = JobScan(kafka, prefix, stream, readers, now_ms(), planner.ask.fails_on_loss)

        def plan(ends: Ends, consumers: Sequence[int]) -> list[TaskPartition]:
            configs = [chosen.configs[number] for number in consumers]
            return Planner(read_options(_choose_options(chosen, configs, options))).plan_between(ends)

        job = Job(
            spark, name, journal, stream, chosen.configs, scan, plan, check_owner, note, now_ms, writers, floors
        )  # fmt: skip
        spark.dataSource.register(RangesSource)
        starting = {"startingOffsets": _spell_start(floors)} if "startingOffsets" not in options else {}
        source = _choose_options(chosen, chosen.configs, {**starting, **options})
        frame = spark.readStream.format(NAME).options(**source).load()
        writer = frame.writeStream.foreachBatch(job.deliver).option("checkpointLocation", f"{checkpoint}/query")
        query = (writer.trigger(availableNow=True) if once else writer).queryName(f"overlay {name}").start()
        stack.callback(query.stop)
        yield query


async def ensure_outputs(chosen: Chosen) -> dict[str, TopicFacts]:
    """Create the output topics that are missing. Return all. Raises OverlayError."""
    async with connect(chosen.outputs[0].kafka) as (admin, _):
        found, refused = await ensure_topics(admin, chosen.configs, chosen.loaded.service.topics.replication)
    for output in chosen.outputs:
        if output.topic in refused:
            raise OverlayError(refused[output.topic])
    return found


def _find_floors(chosen: Chosen, journal: Journal, planner: Planner) -> dict[str, dict[TopicPartition, int]]:
    """Return where each consumer begins: by name and partition, the offset below which it is given nothing."""
    floors: dict[str, dict[TopicPartition, int]] = {}
    known = journal.last.consumers if journal.last is not None else {}
    bounds = planner.look()
    sources = [each.source for each in bounds.offset_ranges]
    for config in chosen.configs:
        if name_of(config) in known:
            floors[name_of(config)] = dict(known[name_of(config)].floors)
            continue
        start = run_apart(_find_start(chosen, config, sources))
        floors[name_of(config)] = {
            source: max(at, start.floor.get(source, 0)) for source, at in start.positions.items()
        }
    return floors


async def _find_start(chosen: Chosen, config: ConsumerConfig, sources: Sequence[TopicPartition]) -> Start:
    stream = chosen.outputs[0].stream
    async with connect(chosen.outputs[0].kafka) as (admin, client):
        for topic in stream.topic_names:
            await client.add_topic(topic)
        return await find_start(client, admin, config, stream, sources, None, Index(stream))


def _make_readers(
    chosen: Chosen, facts: Mapping[str, TopicFacts], floors: Mapping[str, Mapping[TopicPartition, int]]
) -> tuple[tuple[TopicPartition, ...], tuple[JobReader, ...]]:
    """Return every output partition, in the order of the numbers of writers, and the readers of the consumers."""
    first: dict[str, int] = {}
    writers: list[TopicPartition] = []
    readers: list[JobReader] = []
    stream = chosen.outputs[0].stream
    for config in chosen.configs:
        topic = replace(make_output_topic(facts[config.deliver_subject], config), transactional=True)
        if topic.topic not in first:
            first[topic.topic] = len(writers)
            writers += ((topic.topic, partition) for partition in range(topic.partitions))
        accepts, values = compile_filter(config.filter, stream), choose_values(config.filter, stream)
        floor = floors[name_of(config)]
        readers.append(JobReader(config.id, patterns(config), accepts, values, topic, first[topic.topic], floors=floor))
    return tuple(writers), tuple(readers)


def _choose_options(chosen: Chosen, configs: Sequence[ConsumerConfig], options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of format("overlay") for what some consumers want together."""
    folder = str(Path(chosen.loaded.files[""].file).parent)
    found = {"columns": "sequence,offset", **options, "config": folder, "stream": chosen.stream}
    if len(configs) == 1:
        return {**found, "consumer": configs[0].id[1]}
    subjects = {str(pattern) for config in configs for pattern in config.filters}
    if subjects and all(config.filters for config in configs):
        found["subjects"] = ",".join(sorted(subjects))
    return found


def _spell_start(floors: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    """Return the first offset that any consumer wants of each partition, as the option startingOffsets."""
    lowest: dict[TopicPartition, int] = {}
    for of in floors.values():
        for source, at in of.items():
            lowest[source] = min(at, lowest.get(source, at))
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), at in sorted(lowest.items()):
        found.setdefault(topic, {})[str(partition)] = at
    return json.dumps(found)
