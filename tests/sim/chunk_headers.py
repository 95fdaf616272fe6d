"""Whether the chunk headers of a history contradict the log that they describe, record by record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from overlay.index.skip.chunk_header import NO_TIME, Header
from overlay.index.skip.encode import decode, decode_key

from .kafka.cluster import Cluster
from .plan import SOURCE, STREAM
from .reading import Found, read_partition, read_topic

INDEX = f"overlay.{STREAM}.index"


def find_contradictions(cluster: Cluster) -> list[str]:
    """Return what headers say that is not so, a line each. Headers of records that retention has taken are not looked at.

    The source must be the same log as when its headers were written.
    """
    topic = cluster.topics[SOURCE]
    records = [read_partition(partition) for partition in topic.partitions]
    starts = [partition.log.start for partition in topic.partitions]
    return [
        f"{header.partition}@{header.first_offset} to {header.next_offset}: {fault}"
        for header in _list_headers(cluster)
        if header.first_offset >= starts[header.partition]
        for fault in _compare(header, _cut(records[header.partition], header))
    ]


def _list_headers(cluster: Cluster) -> Iterator[Header]:
    """Yield the latest header of each key. Raises AssertionError for one that cannot be read."""
    latest = {record.key: record.value for record in read_topic(cluster, INDEX)}
    for key, value in latest.items():
        if key is not None and value is not None and decode_key(key) is not None:
            header = decode(value)
            assert isinstance(header, Header), f"{key!r}: {header}"
            yield header


def _cut(records: list[Found], header: Header) -> list[Found]:
    return [record for record in records if header.first_offset <= record.offset < header.next_offset]


def _compare(header: Header, records: list[Found]) -> Iterator[str]:
    """Yield what a header says wrongly of the committed records in its range."""
    subjects = Counter(f"s.{(record.key or b'').decode()}" for record in records)
    times = [record.timestamp for record in records]
    facts = {
        "records": (header.records, len(records)),
        "addressed": (header.addressed, len(records)),
        "subjects": (header.subjects if header.subjects is None else dict(header.subjects), dict(subjects)),
        "min_time": (header.min_time, min(times, default=NO_TIME)),
        "max_time": (header.max_time, max(times, default=NO_TIME)),
    }
    for name, (said, true) in facts.items():
        if said is not None and said != true:
            yield f"{name} is {true}, not {said}"
