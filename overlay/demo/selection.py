"""The selections of the example's SQL filters, repeated in pandas: a check without the overlay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from overlay.arrays import Flags

from .home import DemoError

Frame = Any  # pandas carries no types


def _is_late_long_haul(flights: Frame) -> Frame:
    is_ours = flights.carrier.isin(["AA", "UA"]) | flights.tailnum.str.fullmatch("N.*JB", na=False)
    return (flights.dep_delay > 60) & (flights.distance >= 1000) & is_ours


SELECTIONS: dict[str, Callable[[Frame], Frame]] = {
    "dep_delay > 60 AND distance >= 1000 AND (carrier IN ('AA', 'UA') OR tailnum LIKE 'N%JB')": _is_late_long_haul,
}


def select(table: pa.Table, sql: str) -> Flags:
    """Return which rows of the data set a filter selects; all of them for "".

    Raises DemoError for a filter that is not listed here.
    """
    if not sql:
        return np.ones(table.num_rows, np.bool_)
    if sql not in SELECTIONS:
        raise DemoError(
            f"the demo cannot check the filter {sql!r}: it knows those of the example only. Say what it selects in"
            " overlay/demo/selection.py, or leave the consumer out"
        )
    found: Flags = SELECTIONS[sql](table.to_pandas()).to_numpy(dtype=np.bool_)
    return found
