"""SQL filters: compiled from their text, bound, and evaluated on an Arrow batch, with the caches that all threads share."""

from __future__ import annotations

import pyarrow as pa

from overlay.filter import compile_sql

from .data import NOW, PROPERTIES, RECORDS
from .engine import Answer, Digest, Job, Work

TEXTS = [
    "distance > {n} AND plane LIKE 'N1%{n}%'",
    "leg IN ('LAX', 'SFO', 'x{n}') OR delay * 2 > {n}.5",
    "NOT (carrier = 'UA' AND distance < {n})",
    "carrier LIKE '_A' AND (delay IS NULL OR delay < {n})",
]


def open_filters() -> Work:
    """Compile filters of some texts and evaluate them."""
    batch = pa.RecordBatch.from_pydict(
        {
            "application_properties": [
                {
                    "distance": at * 7 % 3000,
                    "delay": None if at % 5 == 0 else at / 3,
                    "plane": f"N{at % 400}{at}",
                    "leg": ("LAX", "SFO", "x3", "BOS")[at % 4],
                    "carrier": ("UA", "AA", "B6")[at % 3],
                }
                for at in range(RECORDS)
            ]
        }
    )

    def work() -> Answer:
        digest = Digest()
        for number in range(6):
            for text in TEXTS:
                sql = text.replace("{n}", str(number))
                answer = compile_sql(sql, PROPERTIES).evaluate(batch, now=NOW)
                digest.add(text, answer.to_pylist())
        return digest.finish()

    return work


FILTERS = [Job("filters", open_filters)]
