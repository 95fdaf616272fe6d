"""Loading of the kernels, so that the first record does not wait for it.

Numba compiles a kernel at its first call and caches the result on disk. The first start of an
installation takes some tens of seconds, later ones a second or two. Every kernel of the push path
is called here once, on one record. The calls go through the pipeline itself, so that all signatures
are those of real work.
"""

from __future__ import annotations

import gc
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
from overlay.dispatch.reply_address import ReplyRule
from overlay.dispatch.served_consumer import Beginning, slot
from overlay.field import Field, FieldKind
from overlay.index.ledger.allocate import restart
from overlay.index.ledger.ledger import Ledger
from overlay.index.start_positions import patterns
from overlay.kafka.fetcher import Fetched
from overlay.kafka.header_names import TOKEN
from overlay.kafka.log_position import LogPosition
from overlay.logs import get_logger
from overlay.output.assemble import Body, make_envelope
from overlay.output.batch_builder import OutputTopic
from overlay.output.encoded_batch import EncodedBatch, encode_records
from overlay.output.record import Record
from overlay.protobuf import Field as MessageField
from overlay.protobuf import Kind, Message
from overlay.scan import make_plan
from overlay.scan.avro.reader import AvroFormat
from overlay.scan.codec import Codec
from overlay.scan.commit import NO_ABORTS
from overlay.scan.decode import NO_STOP
from overlay.scan.header import split
from overlay.scan.protobuf.reader import ProtobufFormat

from .round.pipeline import Pipeline
from .round.task import Reader, Task

log = get_logger(__name__)

_STREAM = {
    "name": "W",
    "topics": ("w",),
    "subject": {"template": "{header:h}.{value:v}.{key}"},
    "index": {"terms": ("b",), "zones": ("v", "d"), "chunk_records": 1},
    "properties": {"v": {"type": "long", "from": "{value:v}"}, "d": "double", "b": "boolean", "t": "timestamp"},
}
_SQL = "h = 'x' AND v = 1 AND d IS NULL AND b IS NULL AND t IS NULL AND p.subject <> '' AND p.to = 'w'"
_RECORD = b'\x24\x00\x00\x00\x02k\x0e{"v":1}\x02\x02h\x02x'


def load_kernels() -> None:
    """Compile the numba kernels that serving consumers needs, or load them from the cache on disk.
    Blocks, up to a minute at the first start of an installation.

    It runs them on a made-up record, without Kafka. All objects made so far are then left out of
    garbage collection.
    """
    began = monotonic()
    log.info("loading kernels; the first start of an installation compiles them, which takes up to a minute")
    stream = StreamConfig.model_validate(_STREAM)
    body = Body(np.frombuffer(_RECORD, np.uint8), len(_RECORD), 1)
    for codec in (Codec.NONE, Codec.LZ4):
        data = np.frombuffer(EncodedBatch(body, codec, transactional=True).build(), np.uint8)
        fetched = Fetched(0, data, split(data).batches, NO_ABORTS, 1, 0, LogPosition(1))
        plain = tuple(_make_reader(stream, *each) for each in (("a", 1, None), ("b", 3, None), ("c", 1, _SQL)))
        readers = (*plain, replace(plain[0], id=("W", "m"), has_machine=True))
        task = Task("W", ("w", 0), fetched, 0, NO_STOP, readers, indexed=True, sequenced=True)
        ledger = Ledger()
        outcome = Pipeline({"W": stream}, {}, {"W": "w.index"}, {"W": ledger}).run([task], 0)
        assert ledger.sequence_from(task.source, 0) == ledger.positions_at(1)[task.source] + 1 == 1
        assert sum(outcome.counts.delivered.values()) == len(plain)
        assert ledger.locate(1) is not None
        assert not ledger.append(
            restart(ledger.standing, {task.source: LogPosition(0)})
        )  # as after an unclean election
        _load_dispatcher(plain[0].output_topic, [offer for _, offer in outcome.offers])
    _load_formats()
    # numba leaves a million objects behind that live as long as the process; unfrozen, each full
    # garbage collection would look at all of them and delay deliveries by 100 ms
    gc.collect()
    gc.freeze()
    log.info("kernels loaded", seconds=round(monotonic() - began, 1))


def _load_formats() -> None:
    """Read a field of an Avro value and of a Protobuf message. Only the kernels that this loads are
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


def _make_reader(stream: StreamConfig, name: str, partitions: int, sql: str | None) -> Reader:
    """Return a push consumer that delivers all records, or those that `sql` selects, to an output
    with this many partitions."""
    settings = {"stream": "W", "durable_name": name, "deliver_subject": name, "ack_policy": "none"}
    config = ConsumerConfig.model_validate({**settings, "filter": {"sql": sql}})
    envelope = make_envelope("W", name, full=False, source_time=False)
    output_topic = OutputTopic(name, partitions, PartitionBy.KEY, 1 << 20, Codec.LZ4, True, envelope)
    return Reader(config.id, patterns(config), output_topic, compile_filter(config.filter, stream))


def _load_dispatcher(output_topic: OutputTopic | None, offers: list[Offer]) -> None:
    """Have a dispatcher deliver the message of `offers`, deliver it again after its ack deadline,
    and take its ack. Only the kernels that this loads are wanted."""
    config = ConsumerConfig.model_validate(
        {"stream": "W", "durable_name": "m", "deliver_subject": "a", "ack_wait": 1, "interest": "always"}
    )
    dispatcher = Dispatcher(
        {config.id: slot(fill_defaults(config), Beginning(incarnation="1x1"), 0, output_topic, None)},
        EffectEncoder("w"),
    )
    token = Record(None, b"+ACK", [(TOKEN, b"$JS.ACK._.1x1.W.m.1.1.1.1.1")])
    acks = np.frombuffer(encode_records([token], 0).build(), np.uint8)
    delivered = 0
    for now, offered in ((1, offers), (3, [])):
        dispatcher.take_in(offered, {}, {"W": now}, now)
        dispatcher.find_wanted()
        delivered += sum(dispatcher.give_out((), {}, now).delivered.values())
    heard = AckDecoder("W", ["m"], (), ReplyRule("w")).read(acks, 0, NO_ABORTS)
    dispatcher.take_in((), {config.id: heard.said["m"]}, {"W": 3}, 3)
    dispatcher.give_out((), {}, 3)
    assert delivered == 2
    assert not dispatcher.slots[config.id].machine.state.window.pending.count


if __name__ == "__main__":
    load_kernels()
