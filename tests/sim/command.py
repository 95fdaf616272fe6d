"""What `python -m tests.sim` does."""

from __future__ import annotations

import argparse
import time
import traceback

import click

from overlay.logs import set_up_logs

from .many import run_many
from .plan import Plan
from .shrink import shrink
from .speed import measure_speed
from .storm import Storm

SPEED_SEEDS = 20
"""Storms that `--speed` measures, if the command line does not say how many."""


def run(asked: argparse.Namespace) -> int:
    """Run what the command line asks for, and print a line for each history that failed."""
    set_up_logs(level=50)
    if asked.seed is not None:
        return tell(asked.seed, always=asked.story, shrinks=asked.shrink, requests=asked.requests)
    if asked.speed:
        return tell_speed(range(asked.first, asked.first + (asked.seeds or SPEED_SEEDS)))
    return judge_many(range(asked.first, asked.first + asked.seeds), asked.processes)


def tell(seed: int, *, always: bool, shrinks: int, requests: bool) -> int:
    """Run one history. If it fails, look for a smaller plan that fails in as many runs as `shrinks`, and print its story.

    `requests`: whether the story has a line for each request.
    """
    storm, failure = run_one(seed, Plan.draw(seed), requests=requests)
    if failure and shrinks:
        plan = shrink(storm.plan, lambda smaller: bool(run_one(seed, smaller)[1]), shrinks)
        if plan is not storm.plan:
            click.echo(failure.splitlines()[-1])
            storm, failure = run_one(seed, plan, requests=requests)
    if always or failure:
        click.echo("\n".join(storm.world.story))
    click.echo(f"{failure or f'history {seed} passed'} (digest {storm.world.network.digest:08x})")
    return 1 if failure else 0


def run_one(seed: int, plan: Plan, *, requests: bool = False) -> tuple[Storm, str]:
    """Run a history with its story; return it, and how it failed, empty if it passed."""
    storm = Storm(seed, plan=plan, tells=True, tells_requests=requests)
    try:
        storm.run()
    except Exception as error:  # noqa: BLE001 - whatever it is belongs to the story
        return storm, "".join(traceback.format_exception(error, chain=False)).rstrip()
    return storm, ""


def judge_many(seeds: range, processes: int) -> int:
    """Run histories, print those that failed, and at the end `N histories, F failed`."""
    failed, virtual_s, began = 0, 0.0, time.perf_counter()
    for ended in run_many(seeds, processes):
        virtual_s += ended.virtual_s
        if ended.failure:
            failed += 1
            click.echo(f"history {ended.seed}: {ended.failure}")
    real_s = time.perf_counter() - began
    click.echo(f"{virtual_s:.0f} virtual seconds in {real_s:.0f} s, {virtual_s / real_s:.0f} a second")
    click.echo(f"{len(seeds)} histories, {failed} failed")
    return 1 if failed else 0


def tell_speed(seeds: range) -> int:
    """Print a line for each kind of history: how many virtual seconds pass in a second of processor time."""
    for speed in measure_speed(seeds):
        click.echo(str(speed))
    return 0
