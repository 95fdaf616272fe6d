"""Records in JSON whose numbers are larger than any that a program of ours writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

LARGE = (1 << 64, -(1 << 64), 10**400)


def enlarge(record: bytes) -> Iterator[bytes]:
    """Yield the record with each of its integers in turn replaced by each number of LARGE."""
    text = record.decode()
    assert json.loads(text)
    # integers that are no part of a text: these end before a comma or a bracket
    for found in re.finditer(r"(?<=[\[:,] )-?\d+(?=[,\]}])|(?<=[\[:,])-?\d+(?=[,\]}])", text):
        for number in LARGE:
            yield (text[: found.start()] + str(number) + text[found.end() :]).encode()
