"""The output of `overlay apply`: a plan as a diff, and what came of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from overlay.control.change_plan import FieldChange, Step, Verb
from overlay.state.shard_state import ConsumerId

_MARKS = {Verb.ADD: "+", Verb.CHANGE: "~", Verb.REMOVE: "-", Verb.LEAVE: " ", Verb.REFUSE: "!"}
_STYLES = {Verb.ADD: "green", Verb.CHANGE: "yellow", Verb.REMOVE: "red", Verb.LEAVE: "dim", Verb.REFUSE: "bold red"}
_COUNTS = (
    (Verb.ADD, "to add"),
    (Verb.CHANGE, "to change"),
    (Verb.REMOVE, "to remove"),
    (Verb.KEEP, "unchanged"),
    (Verb.LEAVE, "left alone"),
    (Verb.REFUSE, "refused"),
)
NOTHING = "-"
"""How a field is shown that is not set."""


def print_plan(console: Console, plan: Sequence[Step]) -> None:
    """Print a plan. Consumers that stay as they are appear only in the numbers at the end."""
    for step in plan:
        for line in list_lines(step):
            console.print(Text(line, style=_STYLES.get(step.verb, "")), soft_wrap=True)
    console.print(Text(summarise(plan)), soft_wrap=True)


def list_lines(step: Step) -> Iterator[str]:
    """Yield the lines of one consumer: its mark, its name and the reason, if any (for a removal, what
    is removed with it), then a line for each field that is set or changed. Yield nothing for a
    consumer that stays as it is.
    """
    if step.verb is Verb.KEEP:
        return
    reason = f": {step.reason}" if step.reason else ""
    if step.verb is Verb.REMOVE:
        reason = ": with its positions and all that waits for acks"
    yield f"{_MARKS[step.verb]} {'/'.join(step.id)}{reason}"
    width = max((len(change.field) for change in step.changes), default=0)
    for change in step.changes:
        yield f"    {change.field.ljust(width)}  {show_change(change, is_new=step.verb is Verb.ADD)}"


def show_change(change: FieldChange, *, is_new: bool) -> str:
    """Return the new value of a field if the consumer is new, else `old -> new`. The values are as in `show_value`."""
    return show_value(change.new) if is_new else f"{show_value(change.old)} -> {show_value(change.new)}"


def show_value(value: object) -> str:
    """Return a value as YAML's flow style has it: `10s`, `[a, b]`, `true`; NOTHING for None and for
    what is empty.
    """
    if value in (None, "", [], {}):
        return NOTHING
    if isinstance(value, list):
        return f"[{', '.join(map(show_value, value))}]"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def summarise(plan: Sequence[Step]) -> str:
    """Return the numbers of a plan: `1 to add, 2 to change, 0 to remove, 17 unchanged`, followed by
    those that are left alone or refused if there are any.
    """
    told = Counter(step.verb for step in plan)
    always = (Verb.ADD, Verb.CHANGE, Verb.REMOVE, Verb.KEEP)
    return ", ".join(f"{told[verb]} {words}" for verb, words in _COUNTS if verb in always or told[verb])


def describe_plan(plan: Sequence[Step], outcomes: Mapping[ConsumerId, str], *, dry_run: bool) -> dict[str, Any]:
    """Return a plan as a JSON object. `outcomes`: what came of each step that was asked for:
    `done`, or why not; the others have "" in the JSON.
    """
    told = Counter(step.verb for step in plan)
    return {
        "dry_run": dry_run,
        **{verb.value: told[verb] for verb in Verb},
        "steps": [
            {
                "verb": step.verb.value,
                "stream": step.id[0],
                "consumer": step.id[1],
                "changes": [{"field": each.field, "old": each.old, "new": each.new} for each in step.changes],
                "reason": step.reason,
                "outcome": outcomes.get(step.id, ""),
            }
            for step in plan
        ],
    }
