"""`overlay apply`: the consumers of a folder into a running service, by requests."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overlay.errors import OverlayError

from .folder import confirm, json_option, open_control, print_json

if TYPE_CHECKING:
    from overlay.client.control.consumer_info import ConsumerInfo
    from overlay.client.control.control import Control
    from overlay.config import Loaded
    from overlay.control.change_plan import Held, Step
    from overlay.control.records import ConsumerId

DONE = "done"
NOT_TRIED = "not tried, since there was no answer before"
HELD_BACK = "not removed, since something else was refused; apply again"


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.option("--prune", is_flag=True, help="Remove durable consumers of DIR's streams that have no file in DIR.")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@json_option
def apply(folder: Path, prune: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Give the running service the consumers of the config folder DIR.

    Shows a plan like a diff, asks, and then adds, changes and with --prune removes consumers by requests, each confirmed by
    the service. Consumers that a file of the workers defines stay as that file says. Exit code 1 if something was refused
    or not done.
    """
    from overlay.view.change_plan import describe_plan, print_plan
    from overlay.view.console import make_console

    loaded = read_sound(folder)
    outcomes: dict[ConsumerId, str] = {}
    with open_control(folder) as control:
        plan, notes = find_plan(loaded, control, prune=prune)
        if not as_json:
            for note in notes:
                click.echo(f"note: {note}", err=True)
            print_plan(make_console(), plan)
        if not dry_run and (count := sum(step.verb.changes for step in plan)):
            confirm(f"Ask the service for {count} change{'' if count == 1 else 's'}?", yes=yes)
            for step, outcome in carry_out(control, plan):
                outcomes[step.id] = outcome
                if not as_json:
                    click.echo(f"{step.verb.value} {'/'.join(step.id)}: {outcome}")
    if as_json:
        print_json(describe_plan(plan, outcomes, dry_run=dry_run) | {"notes": notes})
    sys.exit(0 if is_complete(plan, outcomes.values()) else 1)


def read_sound(folder: Path) -> Loaded:
    """Return the config of a folder without problems; its warnings are printed on stderr. Raises OverlayError if it has
    problems, after they were printed there: a consumer whose file is bad would look like one that has no file.
    """
    from overlay.config import load
    from overlay.config.summary import list_lines

    loaded = load(folder)
    if loaded.problems:
        for line in list_lines(loaded.problems):
            click.echo(line, err=True)
        count = len(loaded.problems)
        raise OverlayError(f"{folder}: nothing was applied: {count} problem{'' if count == 1 else 's'}, see above")
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    return loaded


def find_plan(loaded: Loaded, control: Control, *, prune: bool) -> tuple[list[Step], list[str]]:
    """Return the plan, and notes about streams of the folder that have other topics or subjects in the
    service. Raises Refused, NoAnswer.
    """
    from overlay.control.change_plan import make_plan

    streams = {found["config"]["name"]: found["config"] for found in control.streams()}
    held = {(info.stream, info.name): read_held(info) for info in control.consumers()}
    plan = make_plan(loaded.consumers, held, loaded.streams.keys(), streams.keys(), prune=prune)
    return plan, list(compare_streams(loaded, streams))


def read_held(info: ConsumerInfo) -> Held:
    """Return a consumer as the service has it, in the form that a change plan is made from."""
    from overlay.control.change_plan import Held
    from overlay.control.records import Origin

    return Held(info.config, Origin(info.origin) if info.origin else None, info.push_bound)


def compare_streams(loaded: Loaded, streams: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each stream of the folder that the service has as well, but with other
    topics or subjects. `streams`: the configs that the service tells, by name.
    """
    for name, stream in loaded.streams.items():
        found = streams.get(name)
        if found is not None and (found["topics"], found["subjects"]) != ([*stream.topic_names], [*stream.subjects]):
            yield f"stream {name}: the service has other topics or subjects than {loaded.files[name].file}; its own count"


def carry_out(control: Control, plan: Sequence[Step]) -> Iterator[tuple[Step, str]]:
    """Ask for the changes of a plan one after the other, each when the iteration comes to it. Yield each with DONE,
    or why it was not done.

    A removal is asked for only if the plan refuses nothing and everything before it was done. After a request without
    an answer, which may have been done all the same, nothing more is asked.
    """
    from overlay.client.control.inbox import NoAnswer
    from overlay.control.change_plan import Verb

    is_sound = not any(step.verb is Verb.REFUSE for step in plan)
    is_silent = False
    for step in plan:
        if not step.verb.changes:
            continue
        if is_silent:
            outcome = NOT_TRIED
        elif step.verb is Verb.REMOVE and not is_sound:
            outcome = HELD_BACK
        else:
            try:
                outcome = ask(control, step)
            except NoAnswer as error:
                outcome, is_silent = f"{error} It may have been done all the same", True
            except OverlayError as error:
                outcome = str(error)
        is_sound &= outcome == DONE
        yield step, outcome


def ask(control: Control, step: Step) -> str:
    """Ask for one change and return DONE once the service has confirmed it. Raises Refused, FiltersDiffer, NoAnswer."""
    from overlay.control.change_plan import Verb

    stream, name = step.id
    if step.verb is Verb.REMOVE:
        control.delete(stream, name)
    elif step.verb is Verb.ADD:
        control.add(stream, step.config)
    else:
        control.update(stream, step.config)
    return DONE


def is_complete(plan: Sequence[Step], outcomes: Iterable[str]) -> bool:
    """Return whether the plan refuses nothing, and each of `outcomes` (from `carry_out`) is DONE; without outcomes, as
    in a dry run, only the plan counts.
    """
    from overlay.control.change_plan import Verb

    return all(outcome == DONE for outcome in outcomes) and not any(step.verb is Verb.REFUSE for step in plan)
