"""The declared properties of one message, as typed Python values.

A filter reads them from whole slices of records, and PropertyReader from one message. The grammars
are the same, since both use the readers of overlay/scan. A property that is made of the source's
topic or partition is None, because a delivery does not have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from overlay.config.stream import Property, PropertyType, is_sectioned
from overlay.config.values import ValuesConfig
from overlay.field import Field, FieldKind
from overlay.match.formats import make_format
from overlay.scan.columns import Origin, gather
from overlay.scan.json.search import extract
from overlay.scan.plan import make_plan
from overlay.scan.states import MISSING

from .message import Delivered

Value = str | bytes | int | float | bool | datetime | None
"""The value of a property. None if the message does not have it, or if it does not spell the property's type."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PropertyReader:
    """A reader of the properties that a stream declares, from one message at a time. `declared`: by name as in the
    stream's file; fields of filters' fixed sections, such as `p.message_id`, are left out. `values`: the format of the
    messages' values, None for JSON.
    """

    def __init__(self, declared: Mapping[str, Property], values: ValuesConfig | None = None) -> None:
        own = {name: entry for name, entry in declared.items() if not is_sectioned(name)}
        self._fields = {
            name: (entry.source or Field(FieldKind.HEADER, name), entry.type) for name, entry in own.items()
        }
        self._plan = make_plan(field for field, _ in self._fields.values() if field.kind is FieldKind.VALUE)
        form = make_format(values) if values is not None and self._plan.paths.count else None
        self._extractor = None if form is None else form.prepare(self._plan.paths)

    def read(self, message: Delivered) -> dict[str, Value]:
        """Return the value of each property by name: of its declared type, None if the message does not have it or it does
        not spell the type, or if it is made of the source's topic or partition.
        """
        value = message.value
        document = np.frombuffer(value or b"", np.uint8)
        places = np.zeros((self._plan.width, 1), np.int64)
        sizes = np.full((self._plan.width, 1), MISSING, np.int64)
        slot = self._plan.value_slot
        if slot >= 0 and value is not None:
            sizes[slot] = len(value)
            if self._extractor is None:
                extract(document, places, sizes, slot, self._plan.paths, 0, 1)
            else:
                room = int(self._extractor.find_room(sizes[slot])[0])
                document = np.concatenate((document, np.empty(room, np.uint8)))
                self._extractor.extract(document, places, sizes, slot, 0, 1, len(value))
        found: dict[str, Value] = {}
        for name, (field, kind) in self._fields.items():
            if field.kind is FieldKind.VALUE:
                slot = self._plan.slot(field)
                column = gather(document, places[slot], sizes[slot], kind, Origin.JSON)
                found[name] = _convert(column.array, kind)
            elif field.kind is FieldKind.TIMESTAMP and kind is PropertyType.TIMESTAMP:
                found[name] = message.metadata.timestamp
            else:
                found[name] = _convert(_gather_text(_find_text(message, field), kind), kind)
        return found


def _find_text(message: Delivered, field: Field) -> bytes | None:
    if field.kind is FieldKind.HEADER:
        return message.header(field.name)
    if field.kind is FieldKind.KEY:
        return message.key
    if field.kind is FieldKind.TIMESTAMP:
        return b"%d" % round((message.metadata.timestamp - _EPOCH) / timedelta(milliseconds=1))
    return None


def _gather_text(text: bytes | None, kind: PropertyType) -> pa.Array:
    size = MISSING if text is None else len(text)
    return gather(np.frombuffer(text or b"", np.uint8), np.zeros(1, np.int64), np.array([size]), kind).array


def _convert(array: pa.Array, kind: PropertyType) -> Value:
    if kind is not PropertyType.TIMESTAMP:
        found: Value = array[0].as_py()
        return found
    try:
        milliseconds = array.cast(pa.int64())[0].as_py()
        return None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:  # a year that datetime does not have
        return None
