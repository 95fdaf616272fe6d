"""Counterparts of the comparison operators."""

from __future__ import annotations

from .nodes import Compare

MIRRORED = {
    Compare.EQ: Compare.EQ,
    Compare.NE: Compare.NE,
    Compare.LT: Compare.GT,
    Compare.LE: Compare.GE,
    Compare.GT: Compare.LT,
    Compare.GE: Compare.LE,
}
"""The operator to use after swapping the two sides."""

OPPOSITE = {
    Compare.EQ: Compare.NE,
    Compare.NE: Compare.EQ,
    Compare.LT: Compare.GE,
    Compare.LE: Compare.GT,
    Compare.GT: Compare.LE,
    Compare.GE: Compare.LT,
}
"""The operator that is true where the key is false, if the sides have an order (rewrite.py)."""
