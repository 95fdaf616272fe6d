"""A write task of a job: blocks in, one Kafka transaction out for each output partition.

A writer is the one task that writes an output partition in a batch. Its steps:

1. InitProducerId under the writer's own transactional id. It fences an earlier attempt of the task,
   a speculative twin, and the tasks of a driver that was replaced. It ends their open transaction.
2. Read the last commit in the writer's partition of the state topic. If it is of this batch, or of
   a later one, the deliveries are there already, and nothing is written. If it is of this batch by
   another plan, the task fails.
3. Number, assemble, compress and send the blocks in their order, while the next ones are read.
4. Write the commit of this batch into the state, and commit the transaction.

A task that was fenced ends with an error. If its process or its machine stood still for long, the task's deadlines may
have passed before it hears that it was fenced. Then it reads the state once more, as for any unknown outcome, when the
marker of what was committed is there.

So the deliveries of a batch in an output partition are committed once, whichever process is killed, and
when. No transaction spans several output partitions, as none has to (docs/exactly-once.md#spark-jobs).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints
from overlay.client.connection import Connection
from overlay.consumer.endings import give_up
from overlay.errors import DeliveryFailed, Fenced, OverlayError, SourceUnavailable
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import job_topic, writer_id
from overlay.match.record_slice import RecordSlice
from overlay.output.assemble import Numbers
from overlay.output.batch_builder import BatchBuilder, OutputBatch, OutputTopic, refuse_oversized
from overlay.output.dead_letters import encode_dead_letters
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions
from overlay.state.job_log import await_settled, read_last
from overlay.state.job_plan import WriterCommit
from overlay.state.job_plan_codec import decode_commit, encode_commit
from spark.kept import keep_connections

from .ahead import count_pending
from .blocks import unpack
from .order import Merging, Part, find_places
from .readers import JobScan
from .runs import Merge

SEND_BYTES = 4 << 20
"""Bytes of full batches that are sent together."""
TRANSACTION_MS = 600_000
"""Longest time that the transaction of a batch may take."""

OUTCOME = pa.schema([pa.field("writer", pa.int32(), nullable=False), pa.field("records", pa.int64(), nullable=False)])
OUTCOME_DDL = "writer int, records bigint"
"""What a write task tells the driver: `records` are those that it wrote, THERE if they were there already."""
THERE = -1


class BatchChanged(OverlayError):
    """A scan task has found another number of records for a writer than when the batch was counted. If Spark's retries
    do not help, the operator starts the job again, which counts the batch anew.
    """


@dataclass(frozen=True, slots=True)
class JobWrite:
    """What every write task of a batch has to know.

    `plan`: the fingerprint of the batch's plan. `before`: int64 [tasks, consumers], the consumer sequence before the
    first record that a scan task found for a consumer. `ahead`: int64 [tasks, consumers], the consumer's records ahead
    before the task (`Passing.sum_ahead`). `counts`: int64 [tasks, writers], the records of each. `writers`: the output
    partition of each writer; `states`: its partition of the state topic. `merges`: by task and consumer, where the
    deliveries of the task are in the order of the stream (order.py). Of such a consumer `before` and `ahead` are those of
    the whole batch.
    """

    scan: JobScan
    job: str
    batch: int
    plan: str
    before: Ints = field(repr=False)
    ahead: Ints = field(repr=False)
    counts: Ints = field(repr=False)
    writers: tuple[TopicPartition, ...]
    states: Mapping[TopicPartition, int]
    merges: Mapping[tuple[int, int], Merge] = field(default_factory=dict, repr=False)


def write(job: JobWrite, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the blocks, a transaction for each writer, and yield a batch with a row of OUTCOME for each of them; nothing
    without blocks. `batches`: of blocks.SCHEMA, the blocks of a writer together and in order of task and number, or of
    place, task and number if there are `merges`.

    Raises Fenced if another attempt has taken over, OverlayError if the batch is committed by another plan,
    BatchChanged, DeliveryFailed, SourceUnavailable.
    """
    blocks = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    found: list[tuple[int, int]] = []
    block = next(blocks, None)
    scan = job.scan
    while block is not None:
        own = _OfWriter(block, blocks)

        async def work(line: Connection, own: _OfWriter = own) -> None:
            found.append((own.writer, await _write(job, own, line)))

        keep_connections(scan.kafka, scan.prefix, scan.stream).lines.run(work)
        block = own.drain()
    columns = [pa.array(values, type.type) for values, type in zip(zip(*found, strict=True), OUTCOME, strict=True)]
    if columns:
        yield pa.RecordBatch.from_arrays(columns, schema=OUTCOME)


Block = tuple[int, int, int, int, int, bool, int, int, bytes]


class _OfWriter:
    """An iterator over the blocks of one writer. It takes them from the front of an iterator over the
    blocks of all writers, in which those of a writer are together.
    """

    def __init__(self, first: Block, blocks: Iterator[Block]) -> None:
        self.writer = first[0]
        self._next: Block | None = first
        self._blocks = blocks

    def __iter__(self) -> Iterator[Block]:
        while (block := self._next) is not None and block[0] == self.writer:
            self._next = next(self._blocks, None)
            yield block

    def drain(self) -> Block | None:
        """Pass over the rest, and return the first block of the next writer, None if there is none."""
        for _ in self:
            pass
        return self._next


async def _write(job: JobWrite, blocks: _OfWriter, line: Connection) -> int:
    """Write the batch of one writer. Return the number of records, THERE if they were there already."""
    output = job.writers[blocks.writer]
    try:
        return await _attempt(job, blocks, line)
    except Fenced as error:
        raise Fenced(
            f"{output[0]}-{output[1]}: another attempt of this task has taken over, and writes batch {job.batch} of job"
            f" {job.job!r} or has written it; else this attempt took longer than {TRANSACTION_MS // 1000} s ({error})"
        ) from error
    except (SourceUnavailable, DeliveryFailed):
        # after a standstill the deadlines have passed, although the twin or this task may have committed the batch
        with contextlib.suppress(OverlayError):
            await await_settled(line.admin, job_topic(job.scan.prefix, job.job), job.states[output])
            if await _is_there(job, output, line):
                return THERE
        raise


async def _attempt(job: JobWrite, blocks: _OfWriter, line: Connection) -> int:
    """Take the writer over and write its batch, as `_write`."""
    scan, output = job.scan, job.writers[blocks.writer]
    topic, state = job_topic(scan.prefix, job.job), job.states[output]
    transactions = Transactions(scan.kafka, writer_id(scan.prefix, job.job, output), topic, state, TRANSACTION_MS)
    letters = _list_dead_letter_topics(scan, output[0])
    await transactions.start([output[0], topic, *letters])
    try:
        await transactions.end_lost([output, (topic, state)])
        transactions.doubt_topics(letters)
        if await _is_there(job, output, line):
            return THERE
        builder = _Builder(job, blocks)
        await transactions.begin()
        ready: list[OutputBatch] | None = await asyncio.to_thread(builder.fill)
        while ready:
            sending = asyncio.create_task(transactions.send(ready))
            try:
                ready = await asyncio.to_thread(builder.fill)
            finally:
                await sending
        commit = encode_commit(WriterCommit(job.batch, job.plan, builder.records))
        await transactions.commit(press_entries([Entry(topic, Record(None, commit), state)], scan.now))
        return builder.records
    except BaseException:
        # else readers of the output would wait for the end of the transaction
        await transactions.abort()
        raise
    finally:
        await transactions.close()


def _list_dead_letter_topics(scan: JobScan, output: str) -> list[str]:
    """Return the dead-letter topics of the consumers that deliver to an output topic."""
    mine = [reader.dead_letter_topic for reader in scan.readers if reader.output_topic.topic == output]
    return sorted({topic.topic for topic in mine if topic is not None})


async def _is_there(job: JobWrite, output: TopicPartition, line: Connection) -> bool:
    """Return whether the state says that the batch is committed in an output partition. Raises OverlayError if the commit
    is of another plan, SourceChanged and SourceUnavailable."""
    topic, state = job_topic(job.scan.prefix, job.job), job.states[output]
    found = await read_last(await line.open(), line.admin, topic, state)
    last = None if found is None else decode_commit(found)
    if last is None or last.batch < job.batch:
        return False
    if last.batch == job.batch and last.plan != job.plan:
        raise OverlayError(
            f"{output[0]}-{output[1]}: batch {job.batch} of job {job.job!r} is committed by another plan: another driver"
            " has run it. Stop one of the two"
        )
    return True


class _Found(NamedTuple):
    """The deliveries of a block, for one partition of an output topic."""

    topic: OutputTopic
    target: int
    records: RecordSlice
    numbers: Numbers


class _Builder:
    """The batches of one writer, made from its blocks. Runs in a thread."""

    def __init__(self, job: JobWrite, blocks: _OfWriter) -> None:
        self._job, self._blocks, self._writer = job, iter(blocks), blocks.writer
        self._builder = BatchBuilder()
        self._letters: list[OutputBatch] = []
        self._merging = Merging[_Found]()
        self._found = np.zeros(job.counts.shape[0], np.int64)
        self._is_over = False
        self.records = 0

    def fill(self) -> list[OutputBatch]:
        """Return the next batches, about SEND_BYTES of them; none if the blocks are used up.

        Raises BatchChanged, and DeliveryFailed for a record that its topic can never take.
        """
        ready: list[OutputBatch] = []
        size = 0
        while size < SEND_BYTES and not self._is_over:
            block = next(self._blocks, None)
            self._is_over = block is None
            if block is not None:
                self._add(block)
            else:
                self._put(self._merging.flush())
            taken = self._builder.take() if block is not None else self._builder.flush()
            new = [*(outgoing for _, outgoing in taken), *self._letters]
            self._letters.clear()
            refuse_oversized(((("", ""),), outgoing) for outgoing in new)
            ready += new
            size = sum(outgoing.size for outgoing in ready)
        if self._is_over:
            self._check()
        return ready

    def _add(self, block: Block) -> None:
        writer, task, _, consumer, rows, dead, _, place, data = block
        reader, now = self._job.scan.readers[consumer], self._job.scan.now
        records, ranks, passed = unpack(data)
        every = np.arange(rows, dtype=np.int64)
        if dead:
            assert reader.dead_letter_topic is not None
            letters = [give_up(sequence) for sequence in records.sequences.tolist()]
            self._letters += encode_dead_letters(
                reader.dead_letter_topic, records, every, letters, records.partition, now
            )
        else:
            if (merge := self._job.merges.get((task, consumer))) is not None:
                ranks, passed = merge.place(ranks, passed)
            pending = count_pending(int(self._job.ahead[task, consumer]), passed)
            numbers = Numbers(records.sequences, self._job.before[task, consumer] + 1 + ranks, pending=pending)
            found = _Found(reader.output_topic, writer - reader.first_writer, records, numbers)
            if self._job.merges:
                self._put(self._merging.add(found, find_places(records.sequences, place)))
            else:
                self._put([Part(found, every)])
        self._found[task] += rows
        self.records += rows

    def _put(self, parts: Sequence[Part[_Found]]) -> None:
        for found, rows in parts:
            numbers = found.numbers
            pending = None if numbers.pending is None else numbers.pending[rows]
            own = Numbers(numbers.stream[rows], numbers.consumer[rows], pending=pending)
            self._builder.add_to(found.topic, found.target, found.records, rows, own, self._job.scan.now)

    def _check(self) -> None:
        """Raise BatchChanged unless each scan task has found as many records as when they were counted."""
        expected = self._job.counts[:, self._writer]
        if not np.array_equal(self._found, expected):
            task = int(np.flatnonzero(self._found != expected)[0])
            raise BatchChanged(
                f"scan task {task} has found {self._found[task]} records, and {expected[task]} when they were counted: the log"
                " has lost records meanwhile, by compaction or retention. Nothing of this task is committed. If the query ends"
                " with this error, start the job again with the same checkpoint: it counts the batch anew"
            )
