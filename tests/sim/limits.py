"""Small limits, drawn for each history: faults hide behind buffers that are never full and checkpoints that are never due."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

from overlay.dispatch.record_cache import RecordCache

RECORD_CACHE = "overlay.dispatch.dispatcher.RecordCache"
"""Not a constant: what makes a record cache, which is given the number as its size in bytes."""
SMALL: Mapping[str, tuple[int, ...]] = {
    RECORD_CACHE: (1, 5_000),
    # a whole state has to go out within the deadline of a transaction, also where replication takes 0.2 s for each batch
    "overlay.output.entry.BATCH_BYTES": (2_000, 5_000),
    "overlay.replies.reply_batches.BATCH_BYTES": (300, 5_000),
    "overlay.output.produce.REQUEST_BYTES": (500, 5_000),
    "overlay.output.produce.WINDOW": (1, 2),
    "overlay.state.shard_state.PART_BYTES": (100, 2_000),
    "overlay.dispatch.dispatcher.LEAST_LOG": (100, 5_000),
    "overlay.dispatch.dispatcher.ROUND_BYTES": (500, 5_000),
    "overlay.dispatch.dispatcher.STEP_BYTES": (300, 5_000),
    "overlay.dispatch.dispatcher.STEP_MESSAGES": (1, 10),
    "overlay.dispatch.output_offsets.MOST_ENTRIES": (4, 32),
    "overlay.kafka.fetcher.PARTITION_BYTES": (2_000, 20_000),
    "overlay.kafka.shared_fetches.JOINED_ANSWERS": (1, 3),
    "overlay.kafka.shared_fetches.JOINED_BYTES": (500, 50_000),
    "overlay.kafka.shared_fetches.KEEP_BYTES": (2_000, 50_000),
    "overlay.kafka.range_reader.LOOK_BACK": (1, 3),
    "overlay.index.start_positions.WINDOW": (10, 100),
    "overlay.worker.backpressure.FULL": (8, 100),
    "overlay.worker.dispatch_io.refetch.NEAR": (1, 10),
    "overlay.worker.commit.commits.CHECKPOINT_EVERY": (2, 20),
    "overlay.worker.commit.commits.PARTITIONS": (1, 2),
    "overlay.worker.commit.commits.QUEUE_BYTES": (500, 5_000),
    "overlay.worker.commit.commits.QUEUE_ROUNDS": (1,),
    "overlay.worker.commit.commits.TELL_ALL_EVERY": (3, 50),
    "overlay.worker.cursors.intake.ROUND_BYTES": (500, 5_000),
    "overlay.worker.round.indexing.BATCH_BYTES": (500, 5_000),
    "overlay.worker.cursors.order.STEPS": (1, 4),
}
"""Constants of the product by full name, and values to draw from."""


def draw_limits(chance: random.Random) -> dict[str, int]:
    """Return small limits; half of all histories have none."""
    share = chance.choice((0.0, 0.0, 0.2, 0.6))
    return {name: chance.choice(values) for name, values in SMALL.items() if chance.random() < share}


def draw_index(chance: random.Random) -> dict[str, Any]:
    """Return how a stream's index is cut, as its file has it; half of all histories have the defaults."""
    if chance.random() < 0.5:
        return {}
    return {"chunk_records": chance.choice((1, 10, 100)), "chunk_age": chance.choice(("500ms", "10s"))}


def read_limits(limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the values that these limits have in the modules of the product."""
    return {
        name: functools.partial(RecordCache, value, 0) if name == RECORD_CACHE else value
        for name, value in limits.items()
    }
