"""Comparison operators seen from the other side."""

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
"""The operator that says the same of exchanged sides."""

OPPOSITE = {
    Compare.EQ: Compare.NE,
    Compare.NE: Compare.EQ,
    Compare.LT: Compare.GE,
    Compare.LE: Compare.GT,
    Compare.GT: Compare.LE,
    Compare.GE: Compare.LT,
}
"""The operator that is true where the other is false, as long as the sides have an order; see rewrite.py."""
