"""SQL and property filters, for single messages and for column batches.

    late = compile_sql("origin = 'JFK' AND dep_delay > 60", {"dep_delay": "double"})
    late.matches({"application_properties": {"origin": "JFK", "dep_delay": 61}})      # True
    late.evaluate(batch)                                                              # pyarrow.BooleanArray

Compilation has these steps. tokens.py and parse.py read SQL text, and properties.py reads a
mapping; both make a tree (nodes.py). bind.py gives the fields their types. rewrite.py simplifies
the tree. arrow/ evaluates the result over columns, and rows.py evaluates the original tree for one
message. describe.py turns a tree back into text. syntax.py, unexpected.py and error_hints.py make
the error messages.

A name is imported when it is first used: the model of a stream needs the names of fields, and no
parser.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlay.errors import FilterSyntaxError

    from .compiled import Filter, compile_properties, compile_sql
    from .limits import Limits

__all__ = ["Filter", "FilterSyntaxError", "Limits", "compile_properties", "compile_sql"]

_HOMES = {
    "Filter": ".compiled",
    "FilterSyntaxError": "overlay.errors",
    "Limits": ".limits",
    "compile_properties": ".compiled",
    "compile_sql": ".compiled",
}
"""By name, the module that has it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
