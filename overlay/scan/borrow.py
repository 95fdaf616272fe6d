"""Arrays that kernels hand on without counting references.

Numba counts a reference to an array argument in each function it enters, with atomic operations that its optimiser finds
superfluous in simple functions but not in those that leave a loop early, which are most of the ones that read JSON. There they
cost more than the reading. A borrowed array is the same array without an owner to count for; it may be used only
while the function that borrowed it runs, since the caller's own reference is what keeps the memory.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def borrow(typing_context: Any, array: Any) -> Any:
    """`array` without its owner. For arguments of the kernel that calls this, and arrays it makes and keeps."""
    if not isinstance(array, types.Array):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()

    return array(array), generate
