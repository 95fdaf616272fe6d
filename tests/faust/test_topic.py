"""`agent_topic`: what it refuses, and which records of an output topic are messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import faust
import pytest
from faust.exceptions import ValueDecodeError
from faust.types import Message
from faust.types.tuples import TP, ConsumerMessage

from overlay.client import BadQuestion
from overlay.examples import find_example
from overlay.faust import AgentTopic, agent_topic
from overlay.faust.committed import CommittedConsumer
from tests.config.folders import write_folder

TOKEN = b"$JS.ACK._.4x1.S.%b.1.7.7.1700000000123000000.0"
PUSH = "stream: S\ndurable_name: c\ndeliver_subject: out\ndeliver_group: app\n"


def make_topic(tmp_path: Path, consumer: str = PUSH, app: faust.App | None = None, name: str = "c") -> AgentTopic:
    folder = write_folder(
        tmp_path,
        {
            "overlay.yaml": "kafka: {bootstrap.servers: '127.0.0.1:1'}\n",
            "streams/s.yaml": "name: S\ntopics: [source]\n",
            "consumers/c.yaml": consumer,
            "consumers/d.yaml": PUSH.replace("durable_name: c", "durable_name: d"),
        },
    )
    return agent_topic(app or make_app(), folder, name)


def make_app(**settings: Any) -> faust.App:
    return faust.App("app", broker="kafka://127.0.0.1:1", store="memory://", web_enabled=False, **settings)


def make_record(*headers: tuple[str, bytes]) -> Message:
    return ConsumerMessage("out", 0, 5, 1.0, 1, cast(Any, list(headers)), None, b"{}", None, tp=TP("out", 0))


@pytest.mark.parametrize(
    ("consumer", "why"),
    [
        (PUSH.replace("deliver_subject: out\ndeliver_group: app\n", ""), "no deliver_subject"),
        (PUSH + "ack_policy: all\n", "`ack_policy: all`"),
        (PUSH + "ack_policy: flow_control\nflow_control: true\nidle_heartbeat: 1s\n", "`ack_policy: flow_control`"),
        (PUSH.replace("deliver_group: app\n", ""), "Write `deliver_group: app`"),
    ],
)
def test_consumers_that_agents_cannot_read(tmp_path: Path, consumer: str, why: str) -> None:
    with pytest.raises(BadQuestion, match=why):
        make_topic(tmp_path, consumer)


@pytest.mark.parametrize("setting", [{"processing_guarantee": "exactly_once"}, {"stream_publish_on_commit": True}])
def test_applications_whose_acks_would_go_out_too_early(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(BadQuestion, match=next(iter(setting))):
        make_topic(tmp_path, app=make_app(**setting))
    make_topic(tmp_path, PUSH + "ack_policy: none\n", make_app(**setting))


def test_other_groups_are_fine_where_they_do_not_matter(tmp_path: Path) -> None:
    apart = PUSH.replace("deliver_group: app\n", "")
    assert make_topic(tmp_path, apart + "interest: always\n").topics == ["out"]
    assert make_topic(tmp_path, apart + "ack_policy: none\n").topics == ["out"]


def test_two_consumers_of_one_output_topic(tmp_path: Path) -> None:
    app = make_app()
    first, second = make_topic(tmp_path, app=app), make_topic(tmp_path, app=app, name="d")
    aiter(first)
    aiter(first)
    with pytest.raises(BadQuestion, match="c, d share the output topic out"):
        aiter(second)


def test_the_application_reads_committed_records(tmp_path: Path) -> None:
    app = make_app()
    make_topic(tmp_path, app=app)
    assert cast(Any, app.transport).Consumer is CommittedConsumer
    assert cast(Any, make_app().transport).Consumer is not CommittedConsumer


async def test_only_the_service_writes(tmp_path: Path) -> None:
    with pytest.raises(BadQuestion, match="only the overlay's service writes"):
        await make_topic(tmp_path).send(value=b"x")


def test_derived_topics_are_faust_s_own(tmp_path: Path) -> None:
    derived = make_topic(tmp_path).derive_topic(suffix="-by-carrier-repartition")
    assert derived.topics == ["out-by-carrier-repartition"]
    assert not isinstance(derived, AgentTopic)


async def test_records_of_an_output_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make_topic(tmp_path)
    monkeypatch.setattr(topic.link.acks, "open", lambda: None)
    answered: list[str] = []
    monkeypatch.setattr(topic.link.acks, "answer_flow", lambda flow: answered.append(flow.subject))
    record = make_record(("Nats-Subject", b"s.a"), ("Nats-Reply-To", TOKEN % b"c"))
    event = await topic.decode(record, propagate=True)
    assert (event.value.subject, event.value.content, event.key) == ("s.a", {}, None)
    assert event.value.metadata.sequence == 7
    # the copy of another agent gets the same message
    copy = cast(AgentTopic, topic.clone())
    assert (await copy.decode(record)).value is event.value
    status = ("Nats-Status", b"100"), ("Nats-Stream", b"S"), ("Nats-Consumer", b"c")
    for headers in ((), (("Nats-Reply-To", TOKEN % b"d"),), status, (*status, ("Nats-Reply-To", b"$JS.FC.x"))):
        with pytest.raises(ValueDecodeError):
            await topic.decode(make_record(*headers), propagate=True)
    await topic.on_value_decode_error(ValueDecodeError(), record)
    assert answered == ["$JS.FC.x"]


def test_the_example_is_sound() -> None:
    app = faust.App("late", broker="kafka://127.0.0.1:1", store="memory://", web_enabled=False)
    topic = agent_topic(app, find_example("faust"), "late-jfk")
    assert topic.topics == ["late-jfk"]
