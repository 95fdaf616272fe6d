"""Filters over column batches: each tree is compiled once and runs on a batch as Arrow kernels.

The answers are those of the row evaluator (rows.py), with null for unknown. programs.py compiles
each kind of node. evaluation.py caches the values for one batch. vectors.py converts columns to the
language's types. numeric.py, comparing.py and texts.py implement the operators.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from overlay.filter.nodes import Node, Section

from .evaluation import Evaluation, Key, Program, key_of
from .programs import compile

__all__ = ["Evaluation", "Key", "Program", "compile", "evaluate", "key_of", "read_columns"]

_compile_once = lru_cache(maxsize=256)(compile)


def evaluate(node: Node, batch: pa.RecordBatch, now: int) -> pa.BooleanArray:
    """Return the filter's answer for each row of `batch`; null is unknown. `now`: ms since 1970.

    The batch has the struct columns `header`, `properties` and `application_properties`. A missing column or field
    counts as NULL, `header.priority` as DEFAULT_PRIORITY. Fields of `properties` may be spelled with hyphens. Raises
    TypeError if a column that the filter reads is not a struct.
    """
    program = _compile_once(node)
    return program(read_columns(batch, program.columns), batch.num_rows, now)


def read_columns(batch: pa.RecordBatch, keys: frozenset[Key]) -> dict[Key, pa.Array]:
    """Return the fields named by `keys` of a batch's struct columns, without missing fields. Raises
    TypeError if the column of a key's section is not a struct.
    """
    found = {key: _read_field(batch, *key) for key in keys}
    return {key: array for key, array in found.items() if array is not None}


def _read_field(batch: pa.RecordBatch, section: Section, name: str) -> pa.Array | None:
    at = batch.schema.get_all_field_indices(section.value)
    if not at or pa.types.is_null(batch.schema.field(at[0]).type):
        return None
    column = batch.column(at[0])
    if not pa.types.is_struct(column.type):
        raise TypeError(
            f"column {section.value} is {column.type}; filters take a struct with a field for each property"
        )
    spellings = [name] if section is Section.APPLICATION else [name, name.replace("_", "-")]
    fields = [i for spelling in dict.fromkeys(spellings) for i in column.type.get_all_field_indices(spelling)]
    arrays = [pc.struct_field(column, [i]) for i in fields]
    if len(arrays) == 2 and arrays[0].type == arrays[1].type and not isinstance(arrays[0], pa.DictionaryArray):
        return pc.coalesce(*arrays)
    return arrays[0] if arrays else None
