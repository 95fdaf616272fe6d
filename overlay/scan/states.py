"""What became of a value that was to be read as a type: a byte for each, so that kernels can say it of every record.

The sizes that the walk and the JSON pass note for fields without bytes are told apart here too: a field may be missing,
or stand behind the place up to which its document makes sense, or inside a value that is in a format nobody here reads.
"""

from __future__ import annotations

from overlay.kernels import kernel

MISSING = -1  # the size of a field that is null or not there
MALFORMED = -2  # of one whose document cannot be read up to it
UNDECODED = -3  # of one within a value that is no JSON but something else that is known

GOOD, BAD, HARD, ABSENT, NOT_UTF8, BROKEN, ENCODED = range(7)

REASONS = {BAD: "unparsable", NOT_UTF8: "not_utf8", BROKEN: "malformed", ENCODED: "undecoded"}
"""The states that are counted, in the words of the metrics. ABSENT is no fault, and HARD is settled before anyone sees it."""


@kernel
def judge_size(size):  # type: ignore[no-untyped-def]
    """The state of a field whose size is below 0."""
    return BROKEN if size == MALFORMED else ENCODED if size == UNDECODED else ABSENT
