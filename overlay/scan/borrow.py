"""Arrays that kernels pass on without counting references.

Numba counts a reference to each array argument of each function, with atomic operations. Its
optimiser removes the pairs that it can follow, which fails in functions that leave a loop early. In
a function called for every field of every record, the counting costs more than the reading. A
borrowed array is the same array without an owner to count for.

Only a parameter of the kernel may be borrowed, before it is bound to anything else: the kernel's
caller holds a reference until the kernel returns, and that reference keeps the memory. An array
that the kernel itself has made has no such holder. Numba gives up the kernel's reference after the
last use of the owning name, and a borrowed array does not count as a use. So the memory would be
freed while the kernel still reads and writes it. Work arrays are therefore made by the caller and
passed in. For the same reason a kernel with `inline="always"` borrows nothing: its parameters
become variables of its caller. A borrowed array must not outlive the kernel, so it is not returned.
tests/scan/test_borrow.py checks the sources for all this.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

Array = TypeVar("Array")


class _Disown:
    """The intrinsic behind `borrow`. It is made, and numba imported, when numba first compiles a
    kernel that names it.
    """

    def __init__(self) -> None:
        self.__name__ = "borrow"

    @cached_property
    def _numba_type_(self) -> Any:
        # importing numba takes longer than most commands take to answer
        from numba.core.registry import cpu_target

        context = cpu_target.typing_context
        intrinsic = _make_intrinsic()
        context.refresh()
        return context.resolve_value_type(intrinsic)


def _make_intrinsic() -> Any:
    # as above
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

    return _disown


class _Borrow(Protocol):
    def __call__(self, array: Array, /) -> Array: ...


borrow = cast(_Borrow, _Disown())
"""`borrow(parameter)`, in a kernel: the parameter's array without its owner. See the module's
docstring.
"""
