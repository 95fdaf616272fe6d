"""Scans: fields of headers and of JSON values, and what a reading of the client library makes of them."""

from __future__ import annotations

from overlay.client.read.offset_ranges import OffsetRange
from overlay.client.read.question import make_request
from overlay.client.read.row_filter import RowFilter
from overlay.field import Field, FieldKind
from overlay.scan import Decoder, Records, make_plan

from .data import NOW, RECORDS, SOURCE, make_buffer, make_fetched, make_stream
from .engine import Answer, Digest, Job, Work

SHALLOW = ["distance", "leg.to", "plane.tail"]
DEEP = ["leg", "leg.from", "times.delay", "times.hour", "plane.of.leg.to", "plane.of", "note", "times.missing.a"]
HEADERS = ["origin", "dest", "carrier"]


def open_scan(paths: list[str], codec: int, part: int = RECORDS) -> Work:
    """Find fields in the records below offset `part`, in one decoder's buffers again and again."""
    fields = [
        *(Field(FieldKind.HEADER, name) for name in HEADERS),
        *(Field(FieldKind.VALUE, path) for path in paths),
        Field(FieldKind.KEY),
    ]
    decoder, buf = Decoder(make_plan(fields)), make_buffer(codec)

    def work() -> Answer:
        digest = Digest()
        for piece in decoder.decode(buf, stop=part):
            assert isinstance(piece, Records)
            there = piece.size >= 0
            digest.add("records", piece.offset, piece.timestamp, piece.body, piece.end)
            digest.add("size", piece.size)
            digest.add("at", piece.at[there])
        return digest.finish()

    return work


def open_reading(sql: str, subjects: str) -> Work:
    """Read what passes a filter, as Arrow batches."""
    columns = ["subject", "sequence", "timestamp", "key", "value", "headers", "offset"]
    request = make_request(make_stream(), is_named=True, now=NOW, columns=columns, sql=sql, subjects=subjects)
    row_filter, fetched = RowFilter(request, sequenced=True), make_fetched(make_buffer())

    def work() -> Answer:
        digest = Digest()
        for part in row_filter.sift(OffsetRange(SOURCE, 0, RECORDS), fetched, NOW):
            digest.add("times", *part.times)
            digest.add("rows", *(batch.to_pydict() for batch in part.batches))
            digest.add("facts", part.position, part.scanned, part.unknown, sorted(part.nulls.items()))
        return digest.finish()

    return work


SCANS = [
    Job("extract shallow", lambda: open_scan(SHALLOW, 0, 200)),
    Job("extract deep", lambda: open_scan(DEEP, 0, 200)),
    Job("scan lz4", lambda: open_scan(DEEP, 3)),
]
READINGS = [
    Job("reading", lambda: open_reading("distance > 1000 AND leg LIKE 'L%' AND carrier <> 'UA'", "flights.JFK.>")),
]
