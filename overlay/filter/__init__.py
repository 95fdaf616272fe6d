"""Filters over single messages and over column batches: SQL and property filter expressions.

    late = compile_sql("origin = 'JFK' AND dep_delay > 60", {"dep_delay": "double"})
    late.matches({"application_properties": {"origin": "JFK", "dep_delay": 61}})      # True
    late.evaluate(batch)                                                              # pyarrow.BooleanArray

The way of a filter: text -> tokens.py, parse.py (or a mapping -> properties.py) -> a tree, nodes.py -> bind.py gives
fields their types -> rewrite.py -> arrow/ answers for columns. rows.py answers for one message, from the tree as it was
read. describe.py makes text of a tree, syntax.py and error_hints.py make errors that people can act on.
"""

from overlay.errors import FilterSyntaxError

from .compiled import Filter, compile_properties, compile_sql
from .limits import Limits

__all__ = ["Filter", "FilterSyntaxError", "Limits", "compile_properties", "compile_sql"]
