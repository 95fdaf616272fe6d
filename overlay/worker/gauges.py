"""The gauges that no event sets: they are worked out when /metrics is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from overlay.clock import now_ms
from overlay.metrics import Metrics
from overlay.state.lag import Lags
from overlay.state.shard_state import ConsumerId

from .metric_series import TURN


@dataclass(frozen=True, slots=True)
class Gauges:
    """Sets the gauges of what one worker serves, and of the consumers of its shards that Spark jobs deliver. Other workers
    and the jobs set those of the rest."""

    metrics: Metrics
    lags: Lags
    opened: Collection[ConsumerId]
    """Consumers that have series. They change while `set_consumers` waits."""

    def set_worker(self, *, is_ready: bool, owned: int, shards: int) -> None:
        """Set the gauges without labels. `is_ready`: of the worker. `owned`: how many shards are assigned to
        it; `shards`: how many there are."""
        self.metrics.ready.set(is_ready)
        self.metrics.shards_owned.set(owned)
        self.metrics.shards.set(shards)

    async def set_consumers(self, find_stalled: Callable[[], Collection[ConsumerId]]) -> None:
        """Set the lag and stalled gauges of all consumers that have series; an unknown lag leaves its gauge
        as it was. `find_stalled`: returns the stalled consumers. Lets other tasks run after every TURN
        consumers."""
        stalled, now = find_stalled(), now_ms()
        for count, id in enumerate(list(self.opened), 1):
            # one that has gone meanwhile would get its series back
            if id in self.opened:
                lag = self.lags.find(id, now)
                if lag.records is not None:
                    self.metrics.consumer_lag_records.labels(*id).set(lag.records)
                if lag.seconds is not None:
                    self.metrics.consumer_lag_seconds.labels(*id).set(lag.seconds)
                self.metrics.consumer_stalled.labels(*id).set(id in stalled)
            if count % TURN == 0:
                await asyncio.sleep(0)

    def set_silence(self, found: Mapping[ConsumerId, float]) -> None:
        """Set for how many seconds the Spark jobs of these consumers have been silent."""
        for id, seconds in found.items():
            self.metrics.spark_silent_seconds.labels(*id).set(seconds)

    def set_suspended(self, found: Iterable[Mapping[str, bool]]) -> None:
        """Set whether the redelivery of streams is suspended. `found`: of each shard, by stream, whether it
        is suspended there. The consumers of a stream may be in several shards; one shard suffices."""
        suspended: dict[str, bool] = {}
        for of_shard in found:
            for name, is_suspended in of_shard.items():
                suspended[name] = suspended.get(name, False) or is_suspended
        for name, is_suspended in suspended.items():
            self.metrics.redelivery_suspended.labels(name).set(is_suspended)

    def set_stream(self, found: Mapping[str, Any]) -> None:
        """Set the gauges of a stream. `found`: what /streams says of it (report.py)."""
        metrics, name = self.metrics, found["name"]
        # a worker that keeps its index reads it as well
        if found["state"] != "elsewhere" or found["index"] is not None:
            metrics.stream_stopped.labels(name).set(found["state"] in ("stopped", "waiting"))
            metrics.partitions_awaiting_schemas.labels(name).set(len(found["waiting"]))
        if (index := found["index"]) is not None:
            metrics.index_stopped.labels(name).set(index["reason"] != "")
            # without an index it is not known how far it reaches: the lag stays what it was
            if not index["reason"]:
                known = [part for part in index["partitions"].values() if part["end"] >= 0]
                behind = sum(max(0, part["end"] - part["position"]) for part in known)
                metrics.index_lag_records.labels(name).set(behind)
            if (ledger := index["ledger"]) is not None:
                metrics.ledger_next_sequence.labels(name).set(ledger["last_sequence"] + 1)
                metrics.ledger_runs.labels(name).set(ledger["runs"])
