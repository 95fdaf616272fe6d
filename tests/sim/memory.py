"""How much memory a service of a history holds: the objects that can be reached from it, without those of clients and loops."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType

APART = ("asyncio", "_asyncio", "aiokafka", "tests", "prometheus_client", "structlog", "concurrent", "_thread")
"""Packages whose objects lead to the simulated cluster, or are the same from history to history."""
STATIC = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType, FrameType)


def measure(service: object) -> int:
    """Return the bytes of all objects that a service holds."""
    size, seen, left = 0, set[int](), [service]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, STATIC) or type(each).__module__.split(".")[0] in APART:
            continue
        seen.add(id(each))
        size += sys.getsizeof(each)
        left.extend(gc.get_referents(each))
    return size
