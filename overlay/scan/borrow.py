"""Arrays that kernels hand on without counting references.

Numba counts a reference to each array argument of each function, with atomic operations; its optimiser takes out the
pairs that it can follow, which fails in functions that leave a loop early. In a function called for every field of
every record these cost more than the reading. A borrowed array is the same array without an owner to count for. It
may be used only while the function that borrowed it runs: that function's own reference is what keeps the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from numba import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def _disown(typing_context: Any, array: Any) -> Any:
    if not isinstance(array, types.Array):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()

    return array(array), generate


borrow = cast(Callable[[Any], Any], _disown)
"""`borrow(array)`, in a kernel: the array without its owner."""
