"""The fields of each record that the walk has to find, in the form that kernels take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from overlay.arrays import Bytes, Ints
from overlay.field import Field, FieldKind

from .json.search import Paths


@dataclass(frozen=True, slots=True)
class Plan:
    """The fields that the walk has to find. Row i of a slice's `at` and `size` is fields[i].

    If there are paths into values, one more row holds the values. `width` counts the rows; a slot
    is a row's number, -1 for a field that is not wanted. `names` to `value_slot` are what `walk`
    takes, `paths` what `extract` takes.
    """

    fields: tuple[Field, ...]
    width: int
    names: Bytes
    bounds: Ints
    slots: Ints
    key_slot: int
    value_slot: int
    paths: Paths

    def slot(self, field: Field) -> int:
        """Return the row of a field. Raises ValueError if the plan does not have it."""
        return self.fields.index(field)


def make_plan(fields: Iterable[Field] = ()) -> Plan:
    """Return a plan for header, key and value fields; equal ones are searched once.

    Raises ValueError for fields such as topic and partition, which are not in a record's bytes.
    """
    wanted = tuple(dict.fromkeys(fields))
    headers = [(i, f.name.encode()) for i, f in enumerate(wanted) if f.kind is FieldKind.HEADER]
    values = [(i, f.path) for i, f in enumerate(wanted) if f.kind is FieldKind.VALUE]
    keys = [i for i, f in enumerate(wanted) if f.kind is FieldKind.KEY]
    known = len(headers) + len(values) + len(keys)
    if known != len(wanted):
        odd = [str(f) for f in wanted if f.kind not in (FieldKind.HEADER, FieldKind.VALUE, FieldKind.KEY)]
        raise ValueError(f"{', '.join(odd)} cannot be planned: it is no part of a record's bytes")
    names, bounds = _pack([name for _, name in headers])
    steps, step_bounds = _pack([step.encode() for _, path in values for step in path])
    return Plan(
        wanted,
        len(wanted) + bool(values),
        names,
        bounds,
        _ints([i for i, _ in headers]),
        keys[0] if keys else -1,
        len(wanted) if values else -1,
        Paths(
            steps,
            step_bounds,
            _ints(np.cumsum([0, *(len(path) for _, path in values)])),
            _ints([i for i, _ in values]),
        ),
    )


def _pack(texts: Sequence[bytes]) -> tuple[Bytes, Ints]:
    """Return texts end to end, and their boundaries, [texts + 1]: text i is at bounds[i]:bounds[i+1]."""
    return np.frombuffer(b"".join(texts), np.uint8), _ints(np.cumsum([0, *(len(text) for text in texts)]))


def _ints(values: object) -> Ints:
    return np.asarray(values, np.int64)
