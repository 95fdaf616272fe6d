"""One storm over a crowd from its beginning to its judgement."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from overlay.client import open_client
from overlay.client.client import Client
from overlay.client.control.inbox import NoAnswer
from overlay.client.control.refusals import ConsumerAlreadyExists
from overlay.errors import OverlayError, SourceUnavailable
from overlay.local import start as start_broker
from overlay.local.guard import Guard
from tests.chaos.flights.workers import PORT, Worker
from tests.faust.workers import FaustApp, end_all
from tests.support.kafka import PATIENT
from tests.support.service import RunningProcess, find_free_port
from tests.support.waiting import wait_until

from .applications import Acker, Application, Puller, Traffic
from .judge import Judge, Outputs, Source, read_source
from .picture import Watch
from .plan import FAUST, GROUP, PARTITIONS, PREFIX, STREAMS, Consumer, describe_stream, name_topic, plan_consumers

WORKERS, SHARDS = 4, 16
START_S = 180.0
CALM_S = 240.0
"""How long after the last fault everything has to be delivered and acked."""
PICTURE_S = 10.0
"""How long the fleet's picture may differ from the group in Kafka, once that is settled."""
ABSENT_S = 45.0
"""How long there may be no picture: a fleet that was killed starts again, and Kafka misses the one before for ten seconds."""
LOOK_S = 0.2
Victim = Worker | RunningProcess


@dataclass(slots=True)
class Found:
    """What a storm found. `faults`: promises that were broken; `figures`: how much went on."""

    faults: list[str]
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Whole:
    """Whether the picture is whole, and for the message of a wait that fails, what it lacks and what the fleet has logged."""

    difference: str
    log: str

    def __bool__(self) -> bool:
        return not self.difference


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """`at`: seconds since the storm began; `until`: when it ends; `victim`: a worker's number, `fleet` or `faust`."""

    at: float
    until: float
    victim: str
    is_kill: bool

    def __str__(self) -> str:
        return f"{self.at:6.1f} to {self.until:6.1f} s  {'kill' if self.is_kill else 'freeze'} {self.victim}"


def plan_faults(rng: random.Random, seconds: float) -> list[Fault]:
    """Return the faults of a storm that lasts so many seconds, in order. Each victim is killed and frozen in turns. Every
    fault is over at the end."""
    faults = []
    for number, victim in enumerate((*map(str, range(WORKERS)), "fleet", "faust")):
        at, is_kill = rng.uniform(0.02, 0.25) * seconds, number % 2 == 0
        while at < seconds:
            until = at + (rng.uniform(0.5, 4.0) if is_kill else rng.uniform(2.0, 14.0))
            faults.append(Fault(at, min(until, seconds), victim, is_kill))
            at, is_kill = until + rng.uniform(6.0, 20.0), not is_kill
    return sorted(faults)


@dataclass
class Fleet:
    """`overlay fleet run` in a process of its own."""

    folder: Path
    port: int
    process: RunningProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        log = self.folder.parent / "fleet.log"
        command = [sys.executable, "-m", "overlay", "fleet", "run", "--config", str(self.folder)]
        with log.open("ab") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        self.process = RunningProcess(log, process, Guard(["kill", "-9", str(process.pid)]))


@dataclass
class Storm:
    """Good for one `run`. `folder`: for the config folder and the logs. `trusts_clock`: whether the picture is judged by the
    clock, which says nothing on a machine that is busy with other things.
    """

    folder: Path
    seed: int
    seconds: float
    count: int
    rate: float
    trusts_clock: bool = True
    _done: Counter[str] = field(default_factory=Counter)

    def run(self) -> Found:
        """Raise the storm, let it calm down, and judge."""
        self._rng = random.Random(self.seed)
        self._consumers = list(plan_consumers(self.count))
        with ExitStack() as stack:
            broker = stack.enter_context(start_broker(ephemeral=True, properties=PATIENT))
            self._bootstrap = broker.bootstrap
            self._make_topics()
            self._write_config()
            os.environ.setdefault(PORT, "0")  # for this process, which opens the folder as a client
            self._workers = [Worker(number, self._config, find_free_port()) for number in range(WORKERS)]
            self._fleet = Fleet(self._config, self._fleet_port)
            for worker in self._workers:
                stack.callback(worker.kill)
                worker.start()
            self._fleet.start()
            stack.callback(self._end_fleet)
            return self._rage(stack)

    @property
    def _config(self) -> Path:
        return self.folder / "config"

    @property
    def _topics(self) -> dict[str, int]:
        """The output topics with their partitions."""
        return {each.output: 2 if each.name == FAUST else 1 for each in self._consumers if each.output}

    def _make_topics(self) -> None:
        topics = {**self._topics, **{name_topic(stream): PARTITIONS for stream in range(STREAMS)}}
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        made = admin.create_topics([NewTopic(name, num_partitions=count) for name, count in topics.items()])
        for future in made.values():
            future.result(60)

    def _write_config(self) -> None:
        for name in ("streams", "consumers"):
            (self._config / name).mkdir(parents=True)
        self._fleet_port = find_free_port()
        worker = f"w${{{PORT}}}"
        service = {
            # the name in the group is that in the fleet, so that both can be compared
            "kafka": {"bootstrap.servers": self._bootstrap, "client.id": worker},
            "topics": {"prefix": PREFIX},
            "http": {"listen": f"127.0.0.1:${{{PORT}}}"},
            "shards": SHARDS,
            "fleet": {"worker": worker, "listen": f"127.0.0.1:{self._fleet_port}"},
        }
        files = {"overlay.yaml": service}
        files |= {f"streams/{stream}.yaml": describe_stream(stream) for stream in range(STREAMS)}
        files |= {
            f"consumers/{each.name}-{each.stream}.yaml": dict(each.config)
            for each in self._consumers
            if not each.by_request
        }
        for name, content in files.items():
            (self._config / name).write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML

    def _rage(self, stack: ExitStack) -> Found:
        wait_until(lambda: all(worker.is_ready() for worker in self._workers), START_S, "all workers are ready")
        self._request_rest()
        watch = Watch(self._bootstrap, PREFIX, self._fleet.url, SHARDS)
        wait_until(lambda: self._see_whole(watch), START_S, "the picture is whole")
        watch.absent = watch.longest = 0.0
        self._faust = FaustApp(
            GROUP, self._bootstrap, self._config, FAUST, "each", self.folder, more={"SESSION_S": "6"}
        )
        stack.callback(end_all, self._faust)
        self._faust_worker = self._faust.start()
        acked = sorted(
            {each.output for each in self._consumers if each.is_acked and each.output and each.name != FAUST}
        )
        self._acker = Acker(self._bootstrap, random.Random(self._rng.random()), acked)
        self._pullers = {
            each.id: Puller(
                self._bootstrap, random.Random(self._rng.random()), self._open_client, each.stream, each.name
            )
            for each in self._consumers
            if not each.output
        }
        traffic = Traffic(self._bootstrap, random.Random(self._rng.random()), self.rate)
        applications: list[Application] = [self._acker, *self._pullers.values()]
        for application in (*applications, traffic):
            application.start()
        self._follow(plan_faults(self._rng, self.seconds))
        traffic.stop()
        for application in applications:
            application.is_diligent = True
        return self._judge(read_source(self._bootstrap, traffic.written), watch, applications)

    def _see_whole(self, watch: Watch) -> _Whole:
        """Return whether Kafka's group and the fleet say the same. Raises AssertionError if the fleet's process has ended."""
        return _Whole(watch.find_difference(), self._find("fleet").read_log()[-4_000:])

    def _request_rest(self) -> None:
        """Have the service make the consumers that are in no file."""
        with self._open_client() as client:
            for each in self._consumers:
                if each.by_request:
                    config = {name: value for name, value in each.config.items() if name != "stream"}
                    _insist(lambda each=each, config=config: client.control.add(each.id[0], **config))  # type: ignore[misc]

    def _open_client(self) -> Client:
        return open_client(self._config)

    # the storm

    def _follow(self, faults: list[Fault]) -> None:
        """Do the faults, each at its time, and undo them."""
        steps = sorted([(each.at, number, True) for number, each in enumerate(faults)]
                       + [(each.until, number, False) for number, each in enumerate(faults)])  # fmt: skip
        began = time.monotonic()
        for at, number, is_begin in steps:
            while (left := began + at - time.monotonic()) > 0:
                time.sleep(min(left, LOOK_S))  # the timetable's pace; nothing is waited for
                for worker in self._workers:
                    worker.look()
            if is_begin:
                print(faults[number], flush=True)  # noqa: T201
                self._begin(faults[number])
            else:
                self._end(faults[number])

    def _begin(self, fault: Fault) -> None:
        self._done[
            f"{'kill' if fault.is_kill else 'freeze'} {fault.victim if fault.victim.isalpha() else 'worker'}"
        ] += 1
        if fault.victim.isdigit():
            worker = self._workers[int(fault.victim)]
            worker.kill() if fault.is_kill else worker.freeze()
            return
        process = self._find(fault.victim)
        process.kill() if fault.is_kill else process.process.send_signal(signal.SIGSTOP)

    def _end(self, fault: Fault) -> None:
        if fault.victim.isdigit():
            worker = self._workers[int(fault.victim)]
            worker.start() if fault.is_kill else worker.thaw()
        elif not fault.is_kill:
            self._find(fault.victim).process.send_signal(signal.SIGCONT)
        elif fault.victim == "fleet":
            self._fleet.start()
        else:
            self._faust_worker = self._faust.start()

    def _find(self, victim: str) -> RunningProcess:
        found = self._fleet.process if victim == "fleet" else self._faust_worker
        assert found is not None
        assert found.process.poll() is None, found.read_log()[-4_000:]
        return found

    def _end_fleet(self) -> None:
        if self._fleet.process is not None and self._fleet.process.process.returncode is None:
            self._fleet.process.kill()

    # the judgement

    def _judge(self, source: Source, watch: Watch, applications: list[Application]) -> Found:
        judge, outputs = Judge(source), Outputs(self._bootstrap, self._topics)
        began = time.monotonic()
        left = self._await_calm(judge, outputs, watch)
        calm_s = time.monotonic() - began
        if left:
            judge.faults += [f"{CALM_S:.0f} s after the storm there is something left: {left}"]
            judge.faults += [worker.describe() for worker in self._workers]
        watch.stop()
        for application in applications:
            application.stop()
        for worker in self._workers:
            worker.stop()
        outputs.read(2.0)
        for each in self._consumers:
            if not each.output:
                judge.judge_numbers(each, self._pullers[each.id].numbers)
            elif each.name == FAUST:
                taken = {line["sequence"] for line in self._faust.read()}
                judge.judge(each, outputs.deliveries[each.id], taken)
            else:
                judge.judge(each, outputs.deliveries[each.id], self._acker.acked[each.id] if each.is_acked else None)
        outputs.close()
        judge.faults += [death for worker in self._workers for death in worker.deaths]
        judge.faults += self._judge_picture(watch)
        figures = {
            "orders": len(source.orders),
            "deliveries": sum(map(len, outputs.deliveries.values())),
            "calm_s": round(calm_s, 1),
            "done": dict(self._done),
            "picture": {"differs_s": round(watch.longest, 1), "absent_s": round(watch.absent, 1), "looks": watch.looks},
        }
        return Found(judge.faults, figures)

    def _judge_picture(self, watch: Watch) -> Iterator[str]:
        if not watch.looks:
            yield "the picture could never be compared"
        if self.trusts_clock and watch.longest > PICTURE_S:
            yield f"the picture differed from Kafka for {watch.longest:.1f} s. {watch.example}"
        if self.trusts_clock and watch.absent > ABSENT_S:
            yield f"there was no picture for {watch.absent:.1f} s"

    def _await_calm(self, judge: Judge, outputs: Outputs, watch: Watch) -> dict[str, Any]:
        """Wait until every consumer has delivered what it wants and has nothing left to do, and the picture agrees with Kafka.
        Return what is left.
        """
        wanted = {each.id: judge.find_wanted(each) for each in self._consumers}
        calm: set[tuple[str, str]] = set()
        deadline, left = time.monotonic() + CALM_S, dict[str, Any]()
        with self._open_client() as client:
            while time.monotonic() < deadline:
                for worker in self._workers:
                    worker.look()
                outputs.read()
                left = {}
                for each in self._consumers:
                    if each.id in calm:
                        continue
                    found = outputs.numbers[each.id] if each.output else self._pullers[each.id].numbers
                    if missing := len(wanted[each.id] - found):
                        left["/".join(each.id)] = f"{missing} orders not delivered"
                    elif each.is_acked and (pending := _find_pending(client, each)):
                        left["/".join(each.id)] = pending
                    else:
                        calm.add(each.id)
                if not left and (difference := watch.find_difference()):
                    left["picture"] = difference
                if not left:
                    return {}
        return left


def _insist(ask: Callable[[], object]) -> None:
    """Ask the service for something until it answers."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            ask()
            return
        except ConsumerAlreadyExists:
            return  # an earlier request was carried out, and its answer came too late
        except (NoAnswer, SourceUnavailable):
            if time.monotonic() > deadline:
                raise


def _find_pending(client: Client, consumer: Consumer) -> str:
    """Return what a consumer still waits for; empty for nothing."""
    try:
        info = client.control.info(*consumer.id)
    except OverlayError as error:
        return f"{type(error).__name__}: {error}"
    return f"{info.num_ack_pending} not acked" if info.num_ack_pending else ""
