"""`overlay apply` against a service that runs, whose own folder has one consumer; and what it does without answers."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from overlay.cli import overlay
from overlay.cli.apply import DONE, HELD_BACK, NOT_TRIED, carry_out
from overlay.client.control.control import Control
from overlay.client.control.inbox import NoAnswer
from overlay.control.change_plan import Step, Verb
from overlay.errors import OverlayError
from tests.control.registries import make_config
from tests.support.kafka import NewTopicFixture
from tests.support.service import StartService
from tests.support.waiting import wait_until

from .trips import DEADLINE_S, Trips, await_delivered, get_consumer


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    """The folder of the service, with one consumer in it."""
    trips = Trips(tmp_path / "service", bootstrap, new_topic())
    trips.add_consumer("filed", to="rome")
    return trips


@pytest.fixture
def ours(trips: Trips, tmp_path: Path) -> Trips:
    """The folder that is applied: the same service and stream, and other consumers."""
    folder = tmp_path / "applied"
    shutil.copytree(trips.folder, folder)
    ours = copy.copy(trips)
    ours.folder = folder
    ours.consumer_file("filed").unlink()
    return ours


def apply(ours: Trips, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(overlay, ["apply", str(ours.folder), *words])
    said = done.output + str(done.exception or "")
    assert done.exit_code == code, said
    return said


def apply_json(ours: Trips, *words: str, code: int = 0) -> dict[tuple[str, str], dict[str, Any]]:
    """The steps by verb and consumer."""
    done = CliRunner().invoke(overlay, ["apply", str(ours.folder), *words, "--json"])
    assert done.exit_code == code, done.output
    return {(step["verb"], step["consumer"]): step for step in json.loads(done.stdout)["steps"]}


def test_a_folder_becomes_what_the_service_has(trips: Trips, ours: Trips, running_service: StartService) -> None:
    trips.produce(20)
    service = running_service(trips.folder)

    def list_served() -> list[str]:
        return sorted(found["name"] for found in service.get_json("/consumers"))

    # a plan alone changes nothing
    ours.add_consumer("rome")
    ours.add_consumer("oslo")
    said = apply(ours, "--dry-run").splitlines()
    assert said[0] == "+ TRIPS/oslo" and said[-1] == "2 to add, 0 to change, 0 to remove, 0 unchanged"
    assert "    filter_subject   trips.oslo" in said
    assert "there is no terminal to ask at" in apply(ours, code=1)
    ours.add_consumer("oslo", to="os*")
    warned = apply(ours, "--dry-run")
    assert "warning: " in warned and "'os*' is an ordinary character" in warned
    ours.add_consumer("oslo")
    assert list_served() == ["filed"]

    # what is asked for is confirmed, and a second time nothing is left to do
    said = apply(ours, "--yes").splitlines()
    assert said[-2:] == ["add TRIPS/oslo: done", "add TRIPS/rome: done"]
    await_delivered(service, "rome", 10)
    assert {verb for verb, _ in apply_json(ours)} == {"keep"}
    # a pause is no difference
    trips.run("consumer", "pause", "TRIPS", "oslo", "--for", "1h")
    assert {verb for verb, _ in apply_json(ours)} == {"keep"}

    # a change that is allowed goes through, one that is not is named, and a removal waits for both
    ours.add_consumer("rome", description="by hand")
    ours.add_consumer("oslo", deliver_policy="new")
    trips.run("consumer", "add", "TRIPS", "third", "--output", trips.output("third"))
    steps = apply_json(ours, "--prune", "--yes", code=1)
    assert steps.keys() == {("change", "rome"), ("refuse", "oslo"), ("remove", "third")}
    assert steps["change", "rome"]["changes"] == [{"field": "description", "old": "", "new": "by hand"}]
    assert "deliver policy can not be updated" in steps["refuse", "oslo"]["reason"]
    assert {name: step["outcome"] for (_, name), step in steps.items()} == {
        "rome": DONE,
        "oslo": "",
        "third": HELD_BACK,
    }
    ours.add_consumer("oslo")
    assert apply_json(ours)["leave", "third"]["reason"] == "it is not in the folder; --prune removes it"
    assert apply_json(ours, "--prune", "--yes")["remove", "third"]["outcome"] == DONE
    assert list_served() == ["filed", "oslo", "rome"]
    # while its shard begins anew, the service says nothing of positions
    found = wait_until(lambda: get_consumer(service, "rome").get("consumer_sequence"), DEADLINE_S, "rome is served")
    assert found == 10, "an update keeps the position"

    # the file of the service is not touched: the same config is left, another one is refused
    trips.add_consumer("filed", to="rome")
    shutil.copy(trips.consumer_file("filed"), ours.consumer_file("filed"))
    assert apply_json(ours)["leave", "filed"]["reason"] == "a file of the workers defines it"
    ours.add_consumer("filed", to="oslo")
    (changes,) = (apply_json(ours, code=1)["refuse", "filed"]["changes"],)
    assert changes == [{"field": "filter_subject", "old": "trips.rome", "new": "trips.oslo"}]
    assert trips.run_json("consumer", "info", "TRIPS", "filed")["consumer"]["filters"] == ["trips.rome"]


def test_a_folder_with_a_problem_is_not_applied(ours: Trips) -> None:
    """No service is asked: a consumer whose file is bad would be removed by --prune."""
    ours.add_consumer("rome", ack_wait="soon")
    said = apply(ours, "--prune", "--yes", code=1)
    assert "nothing was applied: 1 problem, see above" in said and "rome.yaml" in said


def test_a_service_that_does_not_run(ours: Trips) -> None:
    assert "makes this topic when it starts" in apply(ours, "--dry-run", code=1)


@dataclass(slots=True)
class Answers:
    """A client that refuses some consumers and gets no answer about others."""

    refused: Sequence[str] = ()
    silent: Sequence[str] = ()
    asked: list[str] = field(default_factory=list)

    def add(self, stream: str, config: Any) -> None:
        self._answer(config.id[1])

    def update(self, stream: str, config: Any) -> None:
        self._answer(config.id[1])

    def delete(self, stream: str, name: str) -> None:
        self._answer(name)

    def _answer(self, name: str) -> None:
        self.asked.append(name)
        if name in self.refused:
            raise OverlayError(f"{name} is refused")
        if name in self.silent:
            raise NoAnswer("no answer within 10 s.")


PLAN = [
    *(Step(Verb.ADD, ("S", name), make_config(name)) for name in ("a", "b", "c")),
    Step(Verb.KEEP, ("S", "k"), make_config("k")),
    Step(Verb.REMOVE, ("S", "z")),
]


def run(answers: Answers, plan: Sequence[Step] = PLAN) -> dict[str, str]:
    return {step.id[1]: outcome for step, outcome in carry_out(cast(Control, answers), plan)}


def test_every_change_is_asked_for_and_removals_last() -> None:
    answers = Answers()
    assert run(answers) == dict.fromkeys("abcz", DONE)
    assert answers.asked == ["a", "b", "c", "z"]


def test_a_refused_change_holds_back_removals_and_nothing_else() -> None:
    answers = Answers(refused=["b"])
    assert run(answers) == {"a": DONE, "b": "b is refused", "c": DONE, "z": HELD_BACK}
    assert run(Answers(), [Step(Verb.REFUSE, ("S", "r")), *PLAN])["z"] == HELD_BACK


def test_nothing_is_asked_after_a_request_without_an_answer() -> None:
    answers = Answers(silent=["b"])
    found = run(answers)
    assert found == {"a": DONE, "b": "no answer within 10 s. It may have been done all the same"} | dict.fromkeys(
        "cz", NOT_TRIED
    )
    assert answers.asked == ["a", "b"]
