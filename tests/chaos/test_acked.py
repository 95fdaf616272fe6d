"""`kill -9` of the service at random moments while records flow and are acked: everything is acked in the end, what was
confirmed never comes again, and whatever came more than once had a reason.

The reader is a plain consumer group member that acks most of what it gets, naks some, says nothing to others, and asks for an
answer now and then. Its acks are plain records. Answers and deliveries of a transaction become visible together with the state,
so a delivery that is in the log behind an answer to an ack of the same message would be a broken promise.

OVERLAY_KILLS sets the number of rounds; OVERLAY_SEED repeats a run's moments and records as far as processes allow.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, TopicPartition

from overlay.kafka.own_topics import acks_topic
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic
from tests.support.service import RunningService, StartService
from tests.support.stalls import Stalls
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, Headers, Scene, Seen, produce, read_committed

KILLS = int(os.environ.get("OVERLAY_KILLS", "2"))
ACK_WAIT_S = 2.0
SLACK_S = 1.5
"""A timer starts when the machine delivers, the record's time is that of its arrival in the log."""
SOON_MS = 200
"""Records that were held up by a stall are in the log so long after its end."""
BURST = 400

pytestmark = pytest.mark.timeout(600 + 60 * KILLS)


@dataclass
class Acker:
    """Reads an output topic as it grows, and says something of most deliveries. `error` is what ended it early."""

    scene: Scene
    output: str
    answers: str
    rng: random.Random
    is_diligent: bool = False
    """Whether everything is acked from now on, whatever was left out before."""
    acked: set[int] = field(default_factory=set)
    nakked: set[int] = field(default_factory=set)
    confirmed: dict[int, int] = field(default_factory=dict)
    """Messages whose ack was answered, and where the output's log ended when that was seen."""
    error: BaseException | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._producer = SureProducer(self.scene.bootstrap, {"linger.ms": 5, "log_level": 0})
        self._watermarks = Consumer({"bootstrap.servers": self.scene.bootstrap, "group.id": "watermarks"})
        self._done = 0
        self._answered = 0
        self._thread = threading.Thread(target=self._run, name="acker")
        self._thread.start()

    def _run(self) -> None:
        try:
            with (
                CommittedReader(self.scene.bootstrap, self.output) as deliveries,
                CommittedReader(self.scene.bootstrap, self.answers) as answers,
            ):
                while not self.stop.wait(0.05):
                    self._note_answers(answers.read())
                    found = deliveries.read()
                    for record in found[self._done :]:
                        self._say(record)
                    if self.is_diligent:
                        self._make_up(found)
                    self._done = len(found)
                    assert self._producer.flush(30) == 0
        except BaseException as error:  # noqa: BLE001 - raised again by `finish`
            self.error = error

    def _say(self, record: Seen) -> None:
        dice = self.rng.random()
        if dice < 0.1 and not self.is_diligent:
            return
        if dice < 0.15 and not self.is_diligent:
            self.nakked.add(record.token.sequence)
            self._send(record, b"-NAK")
        else:
            self.acked.add(record.token.sequence)
            self._send(record, b"+ACK", wants_answer=dice > 0.6)

    def _make_up(self, found: Sequence[Seen]) -> None:
        last = {record.token.sequence: record for record in found}
        for sequence in last.keys() - self.acked:
            self.acked.add(sequence)
            self._send(last[sequence], b"+ACK")

    def _send(self, record: Seen, body: bytes, *, wants_answer: bool = False) -> None:
        headers: Headers = [("Nats-Reply-To", record.header(b"Nats-Reply-To"))]
        if wants_answer:
            correlation = str(record.token.sequence)
            headers += [("Overlay-Reply-Topic", self.answers), ("Overlay-Correlation-Id", correlation)]
        self._producer.produce(acks_topic(self.scene.prefix, "S"), body, headers=headers)
        self._producer.poll(0)

    def _note_answers(self, found: Sequence[Seen]) -> None:
        fresh = found[self._answered :]
        self._answered = len(found)
        if fresh:
            _, end = self._watermarks.get_watermark_offsets(TopicPartition(self.output, 0), 30)
            for record in fresh:
                self.confirmed.setdefault(int(record.header(b"Overlay-Correlation-Id") or b"0"), end)

    def finish(self) -> None:
        self.stop.set()
        self._thread.join(120)
        self._watermarks.close()
        if self.error is not None:
            raise self.error


def test_kill_while_acks_flow(scene: Scene, running_service: StartService, new_topic: NewTopicFixture) -> None:
    seed = int(os.environ.get("OVERLAY_SEED", random.SystemRandom().randrange(1 << 32)))
    rng = random.Random(seed)
    print(f"chaos: OVERLAY_SEED={seed} OVERLAY_KILLS={KILLS}")  # noqa: T201 - a failure shows it
    topic, answers = new_topic(), make_topic(scene.bootstrap, f"{scene.prefix}.replies.answers")
    scene.add_stream("S", topic)
    output = scene.add_consumer(
        "S", "c", "t.a", "t.b", ack_policy="explicit", ack_wait=f"{ACK_WAIT_S}s", interest="always", max_ack_pending=300
    )
    # the first service makes the topics
    service = running_service(scene.folder)
    with Stalls(scene.bootstrap, f"{service.url}/healthz") as stalls:
        acker = Acker(scene, output, answers, random.Random(seed + 1))
        try:
            for _ in range(KILLS):
                produce(scene.bootstrap, topic, [rng.choice("abc") for _ in range(BURST)])
                heard = len(acker.acked)
                wait_until(lambda heard=heard: len(acker.acked) > heard or acker.error, 120, "something is acked")  # type: ignore[misc]
                time.sleep(rng.uniform(0.0, 1.5))  # a kill at any moment is what is tested; nothing is waited for
                service.kill()
                produce(scene.bootstrap, topic, [rng.choice("abc") for _ in range(BURST)])
                service = running_service(scene.folder)
            acker.is_diligent = True
            source = read_committed(scene.bootstrap, topic)
            wanted = {record.offset + 1 for record in source if record.header(b"to") in (b"a", b"b")}
            wait_until(lambda: acker.acked >= wanted or acker.error, 240, "everything is acked")
            wait_until(lambda: is_settled(service) or acker.error, 120, "nothing is pending")
        finally:
            acker.finish()
    found = read_committed(scene.bootstrap, output)
    assert service.stop() == 0, service.read_log()
    check(found, wanted, acker, stalls)


def is_settled(service: RunningService) -> bool:
    lines = [line for line in service.get("/metrics").splitlines() if line.startswith("overlay_ack_pending{")]
    return bool(lines) and all(float(line.split()[-1]) == 0 for line in lines)


def check(found: Sequence[Seen], wanted: set[int], acker: Acker, stalls: Stalls) -> None:
    tokens = [record.token for record in found]
    assert [token.consumer_sequence for token in tokens] == list(range(1, len(tokens) + 1))
    assert {token.sequence for token in tokens} == wanted == acker.acked
    assert acker.confirmed, "no ack was answered"
    times: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for record in found:
        end = acker.confirmed.get(record.token.sequence)
        assert end is None or record.offset < end, f"{record.token} came after its ack was confirmed"
        times[record.token.sequence].append((record.timestamp, record.token.deliveries))
    for sequence, deliveries in times.items():
        assert [count for _, count in deliveries] == list(range(1, len(deliveries) + 1))
        for (before, _), (after, _) in pairwise(deliveries):
            # how late the record of a delivery was in the log on a machine that stalled
            late = max((end - begin for begin, end in stalls.seen if begin <= before <= end + SOON_MS), default=0)
            waited = after - before + late >= (ACK_WAIT_S - SLACK_S) * 1000
            assert waited or sequence in acker.nakked, f"{sequence} came again after {after - before} ms"
