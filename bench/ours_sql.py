"""Our own sides of the sql bench: the scan of the scan bench, with filters over columns instead of subjects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from bench.lateness import Late, Sifting
from bench.ours import Count, OverlayScan, explain, scan
from bench.sides import STREAM_SUBJECTS, TEMPLATE, Tally
from overlay.clock import now_ms
from overlay.config.stream import Property
from overlay.config.values import ValuesConfig
from overlay.filter import compile_sql
from overlay.kafka.fetched import Fetched
from overlay.match import Addressing, Audience, Masks
from overlay.match.formats import make_format
from overlay.scan import Malformed
from overlay.subject import SubjectRule


class OverlaySql:
    """As many consumers as there are filters, each of all subjects, in one scan."""

    name = "overlay"
    warm = True

    def run(self, sifting: Sifting) -> Tally:
        return asyncio.run(scan(sifting.work, _make_row_filter(sifting, sifting.filters)))

    def close(self) -> None:
        """Nothing is kept between runs."""


class OneFilter(OverlaySql):
    """The first of the filters alone."""

    name = "one"

    def run(self, sifting: Sifting) -> Tally:
        tally = asyncio.run(scan(sifting.work, _make_row_filter(sifting, sifting.filters[:1])))
        return Tally(tally.records, None, tally.seconds)


class JsonSql(OverlaySql):
    """The same filter over the same records with JSON values."""

    name = "json"

    def run(self, sifting: Sifting) -> Tally:
        return super().run(replace(sifting, work=sifting.as_json, values=ValuesConfig()))


class SubjectScan:
    """The same scan with a filter by subject."""

    name = "subject"
    warm = True

    def __init__(self) -> None:
        self._scan = OverlayScan()

    def run(self, sifting: Sifting) -> Tally:
        tally = self._scan.run(sifting.work)
        return Tally(tally.records, None, tally.seconds)

    def close(self) -> None:
        """Nothing is kept between runs."""


def _make_row_filter(sifting: Sifting, filters: Sequence[Late]) -> Count:
    properties = {name: Property.model_validate(entry) for name, entry in sifting.properties.items()}
    rule = SubjectRule.from_template(TEMPLATE)
    addressing = Addressing(rule, STREAM_SUBJECTS, values=make_format(sifting.values))
    audience = Audience(addressing.dictionary(sifting.work.topic, 0), [STREAM_SUBJECTS] * len(filters))
    masks = Masks([compile_sql(late.sql, properties) for late in filters], properties)

    def count(fetched: Fetched) -> tuple[int, int]:
        seen = matched = 0
        pieces = addressing.read(
            sifting.work.topic, 0, fetched.data, fetched.position, more=masks.fields, aborted=fetched.aborted
        )
        for piece in pieces:
            if isinstance(piece, Malformed):
                raise explain(sifting.work, piece)
            seen += len(piece.records)
            selection = audience.select(piece.codes)
            sifted = masks.sift(piece, {i: selection.of(i) for i in selection.wanting()}, now_ms())
            matched += sum(rows.size for rows in sifted.rows.values())
        return seen, matched

    return count
