"""Transformation of trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from .nodes import Node


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return the node with `change` applied to its direct children.

    Returns the same object if no child changes.
    """
    changed: dict[str, Any] = {}
    for each in fields(node):
        value = getattr(node, each.name)
        if isinstance(value, Node):
            new: Any = change(value)
            if new is not value:
                changed[each.name] = new
        elif isinstance(value, tuple):
            new = tuple(change(item) if isinstance(item, Node) else item for item in value)
            if any(one is not other for one, other in zip(new, value, strict=True)):
                changed[each.name] = new
    return replace(node, **changed) if changed else node
