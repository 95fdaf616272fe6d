"""Limits on the text of a filter. The defaults of length and tokens are RabbitMQ's."""

from __future__ import annotations

from dataclasses import dataclass, fields

DEEPEST = 200
"""The highest possible depth limit.

Trees are walked by recursion with two or three Python calls per level, so 200 levels leave a third
of Python's recursion limit.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on a filter's text. Raises ValueError for a limit below 1 or a depth above DEEPEST."""

    length: int = 4096
    """Unicode code points of the text."""
    tokens: int = 200
    """Words, symbols and constants; blanks do not count."""
    depth: int = DEEPEST
    """Levels of the tree.

    Parentheses alone add no level. With the default of `tokens` no text can exceed the default
    depth.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}, and has to be 1 or more")
        if self.depth > DEEPEST:
            raise ValueError(f"depth is {self.depth}, and may be {DEEPEST} at most")


DEFAULT = Limits()
