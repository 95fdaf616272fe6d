"""The commands that documents show: they exist, and those of the pages for newcomers run as they are written.

The pages of RUN are followed in their order, in one scratch folder and on one embedded Kafka: each block of sh and python has
to end with exit code 0, and to print what the page shows below it. CONTRIBUTING.md#documents has the comments that say
otherwise.
The one thing that the test changes is the HTTP port, which other programs of the machine may have.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlay.local import Condition, status
from tests.support.pages import Block, How, MarkerError, is_shown, list_blocks, list_pages, parse_blocks
from tests.support.source import REPOSITORY
from tests.support.terminal import Terminal, await_end, open_terminal
from tests.support.waiting import wait_until

TUTORIAL = "docs/tutorial.md"
FURTHER = ("README.md", "docs/questions.md", "docs/reading.md")
"""Pages that go on in the tutorial's folder. Only `make test-long` runs them, since each call takes a second of a processor."""
RUN = (TUTORIAL, *FURTHER)
REFERENCES = ("docs/cli.md", "docs/configuration.md", "docs/operations.md", "docs/security.md")
"""Pages that go on there as well, and name the flights of examples/flights besides. `make test-long` runs them."""
PROGRAMS = (
    r"overlay|make|python|docker|kubectl|curl|kafka-[a-z-]+\.sh|spark-submit|pip|export|install|cp|systemctl|echo|cat"
)
FLIGHTS = """
cp {examples}/streams/flights.yaml overlay-config/streams/
python -c "from overlay.local import flights; flights.publish('$BOOTSTRAP', 'flights', 0.01)"
until overlay stream info FLIGHTS | grep -E "running|idle"; do sleep 0.2; done
overlay consumer add FLIGHTS late-jfk --output late-jfk --subject "flights.JFK.>" --sql "dep_delay > 60" \\
    --set ack_wait=10s --set dead_letter=late-jfk.dead
overlay consumer add FLIGHTS jfk --output jfk --subject "flights.JFK.>" --ack none
overlay consumer add FLIGHTS work --subject "flights.LGA.>"
"""
"""What the references take for granted, besides the tutorial's orders."""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with open_terminal(tmp_path_factory.mktemp("pages")) as opened:
        yield opened


def follow(terminal: Terminal, page: str) -> None:
    """Run the blocks of a page, and those of the tutorial before, that have not been run yet and are not for later."""
    for block in (block for each in dict.fromkeys((TUTORIAL, page)) for block in list_blocks(each)):
        if block.how not in (How.LONG, How.LAST) and block not in terminal.ran:
            terminal.run(block)


@pytest.mark.kafka
def test_the_tutorial_works_as_written(terminal: Terminal) -> None:
    follow(terminal, TUTORIAL)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("page", FURTHER)
def test_further_pages_work_as_written(terminal: Terminal, page: str) -> None:
    follow(terminal, page)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("page", REFERENCES)
def test_references_work_as_written(terminal: Terminal, page: str) -> None:
    follow(terminal, TUTORIAL)
    flights = Block("flights", 1, "sh", FLIGHTS.format(examples=REPOSITORY / "examples" / "flights"), How.IN_ORDER)
    if flights not in terminal.ran:
        terminal.run(flights)
    follow(terminal, page)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
def test_long_blocks_of_the_tutorial_work_as_written(terminal: Terminal) -> None:
    follow(terminal, TUTORIAL)
    blocks = [block for block in list_blocks(TUTORIAL) if block.how is How.LONG]
    assert any("overlay_session" in block.text for block in blocks)
    for block in blocks:
        terminal.run(block)


@pytest.mark.kafka
def test_what_the_tutorial_started_ends(terminal: Terminal) -> None:
    follow(terminal, TUTORIAL)
    terminal.stop()
    (down,) = (block for block in list_blocks(TUTORIAL) if block.how is How.LAST)
    terminal.run(down)
    assert status(terminal.state.parent / "home" / "local").condition is Condition.STOPPED


@pytest.mark.parametrize("page", list_pages())
def test_shell_blocks_are_run_or_say_why_not(page: str) -> None:
    blocks = [block for block in list_blocks(page) if block.language == "sh"]
    if page not in (*RUN, *REFERENCES):
        assert [str(block) for block in blocks if block.how is not How.NEVER] == []


@pytest.mark.parametrize("page", [page for page in list_pages() if page != "CONTRIBUTING.md"])
def test_no_command_stands_outside_of_a_block_of_sh(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    outside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(rf"^    (?:{PROGRAMS})\b .*$", outside, re.MULTILINE) == []


@pytest.mark.parametrize("page", RUN)
def test_pages_that_run_hide_no_command_in_another_block(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^    \S.*$", outside, re.MULTILINE) == []
    assert set(re.findall(r"^```(\w*)$", text, re.MULTILINE)) - {""} <= {"sh", "python", "text", "yaml"}


def parse(text: str) -> list[Block]:
    return list(parse_blocks("page.md", text))


def test_blocks_have_their_marker_and_their_output() -> None:
    first = "a\n\n<!-- not run: it needs Docker -->\n```sh\nup\n```\n```text\nfine\n```\n"
    up, serve = parse(f"{first}\n<!-- run: beside -->\n\n```sh\nserve\n```\n")
    assert (up.how, up.reason, up.text, up.line, up.output) == (How.NEVER, "it needs Docker", "up\n", 4, "fine\n")
    assert (serve.how, serve.reason, serve.text, serve.line, serve.output) == (How.BESIDE, "", "serve\n", 13, None)
    assert [block.language for block in parse("```python\n1\n```\n```yaml\na: 1\n```\n")] == ["python"]


def test_a_block_within_a_list_is_a_block() -> None:
    (block,) = parse(
        "- In words:\n\n    <!-- not run: it needs Docker -->\n    ```sh\n    up \\\n      --all\n\n    ```\n"
    )
    assert (block.how, block.reason, block.text, block.line) == (How.NEVER, "it needs Docker", "up \\\n  --all\n\n", 4)


def test_an_output_belongs_to_the_block_right_above_it() -> None:
    (block,) = parse("```sh\necho\n```\n\nIn words:\n\n```text\nfine\n```\n")
    assert block.output is None


@pytest.mark.parametrize(
    "marker", ["<!-- not run: Docker -->", "<!-- run: tomorrow -->", "<!-- skip: it needs Docker -->"]
)
def test_a_marker_without_a_reason_or_of_another_kind_is_refused(marker: str) -> None:
    with pytest.raises(MarkerError, match=r"page\.md:2"):
        parse(f"{marker}\n```sh\nls\n```\n")


def test_a_shown_output_is_compared() -> None:
    assert is_shown("a  ...c\n...\nend\n", "a b c\n1\n2\nend\n")
    assert is_shown("a c\n...\nend\n", "a   c\nend\n")
    assert not is_shown("998\n", "997\n")
    assert not is_shown("998\n", "998\nmore\n")
    assert not is_shown("a ... c\n", "a\nc\n")


def test_a_block_that_fails_or_prints_something_else_is_noticed(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("shell")
    terminal = Terminal(place, place / "state", {"PATH": "/usr/bin:/bin"})
    first, lasting, wrong, failing = parse(
        "```sh\nexport X=1\nmkdir -p in && cd in\n```\n"
        '```sh\necho "$X" "$(basename "$PWD")"\n```\n```text\n1 in\n```\n'
        '```sh\necho "$X"\n```\n```text\n2\n```\n'
        "```sh\nfalse\ntrue\n```\n"
    )
    terminal.run(first)
    terminal.run(lasting)
    with pytest.raises(AssertionError, match="another output"):
        terminal.run(wrong)
    with pytest.raises(AssertionError, match="ended with 1"):
        terminal.run(failing)
    assert terminal.ran == [first, lasting]


def test_a_block_that_hangs_is_ended_with_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.terminal.BLOCK_S", 0.1)
    command = ["bash", "-c", "sleep 600 & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdout is not None
        started = Path("/proc", shell.stdout.readline().decode().strip(), "stat")
        assert await_end(shell) is None
        wait_until(lambda: has_ended(started), 10, "what the shell started has ended")


def has_ended(stat: Path) -> bool:
    """Return whether the process of `/proc/PID/stat` has ended, though no parent may have waited for it yet."""
    try:
        return ") Z " in stat.read_text()
    except OSError:
        return True
