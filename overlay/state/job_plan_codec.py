"""Plans and commits of Spark jobs as records of their state topic: JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from overlay.units import read_int64

from .job_pace import PaceState
from .job_plan import BatchPlan, ConsumerPlan, JobPosition, WriterCommit
from .offsets_json import parse_offsets, parse_spans, spell_offsets, spell_spans
from .shard_state import StateUnreadable

VERSION = 2


def encode_plan(plan: BatchPlan) -> bytes:
    """Return the record of a plan."""
    return _encode(
        "plan",
        {
            "batch": plan.batch,
            "now": plan.now,
            "name": plan.name,
            "stream": plan.stream,
            "ends": spell_spans(plan.ends),
            "consumers": {
                name: {
                    **asdict(each),
                    "floors": spell_offsets(each.floors),
                    "reads": spell_spans(each.reads),
                    "snapshot": spell_offsets(each.snapshot),
                }
                for name, each in plan.consumers.items()
            },
            "writers": spell_offsets(plan.writers),
            "is_complete": plan.is_complete,
            "owner": plan.owner,
            "ended": plan.ended,
            "log_ends": spell_offsets(plan.log_ends),
            "ids": dict(sorted(plan.ids.items())),
            "outputs": dict(sorted(plan.outputs.items())),
            "is_merged": plan.is_merged,
            "left": {
                name: {**asdict(each), "offsets": spell_offsets(each.offsets), "snapshot": spell_offsets(each.snapshot)}
                for name, each in plan.left.items()
            },
        },
    )


def decode_plan(data: bytes) -> BatchPlan:
    """Return the plan of a record. Raises StateUnreadable."""
    found = _decode("plan", data)
    try:
        consumers = {
            name: ConsumerPlan(
                each["fingerprint"], each["before"], each["last"], each["since"],
                parse_offsets(each["floors"]), each["claim"], parse_spans(each["reads"]), each.get("letters", 0),
                PaceState(**each.get("pace", {})), each.get("lost", 0), parse_offsets(each.get("snapshot", {})),
                each.get("ahead", -1), each.get("skipped", 0), each.get("rate", -1),
            )
            for name, each in found["consumers"].items()
        }  # fmt: skip
        left = {
            name: JobPosition(
                parse_offsets(each["offsets"]), each["sequence"], each["claim"], parse_offsets(each.get("snapshot", {}))
            )
            for name, each in found["left"].items()
        }
        return BatchPlan(
            found["batch"], found["now"], found["name"], found["stream"], parse_spans(found["ends"]),
            consumers, parse_offsets(found["writers"]), found["is_complete"], left, parse_offsets(found.get("log_ends", {})),
            found.get("owner", ""), found.get("ended", 0), dict(found.get("ids", {})),
            dict(found.get("outputs", {})), found.get("is_merged", False) is True,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise StateUnreadable(f"a plan that cannot be read: {error!r}") from error


def encode_commit(commit: WriterCommit) -> bytes:
    """Return the record of a writer's commit."""
    return _encode("commit", asdict(commit))


def decode_commit(data: bytes) -> WriterCommit:
    """Return the commit of a record. Raises StateUnreadable."""
    found = _decode("commit", data)
    try:
        return WriterCommit(found["batch"], found["plan"], found["records"])
    except (KeyError, TypeError) as error:
        raise StateUnreadable(f"a commit that cannot be read: {error!r}") from error


def _encode(kind: str, fields: Mapping[str, object]) -> bytes:
    return json.dumps({"version": VERSION, "kind": kind, **fields}).encode()


def _decode(kind: str, data: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(data, parse_int=read_int64)
        if found["kind"] != kind or found["version"] != VERSION:
            raise StateUnreadable(
                f"the state has a {found['kind']} of version {found['version']}; this version of the overlay reads a {kind}"
                f" of version {VERSION}. Use the version that wrote it"
            )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StateUnreadable(f"a record of the state is no {kind}: {error!r}") from error
    return found
