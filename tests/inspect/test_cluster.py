"""What Kafka is asked about the topics of a config."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from overlay.errors import SourceUnavailable
from overlay.inspect.cluster import OFFSETS_TOPIC, ask_kafka
from overlay.inspect.needs import NewTopicPlan
from tests.support.kafka import NewTopicFixture


def test_a_stream_may_read_kafkas_own_topic(bootstrap: str, new_topic: NewTopicFixture) -> None:
    """It is asked about all the same, to learn whether groups are in use; the answer stays."""
    topic = new_topic()
    answers = ask_kafka({"bootstrap.servers": bootstrap}, [topic, OFFSETS_TOPIC], {}, ())
    assert answers.topics.keys() == {topic, OFFSETS_TOPIC}
    assert ask_kafka({"bootstrap.servers": bootstrap}, [topic], {}, ()).topics.keys() == {topic}


@pytest.mark.parametrize(
    ("code", "is_known"),
    [
        (KafkaError.INVALID_CONFIG, True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True),
        (KafkaError._TIMED_OUT, False),
        (KafkaError.REQUEST_TIMED_OUT, False),
        (KafkaError.NOT_CONTROLLER, False),
    ],
)
def test_a_creation_without_an_answer_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch, bootstrap: str, code: int, is_known: bool
) -> None:
    def create(self: AdminClient, topics: Sequence[NewTopic], **_: object) -> dict[str, Future[None]]:
        future = Future[None]()
        future.set_exception(KafkaException(KafkaError(code)))
        return {topic.topic: future for topic in topics}

    monkeypatch.setattr("overlay.inspect.cluster.AdminClient.create_topics", create)
    plans = {"absent": NewTopicPlan(1, 1, {})}
    if is_known:
        answers = ask_kafka({"bootstrap.servers": bootstrap}, ["absent"], plans, ())
        assert answers.topics["absent"].refusal
    else:
        with pytest.raises(SourceUnavailable, match="Try again"):
            ask_kafka({"bootstrap.servers": bootstrap}, ["absent"], plans, ())
