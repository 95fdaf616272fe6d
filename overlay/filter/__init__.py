"""SQL and property filters, for single messages and for column batches.

    late = compile_sql("origin = 'JFK' AND dep_delay > 60", {"dep_delay": "double"})
    late.matches({"application_properties": {"origin": "JFK", "dep_delay": 61}})      # True
    late.evaluate(batch)                                                              # pyarrow.BooleanArray

Compilation has these steps. tokens.py and parse.py read SQL text, and properties.py reads a
mapping; both make a tree (nodes.py). bind.py gives the fields their types. rewrite.py simplifies
the tree. arrow/ evaluates the result over columns, and rows.py evaluates the original tree for one
message. describe.py turns a tree back into text. syntax.py, unexpected.py and error_hints.py make
the error messages.
"""

from overlay.errors import FilterSyntaxError

from .compiled import Filter, compile_properties, compile_sql
from .limits import Limits

__all__ = ["Filter", "FilterSyntaxError", "Limits", "compile_properties", "compile_sql"]
