"""One storm from its beginning to its judgement."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overlay.client import open_client
from overlay.client.client import Client
from overlay.client.control.inbox import NoAnswer
from overlay.client.control.refusals import ConsumerAlreadyExists
from overlay.errors import OverlayError, SourceUnavailable
from overlay.local import start as start_broker
from tests.support.kafka import make_topic
from tests.support.service import READY_S, find_free_port
from tests.support.waiting import wait_until

from .applications import Application, Notes, Puller, Subscriber
from .faults import Fault, What, plan_faults
from .judge import Judge, Output, read_source
from .plan import PARTITIONS, SHARDS, STREAM, STREAM_FILE, Consumer, plan_arrival, plan_consumers
from .traffic import Traffic
from .workers import PORT, BusyLoops, Worker

TOPIC = "flights"
PREFIX = "storm"
WORKERS = 2
CALM_S = 240.0
"""How long after the last fault everything has to be delivered and acked."""
STALL_S = 60.0
LOOK_S = 0.2


@dataclass(slots=True)
class Found:
    """What a storm found. `faults`: promises that were broken; `figures`: how much went on."""

    faults: list[str]
    figures: dict[str, Any]


@dataclass
class Storm:
    """Good for one `run`. `folder`: for the config folder and the logs."""

    folder: Path
    seed: int
    seconds: float
    delivery: str
    rate: float
    busy: int
    arrivals: int
    trusts_clock: bool = True
    """As the judge's."""
    _consumers: list[Consumer] = field(default_factory=list)
    _applications: list[Application] = field(default_factory=list)
    _notes: dict[str, Notes] = field(default_factory=dict)
    _restart: tuple[float, float] = (0.0, 0.0)
    _troubles: list[str] = field(default_factory=list)
    _written: dict[str, int] = field(default_factory=dict)
    _done: Counter[str] = field(default_factory=Counter)

    def run(self) -> Found:
        """Raise the storm, let it calm down, and judge."""
        self._rng = random.Random(self.seed)
        self._timetable = plan_faults(self._rng, self.seconds, WORKERS, self.arrivals)
        with start_broker(ephemeral=True) as broker:
            self._broker = broker
            make_topic(broker.bootstrap, TOPIC, PARTITIONS)
            self._write_config()
            os.environ.setdefault(PORT, "0")  # for this process, which opens the folder as a client
            self._workers = [Worker(number, self._config, find_free_port()) for number in range(WORKERS)]
            for worker in self._workers:
                worker.start()
            busy = BusyLoops(self.busy, self.seconds + CALM_S)
            try:
                return self._rage()
            finally:
                busy.stop()
                for worker in self._workers:
                    worker.thaw()
                    worker.kill()

    @property
    def _config(self) -> Path:
        return self.folder / "config"

    def _rage(self) -> Found:
        for consumer in plan_consumers(PREFIX, self.delivery):
            self._add(consumer)
        wait_until(lambda: any(worker.is_ready() for worker in self._workers), READY_S, "a worker is ready")
        traffic = Traffic(self._broker.bootstrap, TOPIC, self.rate, random.Random(self.seed + 1))
        try:
            self._follow(self._timetable)
        finally:
            for worker in self._workers:
                worker.thaw()
                worker.start()
            traffic.stop()
            self._note_traffic(traffic)
        for application in self._applications:
            application.is_diligent = True
        return self._judge()

    # the storm

    def _follow(self, timetable: list[Fault]) -> None:
        began = time.monotonic()
        for fault in timetable:
            while (left := began + fault.at - time.monotonic()) > 0:
                time.sleep(min(left, LOOK_S))  # the timetable's pace; nothing is waited for
                self._look()
            self._do(fault)
        self._look()

    def _look(self) -> None:
        for worker in self._workers:
            worker.look()

    def _do(self, fault: Fault) -> None:
        print(fault, flush=True)  # noqa: T201
        self._done[fault.what.value] += 1
        match fault.what:
            case What.KILL:
                self._workers[fault.worker].kill()
            case What.START:
                self._workers[fault.worker].start()
            case What.FREEZE:
                self._workers[fault.worker].freeze()
            case What.THAW:
                self._workers[fault.worker].thaw()
            case What.ARRIVAL:
                self._add(plan_arrival(PREFIX, self.delivery, self._done["arrival"] - 1))
            case What.RESTART_BROKER:
                begin = time.time()
                self._broker.restart()
                if self._broker.moved_from:
                    raise AssertionError("another program has taken the broker's port: the storm cannot go on")
                self._restart = (begin, time.time())

    def _note_traffic(self, traffic: Traffic) -> None:
        for what in traffic.replaced:
            print(f"a lost Kafka client of the traffic was replaced: {what}", flush=True)  # noqa: T201
        self._written = {
            "written": traffic.written,
            "dropped": traffic.dropped,
            "replaced": len(traffic.replaced),
            "unmarked": traffic.unmarked,
        }

    # consumers

    def _write_config(self) -> None:
        for name in ("streams", "consumers"):
            (self._config / name).mkdir(parents=True)
        service = {
            "kafka": {"bootstrap.servers": self._broker.bootstrap},
            "topics": {"prefix": PREFIX},
            "http": {"listen": f"127.0.0.1:${{{PORT}}}"},
            "shards": SHARDS,
        }
        # JSON is YAML
        (self._config / "overlay.yaml").write_text(json.dumps(service), encoding="utf-8")
        (self._config / "streams" / "flights.yaml").write_text(json.dumps(STREAM_FILE), encoding="utf-8")

    def _add(self, consumer: Consumer) -> None:
        """Make a consumer and start its applications."""
        self._consumers.append(consumer)
        if not consumer.by_request:
            path = self._config / "consumers" / f"{consumer.name}.yaml"
            path.write_text(json.dumps(dict(consumer.config)), encoding="utf-8")
        else:
            self._request(consumer)
        if consumer.acks:
            notes = self._notes[consumer.name] = Notes()
            for _ in range(consumer.members):
                rng = random.Random(self._rng.getrandbits(32))
                make = Puller if consumer.is_pulled else Subscriber
                self._applications.append(make(self._open_client, consumer, notes, rng))

    def _request(self, consumer: Consumer) -> None:
        """Have the service make a consumer; both workers may be away for a while."""
        config = {name: value for name, value in consumer.config.items() if name != "stream"}
        deadline = time.monotonic() + CALM_S
        with self._open_client() as client:
            while True:
                try:
                    client.control.add(STREAM, **config)
                    return
                except ConsumerAlreadyExists:
                    return  # an earlier request was carried out and its answer came too late
                except (NoAnswer, SourceUnavailable) as error:
                    self._troubles.append(str(error))
                    for worker in self._workers:
                        worker.thaw()
                        worker.start()
                    if time.monotonic() > deadline:
                        raise

    def _open_client(self) -> Client:
        return open_client(self._config)

    # the judgement

    def _judge(self) -> Found:
        source = read_source(self._broker.bootstrap, TOPIC)
        judge = Judge(source, self.delivery, self._restart, self.trusts_clock)
        pushed = [each for each in self._consumers if not each.is_pulled]
        outputs = {each.name: Output(self._broker.bootstrap, each.output) for each in pushed}
        began = time.monotonic()
        left = self._await_calm(judge, outputs)
        calm_s = time.monotonic() - began
        wrong = [worker.describe() for worker in self._workers] if left else []
        for application in self._applications:
            application.stop()
        for worker in self._workers:
            worker.stop()
        if left:
            judge.faults.append(f"{CALM_S:.0f} s after the storm there is something left: {left}")
            judge.faults += wrong
        for consumer in pushed:
            outputs[consumer.name].read()
            judge.judge(consumer, outputs[consumer.name].deliveries, self._notes.get(consumer.name))
            outputs[consumer.name].close()
        for consumer in self._consumers:
            if consumer.is_pulled:
                judge.judge_pulled(consumer, self._notes[consumer.name])
        judge.faults += [death for worker in self._workers for death in worker.deaths]
        figures: dict[str, Any] = {
            "records": len(source.flights),
            "traffic": self._written,
            "calm_s": round(calm_s, 1),
            "done": dict(self._done),
            "delivered": {name: len(output.deliveries) for name, output in outputs.items()},
            "acked": {name: len(notes.acked) for name, notes in self._notes.items()},
            "troubles": Counter(kind for notes in self._notes.values() for _, kind, _ in notes.troubles),
        }
        self._write_troubles()
        return Found(judge.faults, figures)

    def _write_troubles(self) -> None:
        """Write down what the client library told the applications, beside the logs of the workers."""
        lines = sorted(
            (at, f"{at:.1f} {name}: {kind}: {text}")
            for name, notes in self._notes.items()
            for at, kind, text in notes.troubles
        )
        (self.folder / "troubles.log").write_text("\n".join(line for _, line in lines), encoding="utf-8")

    def _await_calm(self, judge: Judge, outputs: dict[str, Output]) -> dict[str, Any]:
        """Wait until every consumer has delivered what it wants and has nothing left to do; return what is left."""
        wanted = {each.name: judge.find_wanted(each) for each in self._consumers}
        deadline = time.monotonic() + CALM_S
        left: dict[str, Any] = {}
        with self._open_client() as client:
            while time.monotonic() < deadline:
                self._look()
                left = {}
                for consumer in self._consumers:
                    if missing := len(wanted[consumer.name] - self._find_numbers(consumer, outputs)):
                        left[consumer.name] = f"{missing} records not delivered"
                    elif consumer.acks and (pending := self._find_pending(client, consumer)):
                        left[consumer.name] = pending
                if not left:
                    return {}
                time.sleep(LOOK_S)  # no event reports what is waited for
        return left

    def _find_numbers(self, consumer: Consumer, outputs: dict[str, Output]) -> set[int]:
        """Return the numbers of the records that a consumer has delivered."""
        if consumer.is_pulled:
            return {number for numbers in list(self._notes[consumer.name].numbers.values()) for number in numbers}
        outputs[consumer.name].read()
        return outputs[consumer.name].numbers

    def _find_pending(self, client: Client, consumer: Consumer) -> str:
        """Return what a consumer still waits for; empty for nothing."""
        try:
            info = client.control.info(STREAM, consumer.name)
        except OverlayError as error:
            return f"{type(error).__name__}: {error}"
        return f"{info.num_ack_pending} not acked" if info.num_ack_pending else ""
