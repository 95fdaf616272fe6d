"""What Kafka is asked about the topics of a config."""

from __future__ import annotations

from overlay.inspect.cluster import OFFSETS_TOPIC, ask_kafka
from tests.support.kafka import NewTopicFixture


def test_a_stream_may_read_kafkas_own_topic(bootstrap: str, new_topic: NewTopicFixture) -> None:
    """It is asked about all the same, to learn whether groups are in use; the answer stays."""
    topic = new_topic()
    answers = ask_kafka({"bootstrap.servers": bootstrap}, [topic, OFFSETS_TOPIC], {}, ())
    assert answers.topics.keys() == {topic, OFFSETS_TOPIC}
    assert ask_kafka({"bootstrap.servers": bootstrap}, [topic], {}, ()).topics.keys() == {topic}
