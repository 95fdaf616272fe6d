"""The end of the demo: the verdict, the rate, and where to look next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from overlay.local import Broker

from .home import DemoHome
from .screen import Screen
from .service import DeliveryProgress, ServiceProcess
from .verdict import Content

_SHORTEST_S = 0.2
_LOOK = (
    "from confluent_kafka import Consumer, TopicPartition; "
    "c = Consumer({{'bootstrap.servers': '{bootstrap}', 'group.id': 'look'}}); "
    "c.assign([TopicPartition('{topic}', 0, 0)]); "
    "[print(dict(m.headers())['Nats-Subject'].decode(), m.value().decode()) for m in c.consume(5, 10)]"
)


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """A consumer's output topic compared with the data set.

    `faults`: the differences, a sentence each; empty if there are none.
    """

    consumer: DeliveryProgress
    wanted: Content
    found: Content
    faults: list[str]


@dataclass(frozen=True, slots=True)
class Throughput:
    """The number of records processed in a time."""

    records: int
    seconds: float


def say_result(screen: Screen, home: DemoHome, checked: list[Checked], pace: Throughput) -> None:
    """Print the outputs beside the data set, the verdict, and the rate."""
    screen.say()
    screen.console.print(_build_table(checked))
    _say_verdict(screen, home, checked)
    screen.say(_describe_pace(pace))


def say_next(
    screen: Screen, home: DemoHome, broker: Broker, service: ServiceProcess, checked: list[Checked], *, keep: bool
) -> None:
    """Print where to look next, and how to stop what goes on."""
    screen.say()
    if keep:
        _say_kept(screen, home, broker, service, checked)
    else:
        _say_stopped(screen, home, broker, checked)
    screen.say(f"  the config           {_shorten(home.config)}")
    screen.say("  your own Kafka       " + _name_program("overlay") + " init --bootstrap HOST:PORT --topic TOPIC")
    screen.say("  how it works         README.md, docs/architecture.md, docs/subjects.md")
    screen.say()


def _build_table(checked: list[Checked]) -> Table:
    table = Table()
    table.add_column("output topic", no_wrap=True)
    table.add_column("filters", max_width=50)
    for name in ("expected", "found", "subjects", ""):
        table.add_column(name, justify="right")
    for one in checked:
        numbers = (one.wanted.total, one.found.total, len(one.found.counts))
        word = "[red]NOT OK[/]" if one.faults else "[green]OK[/]"
        table.add_row(one.consumer.topic, one.consumer.selects, *(f"{n:,}" for n in numbers), word)
    return table


def _say_verdict(screen: Screen, home: DemoHome, checked: list[Checked]) -> None:
    faults = [f"{one.consumer.topic}: {fault}" for one in checked for fault in one.faults]
    if not faults:
        screen.say(
            "OK: each output topic holds exactly the flights that its filters select, each once, in order", "bold green"
        )
        return
    screen.say("NOT OK: the output topics differ from the data set", "bold red")
    for fault in faults:
        screen.say(f"  {fault}")
    screen.say(f"  the service's log: {home.log}")


def _describe_pace(pace: Throughput) -> str:
    if pace.seconds < _SHORTEST_S:
        return "too quick to measure a rate: try a larger --scale"
    return (
        f"{pace.records:,} records scanned, filtered and committed in {pace.seconds:.2f} s:"
        f" {pace.records / pace.seconds:,.0f} records/s on {os.cpu_count()} cores shared with Kafka"
        " (from the first batch on; start of the process not counted)"
    )


def _say_kept(screen: Screen, home: DemoHome, broker: Broker, service: ServiceProcess, checked: list[Checked]) -> None:
    pid = service.process.pid
    screen.say(f"Kafka ({broker.bootstrap}) and the service (process {pid}) go on. Where to look:")
    screen.say(f"  a few deliveries     {_spell_look(broker.bootstrap, checked)}")
    screen.say(f"  consumers, streams   {service.url}/consumers  {service.url}/streams")
    screen.say(f"  metrics, health      {service.url}/metrics  {service.url}/readyz")
    screen.say(f"  the service's log    {_shorten(home.log)}")
    stop = f"kill {pid} && {_name_program('overlay')} local down --home {_shorten(home.kafka)}"
    screen.say(f"  stop both            {stop}")


def _say_stopped(screen: Screen, home: DemoHome, broker: Broker, checked: list[Checked]) -> None:
    overlay = _name_program("overlay")
    topics = ", ".join(one.consumer.topic for one in checked)
    screen.say("Where to look next:")
    screen.say(f"  leave it running     {overlay} demo --keep")
    screen.say(f"  the output topics    {topics}; kept until the next demo. To read them, start Kafka again:")
    screen.say(f"                       {overlay} local up --home {_shorten(home.kafka)}")
    screen.say(f"                       {_spell_look(broker.bootstrap, checked)}")


def _spell_look(bootstrap: str, checked: list[Checked]) -> str:
    program = _LOOK.format(bootstrap=bootstrap, topic=checked[0].consumer.topic)
    return f'{_name_program(Path(sys.executable).name)} -c "{program}"'


def _name_program(name: str) -> str:
    """Return how to call a program of this environment: by name if the PATH has it there, else by path, or as a
    module of this Python if there is no such program.
    """
    folder = Path(sys.executable).parent
    found = shutil.which(name)
    if found and Path(found).parent == folder:
        return name
    # a source tree that was never installed has no `overlay` program
    return _shorten(folder / name) if (folder / name).exists() else f"{_shorten(Path(sys.executable))} -m {name}"


def _shorten(path: Path) -> str:
    """Return a path quoted for a shell, relative if it is below the current folder."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
