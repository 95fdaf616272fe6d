"""A chunk of a partition, summarised: what a reader learns of its records without reading them.

Chunks are cut between record batches and cover their partition without holes: a chunk begins where the one before it ended
and goes on to where the next one begins, over control batches, aborted records and what compaction took out.
Terms, zones and counts by subject are of the records that have a subject in the stream; no other is ever delivered. Times
are of all records, so that they hold even when the stream's subjects are other ones one day.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .bloom import NONE, Bloom
from .zones import Bounds

MAX_SUBJECTS = 64
"""A chunk with more distinct subjects has no counts by subject."""

NO_TIME = -1


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one chunk. Offsets: first_offset <= offset < next_offset."""

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    records: int
    """Committed records, whether or not they have a subject in the stream."""
    addressed: int
    """Those that have."""
    bytes: int
    """Of its batches in the log, as they are compressed."""
    min_time: int
    """Ms since 1970; NO_TIME when some record has no timestamp, or there is no record."""
    max_time: int
    epoch: int
    """Leader epoch of its last batch."""
    crc: int
    """And its CRC; -1 when not known."""
    exact: bool
    """Whether every offset was still taken when it was sealed, that is compaction had not been there."""
    scope: int
    """Fingerprint of what subjects and filter values are (config_fingerprint.py)."""
    indexed: tuple[int, ...] = ()
    """Fingerprints of the properties whose terms are in the Bloom filter, ascending."""
    bloom: Bloom = NONE
    subjects: Mapping[str, int] | None = None
    """Records by subject, None where there are more than MAX_SUBJECTS."""
    zones: Mapping[int, Bounds] = field(default_factory=dict)
    """By the fingerprint of their property."""
