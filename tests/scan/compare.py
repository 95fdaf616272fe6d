"""What the scan makes of a buffer and what the oracle makes of it, in one form that can be compared.

A reading is a list of records and faults in the order in which they come. Records are read back from the positions that
the scan gives; so a position that is off shows as a wrong record, and one outside the buffer as an error of the cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from overlay.arrays import Bytes
from overlay.field import Field, FieldKind
from overlay.scan import Decoder, Malformed, Plan, Records, make_plan
from tests.oracle import batches as oracle
from tests.oracle.batches import Header, Record

NAMES = ["origin", "dest", "größe", "absent"]
PLAN = make_plan([Field(FieldKind.HEADER, name) for name in NAMES] + [Field(FieldKind.KEY)])
NO_STOP = 1 << 62


@dataclass(frozen=True, slots=True)
class Fault:
    base_offset: int


@dataclass(slots=True)
class Reading:
    seen: list[Record | Fault] = field(default_factory=list)
    fields: list[list[bytes | None]] = field(default_factory=list)  # per record, in the plan's order
    next_offset: int = 0

    @property
    def faults(self) -> list[Fault]:
        return [one for one in self.seen if isinstance(one, Fault)]

    def until_fault(self) -> list[Record | Fault]:
        """As a stream with `on_corrupt: stop` reads: up to the first fault, that one included."""
        at = next((i for i, one in enumerate(self.seen) if isinstance(one, Fault)), len(self.seen))
        return self.seen[: at + 1]


def as_array(buf: bytes) -> Bytes:
    return np.frombuffer(buf, np.uint8)


def read_scan(
    buf: Bytes,
    decoder: Decoder,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    position: int = 0,
    stop: int = NO_STOP,
    committed: bool = True,
) -> Reading:
    pairs = np.array(aborted, np.int64).reshape(-1, 2)
    reading = Reading(next_offset=position)
    for piece in decoder.decode(buf, position, stop=stop, aborted=pairs, committed=committed):
        match piece:
            case Malformed():
                reading.seen.append(Fault(piece.base_offset))
            case Records():
                for row in range(len(piece)):
                    reading.seen.append(read_row(piece, row))
                    reading.fields.append(read_fields(decoder.plan, piece, row))
        reading.next_offset = piece.next_offset
    return reading


def read_row(piece: Records, row: int) -> Record:
    at, end = int(piece.body[row]), int(piece.end[row])
    assert 0 <= at < end <= piece.buf.size
    cursor = oracle.Cursor(0, piece.buf[:end].tobytes(), at, end)
    key, value = cursor.nullable("key"), cursor.nullable("value")
    headers: list[Header] = [oracle.parse_header(cursor) for _ in range(cursor.varint("header count"))]
    assert cursor.at == end
    return Record(int(piece.offset[row]), int(piece.timestamp[row]), key, value, headers)


def read_fields(plan: Plan, piece: Records, row: int) -> list[bytes | None]:
    texts: list[bytes | None] = []
    for slot in range(len(plan.fields)):
        at, size = int(piece.at[slot, row]), int(piece.size[slot, row])
        if size < 0:
            texts.append(None)
            continue
        assert int(piece.body[row]) <= at <= at + size <= int(piece.end[row])
        texts.append(piece.buf[at : at + size].tobytes())
    return texts


def read_oracle(
    buf: bytes,
    aborted: Sequence[tuple[int, int]] = (),
    *,
    position: int = 0,
    stop: int = NO_STOP,
    committed: bool = True,
) -> Reading:
    batches, broken = oracle.survey(buf)
    reading = Reading(next_offset=position)
    for one in oracle.pick_committed(batches, aborted if committed else ()):
        if isinstance(one, oracle.Malformed):
            batch = next(batch for batch in batches if batch.base_offset == one.base_offset)
            if batch.last_offset >= position and batch.base_offset < stop:
                reading.seen.append(Fault(one.base_offset))
        elif position <= one.offset < stop:
            reading.seen.append(one)
            reading.fields.append(pick_fields(one))
    ends = [batch.last_offset + 1 for batch in batches if batch.base_offset < stop]
    reading.next_offset = max([position, *(min(end, stop) for end in ends)])
    if broken is not None and broken.base_offset < stop:
        reading.seen.append(Fault(broken.base_offset))
    return reading


def pick_fields(record: Record) -> list[bytes | None]:
    """The fields of PLAN: of headers with the same name the last one counts, be it null."""
    headers = dict(record.headers)
    return [*(headers.get(name.encode()) for name in NAMES), record.key]


def has_odd_markers(buf: bytes) -> bool:
    """Whether a control batch is compressed or broken within: the scan reads no more of a marker than its type."""
    return any(batch.is_control and (batch.fault or batch.codec) for batch in oracle.survey(buf)[0])
