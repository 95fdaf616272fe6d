"""A million headers, loaded: `python -m tests.index.million` prints how many, seconds of processor time, MB it took, MB held.

Chunks as clustered data gives them at the defaults: each has some of 400 subjects with their counts, a filter of 16 to 256
bytes, a property with terms and one with a zone.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from overlay.index.skip import bloom
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.config_fingerprint import ConfigFingerprint
from overlay.index.skip.encode import Block, encode, parse
from overlay.index.skip.terms import as_hashes, property_term
from overlay.index.skip.zones import Bounds
from tests.oracle.chunks import subject_terms

SCOPE = ConfigFingerprint(99, {"x": 1}, {"l": 12}, {"x": "long", "l": "long"})
BLOCK = 4000
MILLION = 1_000_000


def make_value(at: int) -> bytes:
    """The header of chunk number `at` as the index topic holds it."""
    subjects = [f"flights.o{at % 20}.d{(at + i) % 400 // 20}.c{i}" for i in range(1 + at % 8)]
    terms = {term for subject in subjects for term in subject_terms(subject)}
    terms |= {property_term("x", at % 1000 + i) for i in range(at % 100)}
    counts = {subject: 4096 // len(subjects) for subject in subjects}
    addressed = sum(counts.values())
    header = Header(
        "flights", 0, at * 4096, at * 4096 + 4096, 4096, addressed, 500_000, at, at + 1000, 1, at, True, 99, (1,),
        bloom.make(as_hashes(*terms)), counts, {12: Bounds("long", at, at + 5, False)},
    )  # fmt: skip
    return encode(header)[1]


def load(chunks: Chunks, values: list[bytes], first: int) -> None:
    """Values as a fetch brings them; offsets are moved on, for making a million different headers takes minutes."""
    size = np.array([len(value) for value in values], np.int64)
    block: Block = parse(np.frombuffer(b"".join(values), np.uint8), np.cumsum(size) - size, size)
    for name in ("first_offset", "next_offset"):
        block.heads[name] += first * 4096
    chunks.extend(block, np.flatnonzero(block.flaws == 0))


def main() -> None:
    values = [make_value(at) for at in range(BLOCK)]
    load(Chunks(SCOPE), values, 0)  # kernels are loaded from their cache
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    chunks = Chunks(SCOPE)
    for first in range(0, MILLION, BLOCK):
        load(chunks, values, first)
    seconds = time.process_time() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    sys.stdout.write(f"{len(chunks)} {seconds:.2f} {grown / 1e6:.0f} {chunks.nbytes / 1e6:.0f}\n")


if __name__ == "__main__":
    main()
