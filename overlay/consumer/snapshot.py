"""The state of a consumer as a log of records: deltas with what changed, and a checkpoint from time
to time.

A record is a small JSON head (version, kind, counters) followed by columns. These are the changed
rows in full, the stream sequences of rows that ended, and the redeliveries since the last record.
Its size is proportional to what changed: a message that was delivered and acked between two records
appears only among the ended ones. A checkpoint is a delta against an empty state. Reading means
applying records in order, beginning at a checkpoint. Offers and pull requests are not part of the
state, because they are sent again.

The head's `incarnations` are the runs of lineage.py in a checkpoint; a delta has only the `run` of
the machine that wrote it. Earlier versions wrote neither, and the deliveries in such a record name
no incarnation. Earlier versions ignore both fields when they read them. So it is possible to go
back to them, and forward again.

Layout: 4 bytes `OVC` and the version; 4 bytes little-endian length of the head; the head; then the
columns as the head's `rows`, `ended` and `again` count them, each column little-endian and without
gaps. A record of a newer version is refused, never read in part.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from overlay.arrays import Ints
from overlay.config.consumer import AckPolicy
from overlay.errors import OverlayError
from overlay.units import INT64_MAX

from .endings import Sampling
from .events import Paused
from .lineage import Lineage, Run, choose_runs, join_runs
from .pending import COLUMNS, Pending
from .state import MachineState
from .table import PAUSED, TRANSITIONS
from .window import Changes, Pair, Window

VERSION = 1
_MAGIC = b"OVC"
_HEAD = struct.Struct("<3sBI")
_NUMBERS = ("position", "read_up_to", "ticket", "delivered_at", "acked_at")
"""Fields that come to stand in arrays of int64, unlike `paused_until`: a time of the year 9999 has more bits in ns."""

Columns = dict[str, npt.NDArray[Any]]


class SnapshotUnreadable(OverlayError):
    """A record of consumer state that is damaged or of another version, so that this version cannot
    read it. An operator has to act.
    """


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """One decoded record of a consumer's state: a checkpoint with all of it, or a delta with what
    changed.

    `head`: the record's JSON fields; `delivered` and `floor` are Pairs, and runs of incarnations
    tuples. `rows`: changed rows, arrays by column name. `ended`: stream sequences of messages that
    are not known any more. `again`: consumer and stream sequences of redeliveries.
    """

    is_checkpoint: bool
    head: dict[str, Any]
    rows: Columns
    ended: Ints
    again: tuple[Ints, Ints]


def encode_delta(state: MachineState, changes: Changes) -> bytes:
    """Return a delta record: the state's counters, and these changes of its window since the last
    record.
    """
    return _encode(state, changes, is_checkpoint=False)


def encode_checkpoint(state: MachineState) -> bytes:
    """Return a checkpoint record, from which the state can be restored without earlier records."""
    return _encode(state, state.window.everything, is_checkpoint=True)


def _encode(state: MachineState, changes: Changes, *, is_checkpoint: bool) -> bytes:
    window = state.window
    head: dict[str, Any] = {
        "kind": "checkpoint" if is_checkpoint else "delta",
        "rows": changes.rows.size,
        "ended": changes.ended.size,
        "again": changes.again[0].size,
        "delivered": [window.delivered.consumer, window.delivered.stream],
        "floor": [window.floor.consumer, window.floor.stream],
        "position": state.position,
        "read_up_to": window.read_up_to,
        "ticket": window.queue.ticket,
        "paused_until": state.paused_until if state.phase in PAUSED else 0,
        "delivered_at": state.delivered_at,
        "acked_at": state.acked_at,
        "sampled": state.sampling.rest,
        "deliver_subject": state.config.deliver_subject,
    }
    head |= _list_runs(state, is_checkpoint=is_checkpoint)
    text = json.dumps(head, separators=(",", ":")).encode()
    columns = [window.pending.column[name][changes.rows] for name in COLUMNS]
    parts = [_little(column).tobytes() for column in (*columns, changes.ended, *changes.again)]
    return b"".join([_HEAD.pack(_MAGIC, VERSION, len(text)), text, *parts])


def _list_runs(state: MachineState, *, is_checkpoint: bool) -> dict[str, Any]:
    """Return the fields that name incarnations, for the head of a record: `incarnations`, all runs,
    in a checkpoint; `run`, the open one, in a delta. Empty in a delta if the machine has given out
    nothing, or has no name; in a checkpoint if nothing was given out, or all of it in one run
    without a name.
    """
    delivered = state.window.delivered.consumer
    if is_checkpoint:
        runs = state.lineage.list_runs(delivered)
        return {"incarnations": runs} if runs and runs != [(1, delivered, "")] else {}
    run = state.lineage.find_open(delivered)
    return {"run": run} if run and run[2] else {}


def _little(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return column.astype(column.dtype.newbyteorder("<"), copy=False)


def decode(value: bytes) -> MachineRecord:
    """Parse a record of consumer state. Raises SnapshotUnreadable if it is damaged, no such record,
    or of another version.
    """
    try:
        magic, version, size = _HEAD.unpack_from(value)
        if magic != _MAGIC:
            raise SnapshotUnreadable(f"not a record of consumer state: {value[:16]!r}")
        if version != VERSION:
            raise SnapshotUnreadable(
                f"consumer state of version {version}; this overlay reads version {VERSION}. Upgrade it"
            )
        head = json.loads(value[_HEAD.size : _HEAD.size + size])
        return _read(head, value, _HEAD.size + size)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise SnapshotUnreadable(f"a record of consumer state is damaged: {value[:16]!r} ({error})") from error


def _read(head: dict[str, Any], value: bytes, at: int) -> MachineRecord:
    def take(kind: type[np.generic], count: int) -> npt.NDArray[Any]:
        nonlocal at
        dtype = np.dtype(kind).newbyteorder("<")
        column = np.frombuffer(value, dtype, count, at).astype(kind)
        at += column.nbytes
        return column

    for name in _NUMBERS:
        if abs(head.get(name, 0)) > INT64_MAX:
            raise ValueError(f"{name} is {head[name]}")
    rows = {name: take(kind, head["rows"]) for name, kind in COLUMNS.items()}
    ended, again = take(np.int64, head["ended"]), (take(np.int64, head["again"]), take(np.int64, head["again"]))
    if at != len(value):
        raise ValueError(f"{len(value) - at} bytes too many")
    for name in ("delivered", "floor"):
        head[name] = Pair(*map(_read_sequence, head[name]))
    if "incarnations" in head:
        head["incarnations"] = [_read_run(run) for run in head["incarnations"]]
    if "run" in head:
        head["run"] = _read_run(head["run"])
    return MachineRecord(head["kind"] == "checkpoint", head, rows, ended, again)


def _read_run(run: Any) -> Run:
    first, last, incarnation = run
    return _read_sequence(first), _read_sequence(last), str(incarnation)


def _read_sequence(number: Any) -> int:
    if not 0 <= int(number) <= INT64_MAX:
        raise ValueError(f"{number} is no sequence")
    return int(number)


def restore(fresh: MachineState, records: Sequence[MachineRecord]) -> MachineState:
    """Return the state that the records describe, in their order; `fresh` itself if there are none.

    Records before the last checkpoint do not count. A delta without a checkpoint before it counts
    as a change to a fresh consumer. `fresh`: the state with which the consumer would begin; what
    records do not have is taken from it.

    `fresh` may have a newer config than the machine that wrote the records. If its deliver_subject
    differs, all pending messages go out again.
    """
    if not records:
        return fresh
    since = max((at for at, record in enumerate(records) if record.is_checkpoint), default=0)
    records = records[since:]
    head, config = records[-1].head, fresh.config
    consumer_seqs, sequences = (np.concatenate([record.again[i] for record in records]) for i in (0, 1))
    window = Window.restore(
        config,
        _make_table(_join(records)),
        (consumer_seqs, sequences),
        delivered=head["delivered"],
        floor=head["floor"],
        read_up_to=head["read_up_to"],
        ticket=head["ticket"],
    )
    runs = choose_runs(
        join_runs(record.head for record in records),
        np.concatenate((window.pending.view("consumer_seq"), window.again[0])),
        is_cumulative=config.ack_policy is AckPolicy.ALL,
    )
    if head.get("deliver_subject", config.deliver_subject) != config.deliver_subject:
        # the old subject has no reader any more
        window.requeue_all()
    return replace(
        fresh,
        window=window,
        lineage=Lineage(fresh.lineage.incarnation, runs, window.delivered.consumer),
        up_to=head["position"],
        delivered_at=head["delivered_at"],
        acked_at=head["acked_at"],
        sampling=Sampling(config.sample_freq, head["sampled"]),
        paused_until=head["paused_until"] or fresh.paused_until,
        phase=TRANSITIONS[fresh.phase][Paused] if head["paused_until"] else fresh.phase,
    )


def has_pending(records: Sequence[MachineRecord]) -> bool:
    """Return whether a consumer has messages, by its records (at least one, in the order of writing), that may be delivered
    again."""
    since = max((at for at, record in enumerate(records) if record.is_checkpoint), default=0)
    return bool(_join(records[since:])["sequence"].size)


def _make_table(rows: Columns) -> Pending:
    table = Pending(rows["sequence"].size + 64)
    table.append(**rows)
    return table


def _join(records: Sequence[MachineRecord]) -> Columns:
    """Return the rows of the messages that are known after the last record, sorted by sequence.

    `records`: in the order of writing. Of each message the last record that names it counts. If
    that record lists the message as ended, the result has no row of it.
    """
    sequences = np.concatenate([part for record in records for part in (record.rows["sequence"], record.ended)])
    is_row = np.concatenate(
        [np.arange(r.rows["sequence"].size + r.ended.size) < r.rows["sequence"].size for r in records]
    )
    # the first of each in reverse order is the latest
    _, found = np.unique(sequences[::-1], return_index=True)
    last = sequences.size - 1 - found
    places = np.cumsum(is_row)[last[is_row[last]]] - 1
    return {name: np.concatenate([record.rows[name] for record in records])[places] for name in COLUMNS}
