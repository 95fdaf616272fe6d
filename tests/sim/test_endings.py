"""An output that does not tell one owner what is open there, and tells a later one (overlay/output/ending.py)."""

from __future__ import annotations

from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.state.amend import amend_shard
from overlay.state.shard_state import Delta

from .host import Worker
from .kafka.codes import Code
from .scenes import await_values, read_values, until
from .test_earlier_markers import Losses, hide
from .test_earlier_markers import deliver_first as deliver_to_two
from .test_lost_markers import (
    OUTPUT,
    STATE,
    check_rest,
    configure,
    deliver_first,
    is_open,
    make_world,
    run_as_process,
    sabotage,
)
from .world import World
from .writing import New, send, write_under_one_key

OTHER = ("other", 0)


def test_a_commit_is_kept_that_an_owner_in_between_could_not_see() -> None:
    """The owner in between commits elsewhere, and is killed before another transaction ends, which is aborted."""
    world = make_world(1)

    async def history(world: World) -> None:
        worker = await deliver_to_two(world)
        await send(world, "source", [New(0, b"other", b"0")])
        await await_values(world, "other", ["0"])
        (session,) = worker.service.sessions
        losses, reveal = Losses(world, worker), await hide(world, session.commits.transactions, OUTPUT)
        await losses.lose(OUTPUT)
        world.cluster.refuse_produce("other", Code.POLICY_VIOLATION)
        await send(world, "source", [New(0, b"other", b"1")])
        await until(lambda: session not in worker.service.sessions, "the session ends")
        world.cluster.refuse_produce("other", Code.NONE)
        await await_values(world, "other", ["1"])
        losses.kill_at(OTHER)
        await send(world, "source", [New(0, b"other", b"2")])
        await until(lambda: losses.has_killed, "the next owner is killed before its transaction ends")
        assert is_open(world, OUTPUT)
        reveal()
        worker.start()
        await send(world, "source", [New(0, b"out", b"3")])
        await await_values(world, "other", ["2"])
        await await_values(world, "out", ["3"])
        assert read_values(world, "out") == ["0", "lost", "3"]
        assert read_values(world, "other") == ["0", "1", "2"]
        await worker.stop()

    world.run(history)


def test_an_abort_is_not_shown_after_an_owner_that_writes_no_outputs() -> None:
    """An operator's command takes the shard over and commits a change, and looks at no output."""
    world = make_world(2)

    async def history(world: World) -> None:
        loaded = configure(world)
        worker = Worker(world, "w", loaded)
        await deliver_first(world, worker)
        with sabotage(world, worker, OUTPUT, is_kept=False) as saboteur:
            await write_under_one_key(world, "source", ["lost"])
            await until(lambda: saboteur.has_struck, "a transaction ended without leaders")
            await until(lambda: not is_open(world, STATE), "the coordinator has aborted it", 60.0)
        world.cluster.restore_leader(*OUTPUT)

        async def command() -> None:
            client = await open_client(loaded.service.kafka)
            async with Admin(loaded.service.kafka) as admin:
                await amend_shard(loaded.service, client, admin, 0, lambda state: Delta())
            await client.close()

        await run_as_process(world, command())
        assert is_open(world, OUTPUT)
        await check_rest(world, worker)

    world.run(history)
