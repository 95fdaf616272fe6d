"""The script of the status page, without a browser: to which row an action goes, and which question an answer is of."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from overlay.fleet.findings import Expected
from overlay.fleet.live import LivePicture
from overlay.fleet.page import read_page

from .statuses import NOW, make_consumer, make_status, make_stream

NODE = shutil.which("node")
DOCUMENT = Path(__file__).with_name("page_document.js")
DEADLINE_S = 60

pytestmark = pytest.mark.skipif(NODE is None, reason="there is no node on PATH")


def play(scenario: str, **stream: Any) -> Any:
    """What a scenario returns that begins with a page which shows stream S with consumers c and d, as like as can be, and
    which allows actions."""
    live = LivePicture(expected=Expected(1, "d1", frozenset()))
    consumers = make_consumer("c"), make_consumer("d")
    live.memory.fold(make_status(consumers=consumers, streams=(make_stream(**stream),)), NOW)
    live.judge(0)
    begin = f"""
        asked.shift().answer({{ header: "Overlay-Admin-Token" }});
        run("take(given)", {{ given: {json.dumps(live.describe(0))} }});
        await settle();
        const text = (selector) => find(selector).textContent, submit = () => find("#confirm form").fire("submit");
        const choose = (place) => {{
          find("#confirm .where select").value = place;
          find("#confirm .where select").fire("input");
        }};
    """
    command = [str(NODE), str(DOCUMENT), begin + scenario]
    done = subprocess.run(
        command, input=read_page()[0], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_buttons_of_the_details_are_those_of_the_open_consumer() -> None:
    """Two consumers of which the same is told."""
    titles = play("""
        const titles = [];
        for (const key of ["S/c", "S/d"]) {
          run(`open("${key}")`);
          find("#details .actions").children[0].click();
          titles.push([text("#details-title"), text("#confirm-title")]);
          find("#confirm").close();
          find("#details").close();
          await settle();
        }
        return titles;
    """)
    assert titles == [["S/c", "Pause S/c?"], ["S/d", "Pause S/d?"]]


RESET = """
    find("#confirm .where select").value = "start";
    run("const reset = ACTIONS.streams(given.streams[0])[0]; ask(reset)");
    submit();
"""


def test_a_plan_that_comes_late_is_not_that_of_another_place() -> None:
    found = play(f"""
        {RESET}
        choose("end");
        asked[0].answer({{ plan: "to the start" }});
        await settle();
        const late = [text("#confirm .plan"), text("#confirm .do")];
        submit();
        return [late, asked.map((each) => each.body)];
    """)
    dry = {"action": "reset", "stream": "S", "dry_run": True}
    assert found == [["", "see what it does"], [dry | {"to": "start"}, dry | {"to": "end"}]]


def test_a_plan_that_comes_late_is_not_that_of_a_dialog_that_was_opened_again() -> None:
    found = play(f"""
        {RESET}
        find("#confirm .cancel").click();
        run("ask(reset)");
        asked[0].answer({{ plan: "of the first" }});
        await settle();
        const late = [text("#confirm .plan"), text("#confirm .do"), find("#confirm .do").disabled];
        submit();
        asked[1].answer({{ plan: "of the second" }});
        await settle();
        return [late, text("#confirm .plan"), text("#confirm .do")];
    """)
    assert found == [["", "see what it does", False], "of the second", "reset"]


PLANNED = f"""
    {RESET}
    asked[0].answer({{ plan: "to the start" }});
    await settle();
    submit();
"""


def test_what_was_done_is_told_and_ends_the_dialog() -> None:
    found = play(f"""
        {PLANNED}
        asked[1].answer({{ done: "begun anew" }});
        await settle();
        return [asked[1].body, find("#confirm").open, text("#said"), find("#said").className];
    """)
    body = {"action": "reset", "stream": "S", "to": "start"}
    assert found == [body, False, "begun anew; the tables follow within a few seconds", ""]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{ done: "begun anew" }', ["begun anew; the tables follow within a few seconds", ""]),
        ('{ error: "Kafka is away" }, false', ["Begin stream S anew? Kafka is away", "bad"]),
    ],
)
def test_how_an_action_ended_is_told_after_its_dialog_was_closed(answer: str, said: list[str]) -> None:
    found = play(f"""
        {PLANNED}
        find("#confirm .cancel").click();
        await settle();
        run('ask(ACTIONS.consumers(tables.consumers.get("S/c"))[0])');
        asked[1].answer({answer});
        await settle();
        return [text("#said"), find("#said").className, find("#confirm").open, text("#confirm .answer")];
    """)
    assert found == [*said, True, ""]


@pytest.mark.parametrize(("index", "has_it"), [("", False), ("running", True), ("stopped", True)])
def test_there_are_columns_of_the_index_if_one_is_kept_or_should_be(index: str, has_it: bool) -> None:
    titles, cell = play(
        """
        const columns = run("listColumns('streams')"), own = columns.find((each) => each.title === "index");
        return [columns.map((each) => each.title), own ? own.value(run("given").streams[0]) : ""];
        """,
        index=index,
    )
    assert ("index" in titles, "index behind" in titles, cell) == (has_it, has_it, index)
