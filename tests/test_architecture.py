"""Imports go one way (docs/architecture.md), and the core is pure: without clients, clocks and chance."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.source import REPOSITORY, list_imported, list_modules, parse

ROOT = REPOSITORY / "overlay"
SPARK = REPOSITORY / "spark"

PURE_PACKAGES = (
    *("scan", "subject", "filter", "match", "consumer", "dispatch"),
    *(f"index/{room}" for room in ("ledger", "pending", "skip")),
    "inspect/health",
    *(f"worker/{room}" for room in ("cursors", "round")),
)
PURE_FILES = (
    "arrays.py",
    "config/schema_book.py",
    "field.py",
    "ragged.py",
    "recent.py",
    "kafka/log_position.py",
    *(
        f"output/{name}.py"
        for name in ("assemble", "batch_builder", "dead_letters", "encoded_batch", "entry", "partition")
    ),
    "output/record.py",
    *(f"replies/{name}.py" for name in ("answers", "event_topic", "reply_address", "reply_batches")),
    *(f"schemas/{name}.py" for name in ("ids", "protobuf_files")),
    *(f"state/{name}.py" for name in ("job_positions", "lag", "shard_state")),
    *(
        f"fleet/{name}.py"
        for name in (
            *(
                "changes",
                "definitions",
                "delta",
                "drain",
                "findings",
                "live",
                "memory",
                "picture",
                "screening",
                "status",
            ),
            *("tallies", "timetable"),
        )
    ),
)
FORBIDDEN = {
    "asyncio",
    "aiokafka",
    "confluent_kafka",
    "faust",
    "time",
    "random",
    "datetime",
    "secrets",
    "socket",
    "threading",
}
CLOCKED = {"overlay.clock", "overlay.kafka.admin", "overlay.kafka.connection"}
EXEMPT = {
    # what users hold: UTC() needs the time when the caller of a filter gives none; all other modules take `now`
    "filter/compiled.py": {"overlay.clock", "overlay.clock.now_ms"},
    # the type of a value in a message; no caller asks it for the time (the test of the wall clock below)
    "filter/message.py": {"datetime", "datetime.datetime"},
}

ROOMS = (
    *(
        "scan",
        "subject",
        "filter",
        "config",
        "kafka",
        "match",
        "schemas",
        "index",
        "consumer",
        "output",
        "replies",
        "state",
    ),
    *("dispatch", "control", "fleet", "worker", "inspect", "client", "faust", "view", "local", "demo", "cli"),
)
"""The rooms in the order of docs/architecture.md. A room imports only from those before it."""
APART = {
    "subject": {"scan"},
    "filter": {"subject"},
    "kafka": {"config", "filter", "subject"},
    "match": {"kafka"},
    "schemas": {"subject", "filter"},
    "consumer": {"kafka", "index", "match", "schemas"},
    "control": {"dispatch"},
    "inspect": {"worker", "dispatch", "replies"},
    "client": {"worker", "dispatch", "replies"},
    "faust": {"fleet", "worker", "dispatch", "replies", "inspect"},
    "view": {"worker", "dispatch", "replies"},
}
"""Earlier rooms from which a room imports nothing either."""
NOT_FOR_SPARK = {"faust", "fleet", "worker", "dispatch", "replies", "view", "demo", "cli"}
IN_WORKER: dict[str, set[str]] = {
    "cursors": {"assignment", "round"},
    "round": set(),
    "commit": {"cursors", "round"},
    "dispatch_io": set(),
    "kept": {"assignment", "cursors", "round"},
}
"""Rooms of the worker: what each may import of the others."""
CLOSED = {room: {*ROOMS[number + 1 :], *APART.get(room, ())} for number, room in enumerate(ROOMS)}


def list_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def find_pure_files() -> list[Path]:
    rooms = [path for name in PURE_PACKAGES for path in list_files(name)]
    return rooms + [ROOT / name for name in PURE_FILES]


def find_imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports; names imported from a package as well."""
    return {name for module, taken in list_imported(path) for name in (module, f"{module}.{taken}") if name[-1] != "."}


def find_rooms(path: Path) -> set[str]:
    """The rooms that a file imports from."""
    return {name.split(".")[1] for name in find_imports(path) if name.startswith("overlay.")} & {*ROOMS}


def draw_graph() -> dict[str, set[str]]:
    """By module of overlay/ and spark/, the modules that it imports: for types and within functions as well."""
    modules = list_modules("overlay", "spark")
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for module, taken in list_imported(path):
            imported = f"{module}.{taken}" if f"{module}.{taken}" in modules else module
            if imported in modules and imported != name:
                graph[name].add(imported)
    return graph


def find_circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Sets of modules that import each other, directly or through others of the set."""
    reach = {name: _find_reach(graph, name) for name in graph}
    circles = {frozenset(each for each in reach[name] if name in reach[each]) for name in graph}
    return [set(circle) for circle in circles if circle]


def _find_reach(graph: Mapping[str, set[str]], name: str) -> set[str]:
    found, ahead = set[str](), list(graph[name])
    while ahead:
        if (each := ahead.pop()) not in found:
            found.add(each)
            ahead += graph[each]
    return found


def shorten(path: Path) -> str:
    return str(path.relative_to(ROOT if path.is_relative_to(ROOT) else REPOSITORY))


@pytest.mark.parametrize("path", find_pure_files(), ids=shorten)
def test_the_core_is_pure(path: Path) -> None:
    imports = find_imports(path) - EXEMPT.get(shorten(path), set())
    assert {name for name in imports if name.split(".")[0] in FORBIDDEN} == set()
    assert imports & CLOCKED == set()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_from_earlier_rooms(room: str) -> None:
    wrong = {
        f"{shorten(path)} imports from {other}/"
        for path in list_files(room)
        for other in find_rooms(path) & CLOSED[room]
    }
    assert wrong == set()


def test_all_rooms_are_in_the_table() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = page.partition("| room |")[2].partition("\n\n")[0].splitlines()[2:]
    listed = [name for row in rows for name in re.findall(r"`(\w+)/`", row.split("|")[1])]
    assert listed == [*ROOMS]
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {*ROOMS}


def test_single_modules_import_from_no_room() -> None:
    """They serve every room. `overlay.open` is the exception: it loads the client on demand."""
    rooms = {path.name: find_rooms(path) for path in ROOT.glob("*.py")}
    assert {name: found for name, found in rooms.items() if found} == {
        "__init__.py": {"client"},
        "__main__.py": {"cli"},
    }


def test_spark_is_a_client() -> None:
    assert {shorten(path) for path in SPARK.rglob("*.py") if find_rooms(path) & NOT_FOR_SPARK} == set()
    everything = {shorten(path): {name.split(".")[0] for name in find_imports(path)} for path in ROOT.rglob("*.py")}
    assert {path for path, found in everything.items() if "spark" in found} == set()


def test_modules_import_in_no_circle() -> None:
    assert find_circles(draw_graph()) == []


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert find_circles(graph) == [{"b", "c"}]


@pytest.mark.parametrize("room", IN_WORKER)
def test_rooms_of_the_worker(room: str) -> None:
    found = {
        name.split(".")[2] for path in list_files(f"worker/{room}") for name in find_imports(path) if "worker." in name
    }
    assert found - {room} <= IN_WORKER[room]


RISKY = {"describe_consumer_groups", "list_consumer_group_offsets"}
"""Requests under which librdkafka may end the process when a connection breaks (overlay/kafka/admin.py)."""
SERVICE = (
    *("worker", "fleet", "control", "dispatch", "state", "replies", "output", "consumer", "index"),
    *("match", "schemas", "kafka", "config", "filter", "scan"),
)


def test_groups_are_never_asked_for_through_librdkafka() -> None:
    callers = {
        str(path.relative_to(REPOSITORY))
        for folder in (ROOT, REPOSITORY / "spark")
        for path in folder.rglob("*.py")
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and node.attr in RISKY
    }
    assert callers == set()


def test_the_service_has_one_way_to_kafka() -> None:
    """`overlay run` never loads librdkafka, at its start or later."""
    code = "import sys, overlay.cli.run, overlay.worker.service; print('confluent_kafka' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert asked.stdout == "False\n"
    files = [*(path for package in SERVICE for path in list_files(package)), *ROOT.glob("*.py"), ROOT / "cli/run.py"]
    users = {shorten(path) for path in files if any(name.startswith("confluent_kafka") for name in find_imports(path))}
    assert users == {"kafka/confluent.py", "kafka/message_headers.py"}
    theirs = {"overlay.kafka.confluent", "overlay.kafka.message_headers"}
    callers = {shorten(path) for path in files if find_imports(path) & theirs}
    assert callers == set()


def test_faust_is_loaded_by_the_fleet_and_by_applications_alone() -> None:
    """No record goes through Faust, and `overlay run` never loads it."""
    files = [path for path in ROOT.rglob("*.py") if path.parent.name != "faust"]
    assert {shorten(path) for path in files if {"faust", "mode"} & _list_tops(path)} == {
        "fleet/app.py",
        "fleet/screened_consumer.py",
    }
    assert {shorten(path) for path in files if "faust" in find_rooms(path)} == set()
    callers = {shorten(path) for path in ROOT.rglob("*.py") if "overlay.fleet.app" in find_imports(path)}
    assert callers == {"cli/fleet.py"}
    modules = "overlay.cli.run, overlay.worker.service, overlay.fleet.read, overlay.client"
    code = f"import sys, {modules}; print('faust' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert asked.stdout == "False\n"


def _list_tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in find_imports(path)}


def test_one_file_reads_the_wall_clock() -> None:
    """Clients, commands and the demo measure spans by time.monotonic; the wall clock is overlay/clock.py's."""
    readers = set()
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "time.time_ns", "datetime.now"):
                readers.add(shorten(path))
    assert {path for path in readers if not path.startswith(("local/", "cli/", "inspect/"))} == {"clock.py"}


UNSEEDED = {"time", "random", "uuid", "secrets", "threading", "concurrent.futures"}
"""What a simulated service must not use past the modules that a simulation can replace (tests/sim)."""
SEAMS = {
    ("clock.py", "time"),
    ("chance.py", "random"),
    ("chance.py", "uuid"),
    ("jobs.py", "threading"),
    # a lock for the first call of a kernel
    ("kernels.py", "threading"),
    ("jobs.py", "concurrent.futures"),
    # a wait of threads; the service runs none of them
    ("waits.py", "time"),
    # a lock of the client library's ledgers
    ("index/topic.py", "threading"),
    # not part of the service
    ("kafka/confluent.py", "time"),
    ("kafka/confluent.py", "concurrent.futures"),
    ("kafka/message_headers.py", "threading"),
}


def test_the_service_has_one_clock_one_source_of_chance_and_one_of_threads() -> None:
    files = [*(path for package in SERVICE for path in list_files(package)), *ROOT.glob("*.py")]
    found = {(shorten(path), name) for path in files for name in _list_modules(path) if name in UNSEEDED}
    assert found == SEAMS


def _list_modules(path: Path) -> set[str]:
    """Modules that a file imports from, but for `from uuid import UUID`: a type."""
    return find_imports(path) - {"uuid"} if "uuid.UUID" in find_imports(path) else find_imports(path)


def list_written(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each attribute that a file assigns, or assigns items of: its name, and the whole expression."""
    for node in ast.walk(parse(path)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        for part in parts:
            written = part
            while isinstance(written, ast.Subscript):
                written = written.value
            if isinstance(written, ast.Attribute):
                yield written.attr, ast.unparse(written)


def test_only_the_machine_changes_its_state() -> None:
    """A part of the state changes itself, and the rest is written in machine.py. Others read it."""
    for path in list_files("consumer"):
        if path.name == "machine.py":
            continue
        classes = [node for node in ast.walk(parse(path)) if isinstance(node, ast.ClassDef)]
        declared = {
            ast.unparse(node.target) for each in classes for node in each.body if isinstance(node, ast.AnnAssign)
        }
        own = declared | {name for name, written in list_written(path) if written == f"self.{name}"}
        assert {written for name, written in list_written(path) if name not in own} == set(), shorten(path)
    for path in sorted(ROOT.rglob("*.py")):
        if path.parent.name != "consumer":
            foreign = {written for _, written in list_written(path) if re.search(r"\bmachine\.", written)}
            assert foreign == set(), shorten(path)


def test_others_only_ask_a_machine_s_state() -> None:
    calls = {
        ast.unparse(node.func).partition("machine.state.")[2]
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and re.search(r"\bmachine\.state\.", ast.unparse(node.func))
    }
    assert calls == {"window.has_given_up"}


def test_the_dispatcher_alone_touches_machines() -> None:
    """Machines move in a thread of their own. The rest of the service reads Facts (dispatch/machine_facts.py)."""
    allowed = {"worker/warmup.py"}  # a dispatcher without consumers
    touching = {
        shorten(path)
        for package in ("worker", "control", "deliver")
        for path in list_files(package)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and node.attr == "machine"
    }
    assert touching <= allowed


def test_no_data_waits_for_the_default_threads() -> None:
    """The event loop's default threads are few, and one may be taken for seconds. What is done there may wait: a look at files
    or at whether Kafka is there, a page for operators. Work on records has a thread of its own."""
    using = {
        shorten(path)
        for package in ("worker", "control", "dispatch", "state", "replies", "output", "kafka")
        for path in list_files(package)
        for name in ("to_thread", "finish_in_thread", "run_in_executor")
        if name in path.read_text(encoding="utf-8")
    }
    waiting = {"index_build", "config_folder", "http", "metrics_page", "own_picture", "service"}
    allowed = {"kafka/brokers.py", "kafka/connection.py", "state/plan_reader.py"}
    assert using <= {*allowed, *(f"worker/{name}.py" for name in waiting)}


def test_no_coroutine_joins_a_thread() -> None:
    """An executor that is closed in a coroutine holds up the event loop until its job has returned: use overlay/jobs.py."""
    waits = {"ThreadPoolExecutor", "shutdown", "sleep", "join"}
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        coroutines = (n for n in ast.walk(parse(path)) if isinstance(n, ast.AsyncFunctionDef))
        for node in (node for coroutine in coroutines for node in ast.walk(coroutine)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                last = name.rpartition(".")[2]
                is_text = last == "join" and bool(node.args)
                if last in waits and not is_text and name != "asyncio.sleep":
                    found.add((shorten(path), name))
    assert found <= {("jobs.py", "self._executor.shutdown")}  # without waiting


def test_numba_is_reached_through_the_kernel_decorator() -> None:
    """Its own decorators have no types and no safe cache (overlay/kernel_cache.py)."""
    users = {
        shorten(path)
        for path in sorted(ROOT.rglob("*.py"))
        if any(name.split(".")[0] == "numba" for name in find_imports(path))
    }
    assert users == {"kernel_cache.py", "scan/borrow.py"}


UNNAMED_ARRAYS = ("consumer/", "worker/cursors/", "worker/round/", "worker/skip_routes.py")
"""Where array types are still written out."""


def test_array_types_have_their_names_in_one_place() -> None:
    files = [*ROOT.rglob("*.py"), *(ROOT.parent / "spark").rglob("*.py")]
    writing = {
        path.relative_to(ROOT.parent).as_posix().removeprefix("overlay/")
        for path in files
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and node.attr == "NDArray"
    }
    assert {path for path in writing if not path.startswith(UNNAMED_ARRAYS)} == {"arrays.py"}


MOST_LINES = 40
"""Lines in a function's body, its docstring left out. How many branches it may have is ruff's to say (C901)."""
LONG = {"metrics.py:__init__", "output/assemble.py:_assemble", "scan/kernel.py:walk"}
"""Longer functions; the docstring of each says why."""


def test_functions_are_short() -> None:
    long, reasons = set(), set()
    for path in [*ROOT.rglob("*.py"), *(ROOT.parent / "spark").rglob("*.py")]:
        file = path.relative_to(ROOT.parent).as_posix().removeprefix("overlay/")
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                body = node.body if docstring is None else node.body[1:]
                if body and (node.end_lineno or 0) - body[0].lineno + 1 > MOST_LINES:
                    long.add(f"{file}:{node.name}")
                if docstring is not None and "Long because" in docstring:
                    reasons.add(f"{file}:{node.name}")
    assert (long, reasons) == (LONG, LONG)


def test_the_session_is_wiring() -> None:
    """What it wires has its rules elsewhere, and a session that grows has taken in a rule."""
    assert len((ROOT / "worker/session.py").read_text().splitlines()) < 250


def test_the_scan_sees_imports() -> None:
    """The test's own eye: relative, nested and plain imports are all found."""
    assert "overlay.scan.decode" in find_imports(ROOT / "scan" / "__init__.py")
    assert "overlay.match.Addressed" in find_imports(ROOT / "worker" / "round" / "pipeline.py")
    assert {"asyncio", "aiokafka.AIOKafkaProducer"} <= find_imports(ROOT / "output" / "transaction.py")
