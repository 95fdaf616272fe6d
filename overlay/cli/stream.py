"""`overlay stream`: commands to show streams, to reset one, and to add new partitions to one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .folder import (
    change_options,
    confirm,
    is_drawn,
    look_around,
    look_options,
    open_folder,
    print_facts,
    print_listing,
    refuse_unknown,
)
from .groups import SuggestingGroup

if TYPE_CHECKING:
    from overlay.view.rewind import RewindPlan


@click.group(cls=SuggestingGroup)
def stream() -> None:
    """List streams, show how they are, begin one anew, or extend one."""


@stream.command("ls")
@look_options
def list_all(folder: Path, as_json: bool) -> None:
    """List the streams: state, rate, and how far they are behind.

    Rates come from the running service. When none answers, the rest comes from Kafka itself.
    """
    facts = look_around(open_folder(folder), draws=not as_json and is_drawn())
    if as_json:
        from overlay.view.wire import describe_stream

        print_facts(facts, streams=[describe_stream(s) for s in facts.streams.values()])
    else:
        from overlay.view.listing import list_streams

        print_listing(list_streams(facts))


@stream.command()
@click.argument("name")
@look_options
def info(name: str, folder: Path, as_json: bool) -> None:
    """Show one stream: partitions, positions, ends, rate, and how far its chunk index is."""
    import asyncio
    from dataclasses import replace

    from overlay.view.console import make_console
    from overlay.view.indexed import describe_index, read_indexes
    from overlay.view.table import print_stream
    from overlay.view.wire import describe_stream

    loaded = open_folder(folder)
    facts = look_around(loaded)
    if name not in facts.streams:
        raise refuse_unknown("stream", name, facts.streams, folder)
    found = facts.streams[name]
    if found.index is None and name in loaded.streams:
        stored = asyncio.run(read_indexes(loaded, [name]))
        found = replace(found, index=describe_index(stored[name]))
    if as_json:
        print_facts(facts, stream=describe_stream(found))
    else:
        print_stream(make_console(), facts, found)


@stream.command()
@click.argument("name")
@click.option("--to", "where", type=click.Choice(["start", "end"]), default="start", show_default=True)
@change_options
def reset(name: str, where: str, folder: Path, yes: bool) -> None:
    """Begin a stream anew, at the start or the end of its topics.

    This is needed after a topic was deleted and created again. The old positions mean nothing in the new log, so the
    stream stops until it is reset. Consumer sequences continue, and consumers of Spark jobs are left alone. A running
    service applies the reset without a restart.
    """
    import asyncio

    from overlay.view.rewind import Where, plan_rewind
    from overlay.view.stored import read_memory

    loaded = open_folder(folder)
    if name not in loaded.streams:
        raise refuse_unknown("stream", name, loaded.streams, folder)
    memory = asyncio.run(read_memory(loaded))
    rewind = plan_rewind(loaded, memory, name, Where(where))
    if not rewind.is_needed(memory):
        click.echo(f"nothing is remembered of stream {name}, so there is nothing to reset")
        return
    announce(rewind)
    confirm("Reset the stream?", yes=yes)
    asyncio.run(rewind.run(loaded))
    click.echo(f"stream {name} begins anew; a running service takes this up within some seconds")


@stream.command()
@click.argument("name")
@change_options
def extend(name: str, folder: Path, yes: bool) -> None:
    """Make a stream of one partition read the partitions that were added to its topic.

    Existing sequences stay as they are, and a ledger assigns all later ones. A running service
    applies this without a restart. If the command is interrupted, run it again.
    """
    import asyncio

    from overlay.view.stored import name_source
    from overlay.worker.extension import carry_out, plan_extension

    loaded = open_folder(folder)
    if name not in loaded.streams:
        raise refuse_unknown("stream", name, loaded.streams, folder)
    plan = asyncio.run(plan_extension(loaded, name))
    if plan.is_begun:
        click.echo(f"stream {name} has its ledger already; services that have stopped the stream begin again")
    else:
        click.echo(f"stream {name} will also read {', '.join(map(name_source, plan.added))}. This cannot be taken back")
        confirm("Extend the stream?", yes=yes)
    cut = asyncio.run(carry_out(loaded, plan))
    if cut >= 0:
        assert plan.first is not None
        click.echo(
            f"stream {name} has a ledger: up to {cut} its sequences are the offsets of {name_source(plan.first)} + 1, from"
            f" {cut + 1} on the ledger gives them; a running service takes this up within some seconds"
        )


def announce(rewind: RewindPlan) -> None:
    """Print what the reset will do."""
    from rich.text import Text

    from overlay.view.console import make_console
    from overlay.view.table import make_moves

    console = make_console()
    if rewind.reason:
        console.print(Text(rewind.reason), soft_wrap=True)
    console.print(Text(f"The consumers of stream {rewind.stream} begin anew at the {rewind.where} of its topics:"))
    console.print(make_moves(console, rewind.list_moves()))
    for line in rewind.list_effects():
        console.print(Text(line), soft_wrap=True)
