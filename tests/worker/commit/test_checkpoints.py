"""What checkpoints between two units leave of the log of states, without Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from overlay.metrics import Metrics
from overlay.output.record import Record
from overlay.state.shard_state import ConsumerState, Delta, StateReplay, encode, write_machine
from overlay.worker.commit import commits as commits_module
from overlay.worker.commit.commits import Commits, CommitUnit

GONE, STAYS = ("S", "gone"), ("S", "stays")


class Log:
    """A log of states, and the transactions that write it."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)

    def replay(self) -> StateReplay:
        """Read the log from its start."""
        replay = StateReplay()
        for offset, record in enumerate(self.records):
            replay.apply(offset, record.key, record.value or b"")
        return replay

    async def begin(self) -> None:
        pass

    async def finish(self, state: bytes, batches: object, more: Sequence[Record], *, after: int) -> Any:
        offset = len(self.records)
        self.records += [Record(None, state), *more]
        return offset, []


@pytest.mark.parametrize("every", [1, 1_000])
async def test_a_consumer_that_a_unit_forgets_is_forgotten_by_a_checkpoint_as_well(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others have machines, a checkpoint leaves the records of machines before it in force."""
    monkeypatch.setattr(commits_module, "CHECKPOINT_EVERY", every)
    known = Delta(consumers={GONE: ConsumerState(3), STAYS: ConsumerState(4)}, generation=1)
    log = Log(Record(None, encode(known)), *write_machine(GONE, b"old"), *write_machine(STAYS, b"kept"))
    state = log.replay().state
    nothing, counted = cast("Any", None), list[object]()
    commits = Commits(
        cast("Any", log), state, ("state", 0), nothing, Metrics(), counted.append, lambda: None, has_machines=True
    )
    await commits.open(Delta())
    await commits.put(CommitUnit(Delta(forgotten=(GONE,))))
    commits.end()
    await commits.run()
    found = log.replay().state
    assert found.consumers == state.consumers == {STAYS: ConsumerState(4)}
    assert found.machines == state.machines == {STAYS: [b"kept"]}
