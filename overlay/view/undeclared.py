"""Names of a filter that are close to a declared property and not declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from overlay.config.suggestion import suggest
from overlay.filter import Filter
from overlay.filter.nodes import Column, Section

CUTOFF = 0.75
"""The least similarity (0 to 1). A filter may name a header that is not declared, so a faint likeness is no sign of a slip."""


def find_undeclared(filter: Filter, declared: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each application property of a filter that is not among the `declared` names of the stream, if
    its name is close to one of them.
    """
    names = list(declared)
    columns = [each for each in filter.columns if isinstance(each, Column) and each.section is Section.APPLICATION]
    for name in (column.name for column in columns if column.name not in names):
        if near := suggest(name, names, CUTOFF):
            yield f"{name} is not declared by the stream, so it is the header of this name.{near}"
