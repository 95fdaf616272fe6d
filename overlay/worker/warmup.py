"""Loading of the kernels, so that the first record does not wait for it.

Numba compiles a kernel at its first call with arguments of some types, and caches the result on
disk. The first start of an installation takes a minute or two, later ones a second or two. A
compilation holds the GIL for seconds. If it comes in the middle of work, the worker sends no
heartbeats meanwhile, and Kafka may take it out of its group. So the kernels that serving consumers
needs are called here, on a few records. The calls go through the pipeline, the index and the
dispatcher themselves, so that the types are those of real work. Types differ in what is easily
overlooked: a buffer that is read only or not, and a column that is contiguous (of a single record
batch) or not (of several).

tests/sim/test_warmup.py finds kernels that histories compile after the warm-up.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from overlay.avro import parse_schema
from overlay.clock import monotonic
from overlay.config import ConsumerConfig, StreamConfig, fill_defaults
from overlay.config.consumer import PartitionBy
from overlay.config.filters import compile_filter
from overlay.dispatch.ack_decoder import AckDecoder
from overlay.dispatch.dispatcher import Dispatcher, Offer
from overlay.dispatch.effect_encoder import EffectEncoder
from overlay.dispatch.served_consumer import Beginning, slot
from overlay.field import Field, FieldKind
from overlay.index.ledger.allocate import restart
from overlay.index.ledger.ledger import Ledger
from overlay.index.pending.last_per_subject import LastPerSubject
from overlay.index.start_positions import patterns
from overlay.index.topic import Index
from overlay.kafka.fetched import Fetched
from overlay.kafka.header_names import TOKEN
from overlay.kafka.log_position import LogPosition
from overlay.kernel_progress import progress
from overlay.logs import get_logger
from overlay.output.assemble import Body, make_envelope
from overlay.output.batch_builder import OutputTopic
from overlay.output.encoded_batch import EncodedBatch, encode_records
from overlay.output.record import Record
from overlay.protobuf import Field as MessageField
from overlay.protobuf import Kind, Message
from overlay.replies.reply_address import ReplyRule
from overlay.scan import make_plan
from overlay.scan.avro.reader import AvroFormat
from overlay.scan.codec import Codec
from overlay.scan.commit import NO_ABORTS
from overlay.scan.decode import NO_STOP
from overlay.scan.header import split
from overlay.scan.protobuf.reader import ProtobufFormat
from overlay.schemas.ids import find_ids
from overlay.subject import Pattern

from .cursors.skip_route import plan_route
from .round.pipeline import Pipeline
from .round.task import Reader, Task

log = get_logger(__name__)

_STREAM: dict[str, object] = {
    "name": "W",
    "topics": ("w",),
    "subject": {"template": "{header:h}.{value:v}.{key}"},
    "index": {"terms": ("b",), "zones": ("v", "d")},
    "properties": {"v": {"type": "long", "from": "{value:v}"}, "d": "double", "b": "boolean", "t": "timestamp"},
}
_PLAIN: dict[str, object] = {"name": "P", "topics": ("w",)}
"""A stream whose subjects are read where they stand in a record."""
_SQL = "h = 'x' AND v = 1 AND d IS NULL AND b IS NULL AND t IS NULL AND p.subject <> '' AND p.to = 'w'"
_RECORD = b'\x24\x00\x00\x00\x02k\x0e{"v":1}\x02\x02h\x02x'


def load_kernels() -> None:
    """Compile the numba kernels that serving consumers needs, or load them from the cache on disk.
    Blocks, up to two minutes at the first start of an installation.

    It runs them on made-up records, without Kafka. All objects made so far are then left out of
    garbage collection.
    """
    began = monotonic()
    log.info("loading kernels")
    for fields, codec in itertools.product((_STREAM, _PLAIN), (Codec.NONE, Codec.LZ4)):
        _load_pipeline(fields, codec, batches=1, chunk_batches=1)
        _load_pipeline(fields, codec, batches=4, chunk_batches=2)
    _load_formats()
    # numba leaves a million objects behind that live as long as the process; unfrozen, each full
    # garbage collection would look at all of them and delay deliveries by 100 ms
    gc.collect()
    gc.freeze()
    log.info("kernels loaded", seconds=round(monotonic() - began, 1))


def _load_pipeline(fields: dict[str, object], codec: Codec, *, batches: int, chunk_batches: int) -> None:
    """Have a pipeline work on a fetch of so many batches, each of one record, and pass what it makes on to an index
    and, for a single batch, to a dispatcher. Only the kernels that this loads are wanted.

    `fields`: of the stream's file. `chunk_batches`: how many batches a chunk of the index has.
    """
    made = StreamConfig.model_validate(fields)
    stream = made.model_copy(update={"index": made.index.model_copy(update={"chunk_records": chunk_batches})})
    name = stream.name
    body = Body(np.frombuffer(_RECORD, np.uint8), len(_RECORD), 1)
    fetched = _fetch([EncodedBatch(body, codec, transactional=True)] * batches)
    plain = tuple(_make_reader(stream, *each) for each in (("a", 1, None), ("b", 3, None)))
    if stream.properties:
        plain += (_make_reader(stream, "c", 1, _SQL),)
    other = replace(_make_reader(stream, "o", 1, None), subjects=(Pattern("k"),))
    readers = (*plain, other, replace(plain[0], id=(name, "m"), has_machine=True))
    task = Task(name, ("w", 0), fetched, 0, NO_STOP, readers, indexed=True, sequenced=True)
    ledger = Ledger()
    outcome = Pipeline({name: stream}, {}, {name: "w.index"}, {name: ledger}).run([task], 0)
    assert ledger.sequence_from(task.source, 0) == ledger.positions_at(1)[task.source] + 1 == 1
    assert sum(outcome.counts.delivered.values()) >= len(plain) * batches
    assert ledger.locate(1) is not None
    # as after an unclean election
    assert not ledger.append(restart(ledger.standing, {task.source: LogPosition(0)}))
    entries, headers = ([made.batch for made in each] for each in (outcome.ledger, outcome.index))
    _load_index(stream, readers, entries, headers)
    if batches == 1:
        _load_dispatcher(name, plain[0].output_topic, [offer for _, offer in outcome.offers])


def _fetch(batches: Sequence[EncodedBatch]) -> Fetched:
    """Return what a fetch of these batches brings, with offsets from 0 on."""
    first, pieces = 0, []
    for batch in batches:
        pieces.append(first.to_bytes(8, "big") + batch.build()[8:])
        first += batch.count
    data = np.frombuffer(b"".join(pieces), np.uint8)
    return Fetched(0, data, split(data).batches, NO_ABORTS, first, 0, LogPosition(first))


def _load_index(
    stream: StreamConfig, readers: Sequence[Reader], entries: list[EncodedBatch], headers: list[EncodedBatch]
) -> None:
    """Read ledger entries and chunk headers, as a takeover does, and plan by them what a cursor
    skips and where the last messages of subjects are. Only the kernels that this loads are wanted.
    """
    index = Index(stream)
    # headers that come again, as after a rebuild, replace the first ones: all of them, then the first one alone
    index.take("w.index", _fetch(entries + headers))
    index.take("w.index", _fetch(headers))
    index.take("w.index", _fetch(headers), 1)
    chunks = index.of(("w", 0))
    assert index.foreign == 0 and chunks.subject_counts([Pattern(">")])[0].any()
    plan_route(readers, stream, chunks, 0, 0)
    plan_route([replace(readers[0], subjects=(Pattern("none.such"),))], stream, chunks, 0, 0)
    assert LastPerSubject(chunks, [Pattern(">")], 0, 1).next()


def _load_formats() -> None:
    """Read a field of an Avro value and of a Protobuf message, and a schema's id. Only the kernels that this loads are
    wanted.
    """
    plan = make_plan([Field(FieldKind.VALUE, "v")])
    schema = parse_schema({"type": "record", "name": "W", "fields": [{"name": "v", "type": "long"}]})
    message = Message("W", {"v": MessageField("v", 1, Kind.INT64, is_repeated=False, has_presence=False)})
    formats = (
        (AvroFormat({0: schema}, is_framed=False), b"\x02"),
        (ProtobufFormat({0: [((0,), message)]}, is_framed=False), b"\x08\x01"),
    )
    for declared, value in formats:
        extractor = declared.prepare(plan.paths)
        at, size = np.zeros((plan.width, 1), np.int64), np.full((plan.width, 1), len(value), np.int64)
        buf = np.zeros(len(value) + int(extractor.find_room(size[0])[0]), np.uint8)
        buf[: len(value)] = np.frombuffer(value, np.uint8)
        extractor.extract(buf, at, size, plan.value_slot, 0, 1, len(value))
        assert buf[at[0, 0] :][: size[0, 0]].tobytes() == b"1"
    framed = np.frombuffer(encode_records([Record(None, b"\0\0\0\0\7\2", [])], 0).build(), np.uint8)
    assert find_ids(framed, 0, NO_ABORTS) == {7: 0}


def _make_reader(stream: StreamConfig, name: str, partitions: int, sql: str | None) -> Reader:
    """Return a push consumer that delivers all records, or those that `sql` selects, to an output
    with this many partitions."""
    settings = {"stream": stream.name, "durable_name": name, "deliver_subject": name, "ack_policy": "none"}
    config = ConsumerConfig.model_validate({**settings, "filter": {"sql": sql}})
    envelope = make_envelope(stream.name, name, full=False, source_time=False)
    output_topic = OutputTopic(name, partitions, PartitionBy.KEY, 1 << 20, Codec.LZ4, True, envelope)
    return Reader(config.id, patterns(config), output_topic, compile_filter(config.filter, stream))


def _load_dispatcher(stream: str, output_topic: OutputTopic | None, offers: list[Offer]) -> None:
    """Have a dispatcher deliver the message of `offers`, deliver it again after its ack deadline,
    and take its ack. Only the kernels that this loads are wanted."""
    config = ConsumerConfig.model_validate(
        {"stream": stream, "durable_name": "m", "deliver_subject": "a", "ack_wait": 1, "interest": "always"}
    )
    dispatcher = Dispatcher(
        {config.id: slot(fill_defaults(config), Beginning(incarnation="1x1"), 0, output_topic, None)},
        EffectEncoder("w"),
    )
    token = Record(None, b"+ACK", [(TOKEN, f"$JS.ACK._.1x1.{stream}.m.1.1.1.1.1".encode())])
    acks = np.frombuffer(encode_records([token], 0).build(), np.uint8)
    delivered = 0
    for now, offered in ((1, offers), (3, [])):
        dispatcher.take_in(offered, {}, {stream: now}, now)
        dispatcher.find_wanted()
        delivered += sum(dispatcher.give_out((), {}, now).delivered.values())
    heard = AckDecoder(stream, ["m"], (), ReplyRule("w")).read(acks, 0, NO_ABORTS)
    dispatcher.take_in((), {config.id: heard.said["m"]}, {stream: 3}, 3)
    dispatcher.give_out((), {}, 3)
    assert delivered == 2
    assert not dispatcher.slots[config.id].machine.state.window.pending.count


def log_progress(done: int, of: int) -> None:
    """Log how many kernels are compiled; a teller for overlay/kernel_progress.py."""
    log.info("compiling kernels, once for this installation, which takes a minute or two", done=done, of=of)


if __name__ == "__main__":
    progress.tell = log_progress
    load_kernels()
