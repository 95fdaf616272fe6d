"""The states of values that were to be read as a type: one byte each, so that kernels can write it
for every record.

A field without bytes has a negative size from the walk or the JSON pass. `judge_size` turns it into
a state: the field is missing, or it is after the place up to which its document can be read, or it
is inside a value of a format without a decoder.
"""

from __future__ import annotations

from overlay.arrays import Int
from overlay.kernels import kernel

MISSING = -1  # size of a field that is null or not there
MALFORMED = -2  # size of a field whose document cannot be read up to it
UNDECODED = -3  # size of a field inside a value of a known format other than JSON

GOOD, BAD, HARD, ABSENT, NOT_UTF8, BROKEN, ENCODED = range(7)

REASONS = {BAD: "unparsable", NOT_UTF8: "not_utf8", BROKEN: "malformed", ENCODED: "undecoded"}
"""The states that are counted, by their names in the metrics. ABSENT is no fault, and HARD is
settled before columns are returned.
"""


@kernel
def judge_size(size: Int) -> Int:
    """Return the state of a field whose size is below 0: BROKEN, ENCODED or ABSENT."""
    return BROKEN if size == MALFORMED else ENCODED if size == UNDECODED else ABSENT
