"""A member of a group, whose Kafka client does what a test says: one thing at each poll."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaRecord
from structlog.testing import capture_logs

from overlay.client.subscribe import membership
from overlay.client.subscribe.acking import Head
from overlay.client.subscribe.membership import Member
from overlay.client.subscribe.message_buffer import MessageBuffer
from overlay.client.subscribe.target import Target
from overlay.config.consumer import AckPolicy
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.properties import Properties, for_confluent

Step = Callable[["Script"], KafkaRecord | None]


class Script:
    """Takes the place of the Kafka client: a poll takes the next step; after the last one the member is told to stop."""

    def __init__(self, steps: Iterable[Step], stop: threading.Event) -> None:
        self._steps, self._stop = iter(steps), stop
        self.assigned: set[int] = set()
        self.paused: set[int] = set()
        self.committed: dict[int, int] = {}
        self.loses_commits = False
        """Whether asynchronous commits fail, as in a rebalance."""
        self.is_behind = False
        """Whether the group has a newer generation, of which the next poll tells."""

    def subscribe(self, topics: Sequence[str], **hear: Callable[..., None]) -> None:
        self.hear = hear

    def poll(self, timeout: float) -> KafkaRecord | None:
        if self.is_behind and timeout == 0:
            self.is_behind = False
            return None
        step = next(self._steps, None)
        if step is None:
            self._stop.set()
            return None
        return step(self)

    def consume(self, most: int, timeout: float) -> list[KafkaRecord]:
        return []

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool) -> None:
        if self.is_behind:
            if not asynchronous:
                raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))
            return
        if not (asynchronous and self.loses_commits):
            self.committed |= {place.partition: place.offset for place in offsets}

    def assignment(self) -> list[TopicPartition]:
        return place(*self.assigned)

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self.paused |= {place.partition for place in places}

    def resume(self, places: Sequence[TopicPartition]) -> None:
        self.paused -= {place.partition for place in places}

    def close(self) -> None:
        self.hear["on_revoke"](self, self.assignment())


def place(*partitions: int) -> list[TopicPartition]:
    return [TopicPartition("out", partition) for partition in partitions]


def assign(*partitions: int) -> Step:
    """As Kafka's client does it: who is assigned more hears of it first."""

    def step(client: Script) -> None:
        client.hear["on_assign"](client, place(*partitions))
        client.assigned |= set(partitions)

    return step


def bring(partition: int, offset: int) -> Step:
    return lambda client: KafkaRecord(topic="out", partition=partition, offset=offset, value=b"x")


def fail(code: int) -> Step:
    return lambda client: KafkaRecord(topic="out", error=KafkaError(code))


def run(
    monkeypatch: pytest.MonkeyPatch,
    message_buffer: MessageBuffer,
    *steps: Step,
    policy: AckPolicy = AckPolicy.NONE,
    on_silence: Callable[[bool], None] = lambda _: None,
    **options: Any,
) -> tuple[Script, Member]:
    stop = threading.Event()
    script = Script(steps, stop)
    monkeypatch.setattr(membership, "Consumer", lambda settings: script)
    target = Target(Head("S", "c"), "out", "c", policy, options.pop("heartbeat_s", 0.0))
    member = Member({"bootstrap.servers": "nowhere:1"}, target, message_buffer, **options)
    member.run(stop, on_silence)
    return script, member


@pytest.mark.parametrize(
    ("policy", "committed"),
    [(AckPolicy.EXPLICIT, {0: 6}), (AckPolicy.ALL, {0: 6}), (AckPolicy.FLOW_CONTROL, {0: 5}), (AckPolicy.NONE, {0: 5})],
)
def test_the_message_in_hand_is_passed_where_it_waits_for_its_ack(
    monkeypatch: pytest.MonkeyPatch, policy: AckPolicy, committed: dict[int, int]
) -> None:
    message_buffer = MessageBuffer(10)

    def take(client: Script) -> None:
        batch = message_buffer.take()
        assert batch is not None
        assert batch.pop() is not None

    script, _ = run(monkeypatch, message_buffer, assign(0), bring(0, 5), take, policy=policy)
    assert script.committed == committed


def test_a_commit_counts_once_it_has_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is under way may fail in the rebalance that takes the partition: it is made again before that goes."""
    monkeypatch.setattr(membership, "COMMIT_S", 0.0)
    message_buffer = MessageBuffer(10)

    def take(client: Script) -> None:
        client.loses_commits = True
        batch = message_buffer.take()
        assert batch is not None
        assert batch.pop() is not None

    steps = assign(0), bring(0, 5), take, wait
    script, _ = run(monkeypatch, message_buffer, *steps, policy=AckPolicy.EXPLICIT)
    assert script.committed == {0: 6}


def test_who_leaves_in_a_rebalance_commits_in_the_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that closes hears of no generation any more: the commit comes before, from a member that still polls."""
    message_buffer = MessageBuffer(10)

    def take(client: Script) -> None:
        batch = message_buffer.take()
        assert batch is not None
        assert batch.pop() is not None

    def fall_behind(client: Script) -> None:
        client.is_behind = True

    script, _ = run(monkeypatch, message_buffer, assign(0), bring(0, 5), take, fall_behind, policy=AckPolicy.EXPLICIT)
    assert script.committed == {0: 6}


def test_what_is_paused_goes_on_when_more_is_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer is full and the application takes nothing: the member pauses, and is given another partition
    then."""
    monkeypatch.setattr(membership, "PATIENCE_S", 0.0)
    monkeypatch.setattr(membership, "POLL_S", 0.001)
    message_buffer = MessageBuffer(1)
    paused: list[set[int]] = []

    def assign_more(client: Script) -> None:
        paused.append(set(client.paused))
        assign(1)(client)
        message_buffer.take()

    def look(client: Script) -> None:
        paused.append(set(client.paused))

    _, member = run(monkeypatch, message_buffer, assign(0), bring(0, 5), assign_more, look)
    assert paused == [{0}, set()]
    assert not member.is_paused


def lose(*partitions: int) -> Step:
    """As after an outage: the group has given up the member meanwhile."""

    def step(client: Script) -> None:
        client.assigned -= set(partitions)
        client.hear["on_lost"](client, place(*partitions))

    return step


@pytest.mark.parametrize("is_alone", [False, True])
def test_who_is_alone_hears_of_silence_without_partitions_as_well(
    monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    """The topic may be gone together with its consumer: nothing is assigned then for ever."""
    monkeypatch.setattr(membership, "SLACK_S", 0.0)
    said: list[bool] = []
    steps = [assign(), wait, assign(0), lose(0), assign(), wait]
    _, member = run(monkeypatch, MessageBuffer(1), *steps, on_silence=said.append, heartbeat_s=0.02, is_alone=is_alone)
    assert not member.assigned
    assert said == ([True] if is_alone else [])


def wait(client: Script) -> None:
    time.sleep(0.05)  # longer than two heartbeats: this is the silence that is to be heard


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_client_that_is_spent_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_lost: bool) -> None:
    """It knows no broker any more, or its password was replaced. Its partitions are given up and come again, from where
    messages had been handed out."""
    message_buffer, scripts, stop = MessageBuffer(10), list[Script](), threading.Event()
    password = tmp_path / "password"
    password.write_text("first")
    kafka = {"bootstrap.servers": "nowhere:1", "sasl.username": "me", "sasl.password": f"file:{password}"}

    def lose_all(client: Script) -> None:
        take(client)
        if not is_lost:
            password.write_text("the second")
        for _ in range(2):
            source = "logical" if is_lost else "learned"
            settings[-1]["stats_cb"](json.dumps({"brokers": {"one": {"source": source}}}))

    def take(_: Script) -> None:
        batch = message_buffer.take()
        assert batch is not None
        assert batch.pop() is not None

    # before a member leaves, it polls while it commits
    last: list[Step] = [] if is_lost else [lambda _: None]
    plan: list[list[Step]] = [[assign(0), bring(0, 5), lose_all, *last], [assign(0), bring(0, 6), take]]
    settings: list[dict[str, Any]] = []
    tries: list[int] = []

    def read(kafka: Properties) -> dict[str, str]:
        tries.append(len(settings))
        if len(tries) == 2:  # in the middle of another replacement
            raise SourceUnavailable("password: is missing")
        return for_confluent(kafka)

    def make(given: dict[str, Any]) -> Script:
        settings.append(given)
        scripts.append(Script(plan[len(scripts)], stop))
        return scripts[-1]

    monkeypatch.setattr(membership, "RETRY_S", 0.01)
    monkeypatch.setattr(membership, "for_confluent", read)
    monkeypatch.setattr(membership, "Consumer", make)
    target = Target(Head("S", "c"), "out", "c", AckPolicy.EXPLICIT, 0.0)
    Member(kafka, target, message_buffer).run(stop, lambda _: None)
    assert [script.committed for script in scripts] == [{0: 6}, {0: 7}]
    assert [each["sasl.password"] for each in settings] == ["first", "first" if is_lost else "the second"]
    assert tries == [0, 1, 1]


def test_credentials_that_cannot_be_read_at_the_start_end_the_member(tmp_path: Path) -> None:
    target = Target(Head("S", "c"), "out", "c", AckPolicy.EXPLICIT, 0.0)
    plain = {"bootstrap.servers": "nowhere:1"}
    for settings, reason in (
        ({"sasl.password": f"file:{tmp_path / 'none'}"}, "cannot be read: No such file"),
        ({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "none")}, "Check ssl"),
    ):
        member = Member(plain | settings, target, MessageBuffer(10))
        with pytest.raises(CredentialsRefused, match=reason):
            member.run(threading.Event(), lambda _: None)


def test_an_output_that_is_not_there_yet_is_no_trouble_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as logged:
        run(monkeypatch, MessageBuffer(10), fail(KafkaError.UNKNOWN_TOPIC_OR_PART), fail(KafkaError._TRANSPORT))
    first, second = logged
    assert (first["event"], first["consumer"]) == ("waiting for the service to create the output topic", "c")
    assert second["event"] == "waiting for Kafka"
