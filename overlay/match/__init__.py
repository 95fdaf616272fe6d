"""Steps 3 and 5: subjects for a stream's records, and which consumers want which of them. Pure."""

from .addressing import Addressed, Addressing, make_addressing
from .audience import Audience, Selection
from .masks import Masks, Sifted, Tally
from .values import Values, choose_values

__all__ = [
    "Addressed",
    "Addressing",
    "Audience",
    "Masks",
    "Selection",
    "Sifted",
    "Tally",
    "Values",
    "choose_values",
    "make_addressing",
]
