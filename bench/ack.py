"""`python -m bench ack`: how fast messages are delivered and acked one by one, and what unacked ones cost.

explicit/200B: a topic of 200-byte messages is full before; an application takes every message, and acks each by a call of
its own. The rate is messages per second from the first delivery until the last ack has been counted:
for us and for NATS nothing is pending any more, for a share group the last commit has been answered. All are there exactly
once, or the bench ends with an error.

- overlay: `overlay run` in a process of its own, exactly once, with a subject filter that lets everything pass; the client
  of docs/client.md in this process. The consumer is paused until the client is in its group; the clock starts when the first
  delivery is appended to the output topic, so that what the service does before the client has it counts.
- nats: nats-server and nats-py: pull consumer, fetch(500), `await message.ack()` (peers/acking.py). The clock starts with the
  first fetch.
- share: confluent-kafka's ShareConsumer on the same topic, explicit mode: `acknowledge(message)` for each, sent with the next
  poll. The clock starts with the first message; joining the group, which takes seconds, is not in it.
- share-implicit: the same in implicit mode, where nothing is said of single messages.

All may have 100,000 messages without an ack but the share group, whose broker allows 2,000 of a partition by default.

redelivery: 100,000 messages are delivered and not acked; how long it takes from when the first of them is due again
(or is there again, if that is earlier) until the last is appended again, by the times of the output topic. So the spread of
the first deliveries is in it.

pending-memory: what a million messages without an ack take in the service's memory, in bytes of the arrays that hold them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Protocol

from bench.cases import measure_case, warm_up
from bench.dataset import Dataset
from bench.errors import WrongAnswer
from bench.figures import OVERLAY, Case, Unit
from bench.messages import Messages, MessageTopic
from bench.ours_ack import OverlayAck, count_pending_bytes, measure_redelivery
from bench.peers.acking import NatsAck, ShareAck
from bench.progress import Progress
from bench.settings import Settings
from bench.sides import Contender, Tally

RECORDS = 100_000
"""For each point of the scale."""
WARM_UP = 2_000
STORM = 100_000
PENDING = 1_000_000
GOALS = {"explicit/200B": {"nats": 5.0, "share": 1.0}}
LIMITS = {"redelivery": 3_000.0, "pending-memory": 100.0}


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases of the bench, each as soon as it is measured. Raises WrongAnswer."""
    messages = Messages(dataset.bootstrap)
    with ExitStack() as stack:
        sides = [side for side in _make_sides() if settings.wants_side(side.name)]
        for side in sides:
            stack.enter_context(closing(side))
        few = messages.publish(WARM_UP, progress.count("publishing"))
        many = messages.publish(max(round(RECORDS * settings.scale), WARM_UP), progress.count("publishing"))
        warm_up(sides, _run, few, progress)
        case = "explicit/200B"
        yield measure_case("ack", case, sides, _run, many, GOALS[case], settings.rounds, progress)
    storm = messages.publish(min(STORM, many.records), progress.count("publishing"))
    runs = []
    for number in range(settings.rounds):
        progress.say(f"ack redelivery: round {number + 1}")
        runs.append(measure_redelivery(storm))
    yield _make_case("redelivery", Unit.MILLISECONDS, statistics.median(runs), runs)
    progress.say("ack pending-memory")
    yield _make_case("pending-memory", Unit.MEGABYTES, count_pending_bytes(PENDING) / 1e6)


def _make_sides() -> list[AckSide]:
    return [OverlayAck(), NatsAck(), ShareAck("share", "explicit"), ShareAck("share-implicit", "implicit")]


def _make_case(name: str, unit: Unit, figure: float, runs: list[float] | None = None) -> Case:
    case = Case(name, unit, figure, limit={OVERLAY: LIMITS[name]})
    return replace(case, runs={OVERLAY: runs}) if runs else case


class AckSide(Contender, Protocol):
    """A way to take messages and ack them. Raises PeerUnavailable."""

    def run(self, topic: MessageTopic) -> Tally: ...


def _run(side: AckSide, topic: MessageTopic) -> Tally:
    tally = side.run(topic)
    if tally.matched != topic.records:
        raise WrongAnswer(
            f"{side.name} on {topic.name}: {tally.matched} of {topic.records} messages were taken and acked. Run this side"
            " alone (--only) to look into it"
        )
    return tally
