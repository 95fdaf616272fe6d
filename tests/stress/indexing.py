"""What readers do with an index topic: take in chunk headers and the ledger, and plan what has to be read."""

from __future__ import annotations

from functools import cache

import numpy as np

from overlay.arrays import Bytes
from overlay.client.read.indexes import derive_conditions
from overlay.client.read.question import make_request
from overlay.index.ledger.entries import LedgerEntry, LedgerRun
from overlay.index.ledger.entries import encode as encode_round
from overlay.index.skip.plan import plan
from overlay.index.skip.prune import evaluate
from overlay.index.topic import Index
from overlay.subject import Pattern
from tests.oracle.batches import Record
from tests.support.batches import build

from .data import NOW, RECORDS, SOURCE, STREAM, make_fetched, make_stream
from .engine import Answer, Digest, Job, Work
from .serving import FILTERS, INDEX_TOPIC, make_reader, run_rounds

ROUNDS = 3_000
"""Of the larger ledger, one record each."""
SQL = "distance > 2000 AND leg = 'LAX' OR delay > 400.0"


@cache
def make_small() -> tuple[Bytes, int]:
    """Return the index topic of the flights as a fetch and its end: batches as the service writes them, most of one record."""
    outcomes = run_rounds((make_reader(*FILTERS[0]),))
    batches, offset = list[bytes](), 0
    for outcome in outcomes:
        for outgoing in (*outcome.ledger, *outcome.index):
            batches.append(offset.to_bytes(8, "big") + outgoing.batch.build()[8:])
            offset += outgoing.batch.count
    return np.frombuffer(b"".join(batches), np.uint8), offset


@cache
def make_large() -> tuple[Bytes, int]:
    """Return the index topic of a stream with two partitions: thousands of rounds in large batches."""
    records, sequence = list[Record](), 1
    for at in range(ROUNDS):
        runs = (
            LedgerRun("flights", 0, 3 * at, 2, sequence),
            LedgerRun("flights", 1, 5 * at, 5, sequence + 2),
        )
        records.append(Record(at, NOW, *encode_round(STREAM, LedgerEntry(runs)), []))
        sequence += 7
    batches = [
        build(records[at : at + 700], base_offset=at, codec=3 * (at % 1400 == 0)) for at in range(0, len(records), 700)
    ]
    return np.frombuffer(b"".join(batches), np.uint8), len(records)


def open_index(*, is_large: bool) -> Work:
    """Read an index topic from its start, in an index of one's own."""
    data, end = make_large() if is_large else make_small()

    def work() -> Answer:
        digest, index = Digest(), Index(make_stream())
        index.take(INDEX_TOPIC, make_fetched(data, end))
        digest.add("facts", index.position, index.foreign, index.doubt, len(index.ledger))
        digest.add("ledger", index.ledger.next_sequence)
        for partition in range(2):
            offsets = np.arange(0, 5 * ROUNDS, 11)
            digest.add("sequences", index.ledger.sequence_of((SOURCE[0], partition), offsets))
        chunks = index.of(SOURCE)
        digest.add("chunks", chunks.first_offset, chunks.next_offset, chunks.records, chunks.addressed, chunks.crc)
        digest.add("zones", *((zone.min, zone.max) for name in ("distance", "delay") if (zone := chunks.zone(name))))
        digest.add("subjects", *chunks.subject_counts([Pattern.parse("flights.JFK.>")]))
        return digest.finish()

    return work


def open_planning() -> Work:
    """Ask an index which chunks may hold what a question wants."""
    data, end = make_small()
    request = make_request(make_stream(), is_named=True, now=NOW, sql=SQL, subjects="flights.*.LAX.>")
    index = Index(make_stream())
    index.take(INDEX_TOPIC, make_fetched(data, end))

    def work() -> Answer:
        digest = Digest()
        chunks = index.of(SOURCE)
        answers = evaluate(derive_conditions(request, NOW), chunks)
        route = plan(answers, chunks, 0, RECORDS, exactly=True)
        digest.add("levels", answers.levels, answers.residual)
        digest.add("route", route.first_offset, route.next_offset, route.residual, route.saving)
        return digest.finish()

    return work


INDEXES = [
    Job("index small", lambda: open_index(is_large=False)),
    Job("index large", lambda: open_index(is_large=True)),
    Job("planning", open_planning),
]
