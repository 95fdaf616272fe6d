"""The walk: from the bytes of decompressed record batches to one row of positions per record.

What. A batch's records follow each other, each with its own length, so they can only be found by
walking them. The walk visits every record once and writes where things are, never what they are:
offset, timestamp, where the record's body begins and ends, and the position and size of each field
that the plan asks for. Later steps read those bytes in place. A record that no filter wants is
never copied and never becomes a Python object.

Why. One pass with the data still in the cache is the whole cost of a scan: some 60 ns a record
beside 100 ns for LZ4. Fields are searched in the same pass because their bytes have just been read.

Trust. Nothing in a batch is trusted beyond its CRC, and the CRC only says that the bytes are those
that the producer sent. Every read is checked against the end of its record; sizes below -1 and
varints without end are LOST (see varint.py). The whole structure of every record is checked,
headers included, whatever the plan asks for: whether a batch is corrupt must never depend on its
reader. A fault is a return value: (records before it, batch index, Fault).

Source of the rule: Kafka's "Record" format. A record is: length, attributes (int8), timestamp delta
(int64 varint), offset delta, key size, key, value size, value, header count, and per header name
size, name, value size, value. All sizes are int32 varints, -1 means null; a header's name cannot be
null. Of headers with the same name the last one counts, as in Kafka's `Headers.lastHeader`.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bool, Bytes, Int, Ints
from overlay.kernels import kernel

from .header import LOG_APPEND_TIME, Batches, Fault
from .states import MISSING
from .varint import LOST, read_long, read_varint, skip


@kernel(inline="always")
def _same(buf: Bytes, at: Int, names: Bytes, first: Int, size: Int) -> Bool:
    for i in range(size):  # noqa: SIM110 - a loop is what numba compiles
        if buf[np.uintp(at + i)] != names[np.uintp(first + i)]:
            return False
    return True


@kernel
def _headers(
    buf: Bytes, pos: Int, end: Int, names: Bytes, bounds: Ints, sizes: Int, slots: Ints, row: Int, at: Ints, size: Ints
) -> Int:
    """Walk the headers at `pos`, writing place and size of the wanted values to column `row` of `at` and `size`.
    Return the position after the last header, or one beyond `end` if they cannot be read. `sizes`: bit n, below 64,
    is set if a wanted name is n bytes long.
    """
    count, pos = read_varint(buf, pos, end)
    if count < 0:
        return np.int64(LOST)
    wanted = slots.size
    while count > 0 and pos <= end:
        count -= 1
        name_size, name_at = read_varint(buf, pos, end)
        if name_size < 0 or name_at + name_size > end:
            return np.int64(LOST)
        value_size, value_at = read_varint(buf, name_at + name_size, end)
        pos = skip(value_at, value_size)
        if pos > end:
            return np.int64(LOST)
        if name_size < 64 and not (sizes >> name_size) & 1:
            continue  # no wanted name is of this size
        for k in range(wanted):
            first = bounds[k]
            if bounds[k + 1] - first == name_size and _same(buf, name_at, names, first, name_size):
                at[slots[k], row] = value_at
                size[slots[k], row] = value_size
    return pos


@kernel
def walk(
    buf: Bytes, batches: Batches, names: Bytes, bounds: Ints, slots: Ints, key_slot: int, value_slot: int, offset: Ints,
    timestamp: Ints, body: Ints, end_of: Ints, at: Ints, size: Ints,
) -> tuple[int, int, Fault]:  # fmt: skip
    """Fill one row per record of `batches`, whose records are in `buf` from data_at to data_end.

    `names`: the wanted header names end to end. `bounds`: where each begins, and the end of the
    last one. `slots`: the row of `at` and `size` for each. `key_slot`, `value_slot`: the same for
    key and value, -1 if not wanted.

    Filled, with room for all records of the batches: `offset` and `timestamp` (ms since 1970);
    `body`, where the key's size begins in `buf`; `end_of`, where the record ends; `at` and `size`
    [fields, records], position and bytes of each field. The size is MISSING if a field is null or
    not there. The last header of a name counts.

    Return (rows filled, index of the faulty batch or -1, its fault). A faulty batch ends the walk,
    and none of its records count.

    Long because it is one loop over the records: functions for its parts would be given the same
    dozen arrays for each record, and numba counts references to each of them (borrow.py).
    """
    row = 0
    fields = size.shape[0]
    sizes = np.int64(0)  # bit n is set when a wanted name is n bytes long
    for k in range(slots.size):
        if bounds[k + 1] - bounds[k] < 64:
            sizes |= np.int64(1) << (bounds[k + 1] - bounds[k])
    for b in range(batches.size):
        batch = batches[b]
        pos = batch.data_at
        limit = batch.data_end
        before = batch.base_offset - 1
        appended = batch.attributes & LOG_APPEND_TIME
        first_row = row
        for _ in range(batch.count):
            # length, attributes, deltas
            length, pos = read_varint(buf, pos, limit)
            end = pos + length
            if length < 0 or end > limit:
                return first_row, b, Fault.RECORD
            delta, pos = read_long(buf, pos + 1, end, 70)
            offset_delta, pos = read_varint(buf, pos, end)
            # the body: key, value, headers
            body[row] = pos
            key_size, key_at = read_varint(buf, pos, end)
            pos = skip(key_at, key_size)
            value_size, value_at = read_varint(buf, pos, end)
            pos = skip(value_at, value_size)
            for f in range(fields):
                size[f, row] = MISSING
            pos = _headers(buf, pos, end, names, bounds, sizes, slots, row, at, size)
            if pos != end:
                return first_row, b, Fault.RECORD
            # offsets must ascend and stay within the batch
            this = batch.base_offset + offset_delta
            if this <= before or this > batch.last_offset:
                return first_row, b, Fault.OFFSETS
            before = this
            offset[row] = this
            timestamp[row] = batch.max_timestamp if appended else batch.base_timestamp + delta
            end_of[row] = end
            if key_slot >= 0:
                at[key_slot, row] = key_at
                size[key_slot, row] = key_size
            if value_slot >= 0:
                at[value_slot, row] = value_at
                size[value_slot, row] = value_size
            row += 1
        if pos != limit:
            return first_row, b, Fault.COUNT
    return row, -1, Fault.NONE


@kernel
def open_bodies(
    buf: Bytes, body: Ints, end_of: Ints, key_at: Ints, key_size: Ints, value_at: Ints, value_size: Ints,
    headers_at: Ints,
) -> None:  # fmt: skip
    """Write the positions and sizes of key and value and the position of the headers, one row per
    record. `body`, `end_of`: as `walk` filled them; it must have checked the records before.
    """
    for i in range(body.size):
        end = end_of[i]
        key_size[i], key_at[i] = read_varint(buf, body[i], end)
        value_size[i], value_at[i] = read_varint(buf, skip(key_at[i], key_size[i]), end)
        headers_at[i] = skip(value_at[i], value_size[i])
