"""Our own sides of the skip bench: the Python reader with the chunk index, and without it."""

from __future__ import annotations

import time

from bench.meters import Question
from bench.sides import Tally
from overlay.client import Client

COLUMNS = ["value"]


class OverlaySkip:
    """`client.read(...)`: the values of the records that pass are built."""

    name = "overlay"
    warm = True
    index = True

    def __init__(self, client: Client) -> None:
        self._client = client

    def run(self, question: Question) -> Tally:
        began = time.perf_counter()
        batches = self._client.read(question.stream, columns=COLUMNS, index=self.index, **question.ask)
        matched = sum(batch.num_rows for batch in batches)
        return Tally(question.meters.records, matched, time.perf_counter() - began)

    def close(self) -> None:
        self._client.close()


class FullScan(OverlaySkip):
    """The same with `index=False`."""

    name = "fullscan"
    index = False
