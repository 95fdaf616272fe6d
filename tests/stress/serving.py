"""What a shard of the service does with a fetch: decode, filter, number, seal, assemble.

And what it does for consumers with acks: deliver by a machine, hear acks, deliver again.
"""

from __future__ import annotations

from collections.abc import Sequence

from overlay.config import ConsumerConfig, fill_defaults
from overlay.config.consumer import PartitionBy
from overlay.config.filters import compile_filter
from overlay.dispatch.ack_decoder import AckBatch, AckDecoder
from overlay.dispatch.dispatcher import Dispatcher, Offer
from overlay.dispatch.effect_encoder import EffectEncoder
from overlay.dispatch.served_consumer import Beginning, slot
from overlay.index.ledger.ledger import Ledger
from overlay.index.start_positions import patterns
from overlay.output.assemble import make_envelope
from overlay.output.batch_builder import OutputBatch, OutputTopic
from overlay.replies.reply_address import ReplyRule
from overlay.scan.codec import Codec
from overlay.scan.commit import NO_ABORTS
from overlay.scan.decode import NO_STOP
from overlay.worker.round.pipeline import Pipeline
from overlay.worker.round.task import Reader, RoundResult, Task
from tests.oracle.batches import parse
from tests.oracle.push import TOKEN

from .data import NOW, RECORDS, SOURCE, STREAM, as_buffer, make_buffer, make_fetched, make_stream
from .engine import Answer, Digest, Job, Work

INDEX_TOPIC = "F.index"
ROUND = 150
"""Records of a round."""
NANOSECONDS = 1_000_000
FILTERS = [
    ("far", "distance > 1000 AND leg LIKE 'L%'", 3),
    ("late", "delay >= 10.5 OR plane = 'N14228' OR delay IS NULL", 1),
    ("all", None, 4),
]
ACKED = "acked"


def make_reader(name: str, sql: str | None, partitions: int, *, has_machine: bool = False) -> Reader:
    """Return a push consumer with a SQL filter."""
    settings = {"stream": STREAM, "durable_name": name, "deliver_subject": name, "ack_policy": "none"}
    config = ConsumerConfig.model_validate({**settings, "filter": {"sql": sql}})
    output_topic = OutputTopic(
        name,
        partitions,
        PartitionBy.KEY,
        1 << 20,
        Codec.LZ4,
        True,
        make_envelope(STREAM, name, full=True, source_time=True),
    )
    accepts = compile_filter(config.filter, make_stream())
    return Reader(config.id, patterns(config), output_topic, accepts, has_machine=has_machine)


def run_rounds(readers: tuple[Reader, ...]) -> list[RoundResult]:
    """Serve the flights to readers in a pipeline of their own, some rounds and the end."""
    ledger, fetched = Ledger(), make_fetched(make_buffer())
    pipeline = Pipeline({STREAM: make_stream()}, {}, {STREAM: INDEX_TOPIC}, {STREAM: ledger})
    outcomes = []
    for position in range(0, RECORDS, ROUND):
        stop = min(position + ROUND, NO_STOP)
        task = Task(STREAM, SOURCE, fetched, position, stop, readers, indexed=True, sequenced=True)
        outcomes.append(pipeline.run([task], NOW))
    return [*outcomes, pipeline.close(NOW)]


def open_pipeline() -> Work:
    """Deliver to consumers without machines; seal chunks and give out sequences."""
    readers = tuple(make_reader(*each) for each in FILTERS)

    def work() -> Answer:
        digest = Digest()
        for outcome in run_rounds(readers):
            for ((_, name),), outgoing in outcome.batches:
                digest.add(f"output {name}", outgoing.partition, outgoing.batch.build())
            digest.add("index", *_build(outcome.index))
            digest.add("ledger", *_build(outcome.ledger))
            digest.add("counts", sorted(outcome.counts.delivered.items()), sorted(outcome.results.items()))
            digest.add("counts", sorted(outcome.nulls.items()), [read.unaddressed for read in outcome.counts.reads])
        return digest.finish()

    return work


def _build(batches: Sequence[OutputBatch]) -> list[bytes]:
    return [outgoing.batch.build() for outgoing in batches]


def make_offers(reader: Reader) -> list[Offer]:
    """Return what a consumer with a machine is offered of the flights."""
    return [offer for outcome in run_rounds((reader,)) for _, offer in outcome.offers]


def open_dispatcher() -> Work:
    """Deliver by a machine, read the acks of the deliveries, and deliver again what was not acked."""
    config = ConsumerConfig.model_validate(
        {
            "stream": STREAM,
            "durable_name": ACKED,
            "deliver_subject": "out",
            "ack_wait": 1,
            "interest": "always",
            "max_ack_pending": -1,
        }
    )
    reader = make_reader(ACKED, "distance > 1500", 2, has_machine=True)

    def work() -> Answer:
        digest = Digest()
        offers = make_offers(reader)
        dispatcher = Dispatcher(
            {config.id: slot(fill_defaults(config), Beginning(), 0, reader.output_topic, None)}, EffectEncoder("w")
        )
        dispatcher.take_in(offers, {}, {STREAM: 1}, 1)
        tokens = _give_out(dispatcher, NOW * NANOSECONDS, digest)
        heard = AckDecoder(STREAM, [ACKED], [], ReplyRule("w")).read(as_buffer(tokens[::3], b"+ACK"), 0, NO_ABORTS)
        for each in heard.said[ACKED]:
            assert isinstance(each, AckBatch)
            digest.add("acks", each.verb, each.sequences, each.consumer_seqs, each.deliveries)
        later = (NOW + 10_000) * NANOSECONDS
        dispatcher.take_in((), {config.id: heard.said[ACKED]}, {STREAM: later}, later)
        digest.add("again", sorted(_give_out(dispatcher, later, digest)))
        digest.add("pending", dispatcher.slots[config.id].machine.state.window.pending.count)
        return digest.finish()

    return work


def _give_out(dispatcher: Dispatcher, now: int, digest: Digest) -> list[bytes]:
    """Have the dispatcher deliver all that it can, and return the tokens."""
    tokens: list[bytes] = []
    while True:
        dispatcher.find_wanted()
        work = dispatcher.give_out((), {}, now)
        if not work.delivered:
            return tokens
        digest.add("machine", *work.records.values())
        for _, outgoing in work.batches:
            data = outgoing.batch.build()
            digest.add("deliveries", outgoing.partition, data)
            tokens += [dict(record.headers)[TOKEN] or b"" for batch in parse(data) for record in batch.records]


SERVICE = [Job("pipeline", open_pipeline), Job("dispatcher", open_dispatcher)]
