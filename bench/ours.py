"""Our own sides: the parts of the overlay that do the work, put together as the service does it.

A scan keeps one fetch in flight on the event loop while a thread decodes, addresses and matches the last one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bench.sides import STREAM_SUBJECTS, TEMPLATE, Tally, Work
from overlay.errors import CorruptBatch, OverlayError, SourceChanged
from overlay.kafka.connection import open_client
from overlay.kafka.fetched import Fetched
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.match import Addressing, Audience
from overlay.scan import Decoder, Malformed, make_plan
from overlay.subject import Pattern, SubjectRule

Count = Callable[[Fetched], tuple[int, int]]
"""Records in a fetch, and those of them that match."""


class OverlayScan:
    """Count the records of one subject filter."""

    name = "overlay"
    warm = True

    def run(self, work: Work) -> Tally:
        return asyncio.run(scan(work, _make_filter(work)))

    def close(self) -> None:
        """Nothing is kept between runs."""


class UnfilteredScan:
    """Our own scan without a filter: every record is found and counted, none is looked into."""

    name = "unfiltered"
    warm = True

    def run(self, work: Work) -> Tally:
        tally = asyncio.run(scan(work, _make_counter(work)))
        return Tally(tally.records, None, tally.seconds)

    def close(self) -> None:
        """Nothing is kept between runs."""


def _make_filter(work: Work) -> Count:
    addressing = Addressing(SubjectRule.from_template(TEMPLATE), STREAM_SUBJECTS)
    audience = Audience(addressing.dictionary(work.topic, 0), [[Pattern(work.pattern)]])

    def count(fetched: Fetched) -> tuple[int, int]:
        seen = matched = 0
        pieces = addressing.read(work.topic, 0, fetched.data, fetched.position, aborted=fetched.aborted)
        for piece in pieces:
            if isinstance(piece, Malformed):
                raise explain(work, piece)
            seen += len(piece.records)
            matched += int(audience.select(piece.codes).bounds[-1])
        return seen, matched

    return count


def _make_counter(work: Work) -> Count:
    decoder = Decoder(make_plan())

    def count(fetched: Fetched) -> tuple[int, int]:
        seen = 0
        for piece in decoder.decode(fetched.data, fetched.position, aborted=fetched.aborted):
            if isinstance(piece, Malformed):
                raise explain(work, piece)
            seen += len(piece)
        return seen, seen

    return count


def explain(work: Work, piece: Malformed) -> OverlayError:
    """What a batch that cannot be read ends the bench with."""
    return CorruptBatch(work.topic, 0, piece.base_offset, piece.fault.text)


async def scan(work: Work, count: Count) -> Tally:
    """From the client's first connection to the last record's answer."""
    began = time.perf_counter()
    seen = matched = 0
    client = await open_client({"bootstrap.servers": work.bootstrap})
    fetcher = Fetcher(client)
    try:
        partition_fetch = await fetcher.open(work.topic, 0, 0)
        position = 0
        with ThreadPoolExecutor(1) as thread:
            while position < work.records:
                fetched = await _take(fetcher, partition_fetch, work)
                more, hits = await asyncio.get_running_loop().run_in_executor(thread, count, fetched)
                seen, matched, position = seen + more, matched + hits, fetched.next_offset
        seconds = time.perf_counter() - began
    finally:
        await fetcher.close()
        await client.close()
    return Tally(seen, matched, seconds)


async def _take(fetcher: Fetcher, partition_fetch: PartitionFetch, work: Work) -> Fetched:
    while (taken := partition_fetch.take()) is None:
        fetcher.changed.clear()
        await fetcher.changed.wait()
    if not isinstance(taken, Fetched):
        raise SourceChanged(f"{work.topic}-0@{partition_fetch.position}: cannot be read any more ({taken})")
    return taken
