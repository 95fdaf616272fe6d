"""Every mutant still fits the product, and histories find some of them. All of them: `python -m tests.sim.mutants`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .catalog import MUTANTS
from .mutant import ROOT, Change, Mutant, Stale
from .scripted import FOLDER
from .search import search

WORD = re.compile(r"[A-Za-z_]\w*")
QUICK = {"aborted-records-delivered": 5, "state-cut-short": 10, "pulls-replay-without-gaps": 0}
"""Mutants that few histories find, with how many of them at most; 0 for a scripted one."""


def test_a_mutant_has_a_name_and_a_story() -> None:
    assert all(name == mutant.name for name, mutant in MUTANTS.items())
    assert all(len(mutant.about.split()) > 10 for mutant in MUTANTS.values())
    found = [mutant for mutant in MUTANTS.values() if not mutant.waits_for]
    assert sum(not mutant.mend for mutant in found) >= 5
    assert sum(bool(mutant.mend) for mutant in found) >= 15


def test_a_scripted_history_that_a_mutant_names_is_there() -> None:
    named = {mutant.history for mutant in MUTANTS.values() if mutant.history}
    for file, _, test in (history.partition("::") for history in sorted(named)):
        assert f"\ndef {test.partition('[')[0]}(" in (FOLDER / file).read_text(encoding="utf-8"), (file, test)


def test_a_mutant_that_a_scripted_history_finds_waits_for_nothing() -> None:
    assert [name for name, mutant in MUTANTS.items() if mutant.history and mutant.waits_for] == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fits_the_source(name: str) -> None:
    for module, source in MUTANTS[name].read().items():
        compile(source, module, "exec")


def test_a_mutant_uses_names_that_the_product_has() -> None:
    """A rename that a mutant has not followed would have every history fail with it, for the wrong reason."""
    known = {
        word for path in (ROOT / "overlay").rglob("*.py") for word in WORD.findall(path.read_text(encoding="utf-8"))
    }
    used = [(name, WORD.findall(change.after)) for name, mutant in MUTANTS.items() for change in mutant.changes]
    assert [(name, word) for name, words in used for word in words if word not in known] == []


def test_a_mutant_whose_text_is_gone_is_an_error() -> None:
    stale = Mutant("stale", "", (Change("overlay.clock", "no such line\n", ""),))
    with pytest.raises(Stale, match="has 0 times, not once"):
        stale.read()


def test_changes_of_one_module_add_up() -> None:
    first, second = (
        Change("overlay.clock", *pair) for pair in (("import time\n", "import time as t\n"), ("as t\n", "\n"))
    )
    assert "import time \n" in Mutant("two", "", (first, second)).read()["overlay.clock"]


def test_a_mutant_comes_too_late_for_modules_that_are_imported() -> None:
    with pytest.raises(RuntimeError, match="imported before"):
        Mutant("late", "", (Change("overlay.clock", "import time\n", "import time\n\n"),)).install()


def test_a_process_imports_the_changed_module() -> None:
    code = (
        "from tests.sim.mutants.mutant import Change, Mutant\n"
        "Mutant('m', '', (Change('overlay.clock', 'import time\\n', 'import time\\n\\nCHANGED = 1\\n'),)).install()\n"
        "from overlay import clock\n"
        "print(clock.CHANGED)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "1\n"


def test_the_page_on_reliability_lists_every_mutant() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert [name for name in MUTANTS if f"| `{name}` |" not in page] == []
    assert [mutant.history for mutant in MUTANTS.values() if f"`{mutant.history}`" not in page and mutant.history] == []


def test_all_mends_are_in_the_history() -> None:
    known = subprocess.run(["git", "log", "--format=%H"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if known.returncode or len(known.stdout.splitlines()) < 100:
        pytest.skip("the sources have no history here")
    commits = known.stdout.split()
    mends = {mutant.name: mutant.mend for mutant in MUTANTS.values() if mutant.mend}
    assert [name for name, mend in mends.items() if not any(each.startswith(mend) for each in commits)] == []


@pytest.mark.parametrize(("name", "seeds"), QUICK.items())
def test_histories_find_a_mutant(name: str, seeds: int) -> None:
    assert search(name, range(seeds)) is not None
