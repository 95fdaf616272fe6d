"""What commands load: a library that a command does not need makes it slow. Times are not measured here, modules are
counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka import NewTopicFixture
from tests.support.service import StartService

from .trips import Trips

NEVER = {"numba", "llvmlite", "pyarrow", "pandas", "pyspark", "faust", "aiohttp", "structlog"}
"""For commands that read no records of a stream."""
REQUESTS = NEVER | {"numpy", "aiokafka", "rich"}
"""For commands that ask the service over Kafka: they have librdkafka's clients."""
STREAMS = {"overlay.config.loader", "overlay.config.stream", "overlay.filter"}
"""The rules of the files that commands do not read if they ask the service."""
FILES = NEVER | {"numpy", "aiokafka", "confluent_kafka", "rich"}
"""For commands that read the config folder alone."""
JOBS = {
    "overlay.state.handover",
    "overlay.state.job_plan",
    "overlay.consumer.snapshot",
    "overlay.consumer.events",
}
"""What commands that show something need for the plans of Spark jobs alone."""
TREES = {"overlay.filter.nodes"}
"""What only folders with filters need."""

PATIENT = """
import overlay.client.control.control
import overlay.client.control.inbox

overlay.client.control.control.TIMEOUT_S = overlay.client.control.inbox.REACH_S = 60
overlay.client.control.inbox.LOOK_S = 600
"""
"""A command that waits for its answer looks for a worker after a while, for which it loads another client."""

RUN = """
import sys
from overlay.cli import overlay
try:
    overlay(sys.argv[1:], standalone_mode=False)
finally:
    print("\\nloaded:", *sys.modules)
"""


def run(*words: str | Path, first: str = "") -> tuple[str, set[str]]:
    """Run a command in a process of its own, after the code `first`. Return what it printed, and the modules that it
    loaded."""
    command = [sys.executable, "-c", first + RUN, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    text, _, loaded = done.stdout.rpartition("\nloaded:")
    assert "click" in loaded
    return text, {*loaded.split()}


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    return Trips(tmp_path / "config", bootstrap, new_topic())


def test_commands_that_show_something(trips: Trips) -> None:
    """Without a service, so that all of it is read from Kafka."""
    for words in (("consumer", "ls"), ("stream", "ls")):
        text, loaded = run(*words, "--config", trips.folder)
        assert "TRIPS" in text or words == ("consumer", "ls")
        assert loaded & (NEVER | JOBS | TREES | {"rich"}) == set(), words
        _, loaded = run(*words, "--json", "--config", trips.folder)
        assert loaded & (NEVER | JOBS | TREES | {"rich"}) == set(), words


def test_what_prints_facts_is_loaded_while_kafka_is_asked(trips: Trips) -> None:
    watch = """
import os, sys, threading
os.environ["FORCE_COLOR"] = "1"  # as on a terminal
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "rich":
            print("rich is loaded by", threading.current_thread().name, flush=True)
sys.meta_path.insert(0, Watch())
"""
    for words in (("consumer", "ls"), ("stream", "ls")):
        text, _ = run(*words, "--config", trips.folder, first=watch)
        assert "rich is loaded by asyncio_" in text


def test_commands_that_ask_the_service(trips: Trips, running_service: StartService) -> None:
    trips.produce(10)
    running_service(trips.folder)

    def ask(*words: str) -> str:
        text, loaded = run("consumer", *words, "--config", trips.folder, first=PATIENT)
        assert loaded & (REQUESTS | STREAMS) == set()
        return text

    ask("add", "TRIPS", "work", "--subject", "trips.rome")
    # the stream is found without the folder
    text = ask("next", "work", "--count", "2", "--wait", "60s", "--json")
    first, second = [json.loads(line)["token"] for line in text.splitlines() if line.startswith("{")]
    ask("ack", first)
    ask("nak", second)
    text, loaded = run("consumer", "info", "TRIPS", "work", "--config", trips.folder)
    assert "running" in text
    assert loaded & NEVER == set()


def test_a_reading_loads_numba_while_kafka_is_asked(trips: Trips) -> None:
    """The reading's own thread asks Kafka."""
    watch = """
import sys, threading
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            print("numba is loaded by", threading.current_thread().name, flush=True)
sys.meta_path.insert(0, Watch())
"""
    trips.produce(2)
    text, loaded = run("read", "TRIPS", "--last", "2", "--config", trips.folder, first=watch)
    assert "numba is loaded by MainThread" in text
    assert "pandas" not in loaded


def test_commands_that_read_files_alone(trips: Trips) -> None:
    text, loaded = run("validate", trips.folder)
    assert "0 problems" in text
    assert loaded & FILES == set()


def test_the_model_of_overlay_yaml_is_not_built_by_its_import() -> None:
    """Building a validator takes longer than making the model."""
    code = """
from overlay.config.service import FleetConfig, HttpConfig, ServiceConfig, TopicsConfig
models = FleetConfig, HttpConfig, ServiceConfig, TopicsConfig
print([model.__name__ for model in models if model.__pydantic_complete__])
assert ServiceConfig.model_fields["http"].default == HttpConfig()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "[]"


def test_a_look_at_the_state_loads_nothing_that_writes_it() -> None:
    code = "import sys, overlay.view.look, overlay.view.table; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert {*done.stdout.split()} & (
        NEVER | {"overlay.output.transaction", "confluent_kafka", "lark", "tenacity"}
    ) == set()


def test_commands_look_for_no_plugins_of_pydantic(trips: Trips) -> None:
    """The search reads a file of each installed package."""
    code = """
import importlib.metadata

def refuse(*words, **named):
    raise AssertionError("looks into the installed packages")

importlib.metadata.distributions = refuse
from overlay.cli import main
main()
"""
    command = [sys.executable, "-c", code, "validate", str(trips.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "0 problems" in done.stdout, done.stderr


def test_commands_that_soon_end_hardly_look_for_garbage(trips: Trips) -> None:
    """Each look goes through all objects of the modules, and finds none to free."""
    code = """
import atexit, gc

looks = []
gc.callbacks.append(lambda phase, info: looks.append(phase))
# handlers run in the reverse order, so this one runs last
atexit.register(lambda: print(len(looks) // 2, len(gc.get_objects())))
from overlay.cli import main
main()
"""
    command = [sys.executable, "-c", code, "validate", str(trips.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    looks, left_for_the_last = map(int, done.stdout.splitlines()[-1].split())
    assert looks < 40
    assert left_for_the_last < 100


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("ERRORS", {"pydantic", "overlay.config.consumer", "overlay.config.loader"}),
        ("ServiceConfig", {"overlay.config.consumer", "overlay.config.stream", "overlay.subject", "overlay.filter"}),
        ("ConsumerConfig", {"overlay.config.service", "overlay.config.stream", "overlay.subject", "overlay.filter"}),
        ("StreamConfig", {"overlay.filter.compiled", "overlay.filter.parse", "overlay.config.service"}),
        ("load", {"overlay.filter.compiled", "confluent_kafka", "aiokafka", "numpy", "lark"}),
    ],
)
def test_a_name_of_the_config_loads_what_it_needs_alone(name: str, others: set[str]) -> None:
    code = f"import sys; from overlay.config import {name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert {*done.stdout.split()} & others == set()


@pytest.mark.parametrize(
    "words", [("run",), ("consumer",), ("consumer", "ls"), ("read",), ("stream", "info"), ("local", "topic", "produce")]
)
def test_help_of_a_command(words: tuple[str, ...]) -> None:
    text, loaded = run(*words, "--help")
    assert text.startswith("Usage:")
    assert loaded & (FILES | {"pydantic", "importlib.abc"}) == set()


def test_a_client_for_requests_loads_no_arrow() -> None:
    code = "import sys; from overlay.client import Control; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert {*done.stdout.split()} & REQUESTS == set()


def test_rows_are_shown_without_pandas() -> None:
    """Arrow imports it for arrays of numpy and for scalars, where it is installed."""
    code = """
import io, sys
import numpy as np, pyarrow as pa
from overlay.client import SCHEMA
from overlay.scan.columns import wrap
from overlay.view.printer import open_printer
times = wrap(np.array([5, -1]), np.array([False, True])).cast(pa.timestamp("ms"))
columns = [times if field.name == "timestamp" else pa.nulls(2, field.type) for field in SCHEMA]
for form in ("json", "table"):
    printer = open_printer(form, io.BytesIO())
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    printer.print(batch.select(printer.columns))
    printer.close()
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert "pandas" not in done.stdout.split()


@pytest.mark.parametrize("form", ["raw", "json", "arrow-ipc", "count"])
def test_only_tables_need_rich(form: str) -> None:
    code = f"import io, sys; from overlay.view.printer import open_printer; open_printer({form!r}, io.BytesIO())"
    code += "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert {*done.stdout.split()} & {"rich", "numba", "overlay.view.table"} == set()


def test_a_client_loads_no_functions_of_arrow() -> None:
    """A reading without a filter calls none of them."""
    code = "import sys, overlay.client.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert {*done.stdout.split()} & {"pyarrow.compute", "numba", "rich"} == set()


def test_numba_is_loaded_by_the_first_kernel() -> None:
    """The modules with kernels can be imported without it; a call compiles or loads the kernel that is called."""
    code = """
import sys
import numpy as np
import overlay.worker.service, overlay.client.client, overlay.scan.json.search
assert "numba" not in sys.modules
from overlay.scan.header import split
assert split(np.zeros(0, np.uint8)).batches.size == 0
assert "numba" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], timeout=100, check=True)
