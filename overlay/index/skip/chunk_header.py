"""A summary of a chunk of a partition: what a reader can know of its records without reading them.

Chunks are cut between record batches and cover their partition without holes, but for batches that
cannot be read. A chunk begins where the one before it ended, or after such a batch, and extends
over control batches, aborted records and what compaction removed. Terms, zones and counts by
subject are of the records that have a subject in the stream; no other is ever delivered. Times are
of all records, so that they hold even if the stream's subjects change later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .bloom import NONE, Bloom
from .zones import Bounds

MAX_SUBJECTS = 64
"""A chunk with more distinct subjects has no counts by subject."""

MAX_SUBJECT_CHARS = 16_384
"""Most characters of a chunk's subjects that are written with their counts, so that a header stays
small beside its chunk.
"""

NO_TIME = -1


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one chunk: what is known, without reading them, of the records of a partition
    with first_offset <= offset < next_offset.
    """

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    records: int
    """Committed records, whether or not they have a subject in the stream."""
    addressed: int
    """Records that have a subject in the stream."""
    bytes: int
    """Bytes of its batches in the log, compressed."""
    min_time: int
    """Smallest timestamp in ms since 1970; NO_TIME if a record has no timestamp, or if there is no
    record.
    """
    max_time: int
    """Largest timestamp, likewise."""
    epoch: int
    """Leader epoch of its last batch."""
    crc: int
    """CRC of its last batch; -1 if unknown."""
    exact: bool
    """Whether no offset was missing when it was sealed, so that compaction had removed nothing."""
    config_fingerprint: int
    """Fingerprint of the config of subjects and filter values (config_fingerprint.py)."""
    indexed: tuple[int, ...] = ()
    """Fingerprints of the properties whose terms are in the Bloom filter, ascending."""
    bloom: Bloom = NONE
    subjects: Mapping[str, int] | None = None
    """Records by subject; None if there are too many to be counted (`is_countable`)."""
    zones: Mapping[int, Bounds] = field(default_factory=dict)
    """Zones by the fingerprint of their property."""


@dataclass(frozen=True, slots=True)
class AddressCounts:
    """What headers say of records without a subject in the stream.

    `records`: committed records of their chunks. `unaddressed`: those of them without a subject. `last`: first and next
    offset of the last chunk that has one of these; None if none has.
    """

    records: int = 0
    unaddressed: int = 0
    last: tuple[int, int] | None = None


NO_CHUNKS = AddressCounts()


def is_countable(subjects: Collection[str]) -> bool:
    """Return whether a header may count records by these subjects: at most MAX_SUBJECTS of them, with at most
    MAX_SUBJECT_CHARS characters.
    """
    return len(subjects) <= MAX_SUBJECTS and sum(map(len, subjects)) <= MAX_SUBJECT_CHARS
