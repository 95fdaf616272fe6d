"""How far dead letters have been replayed never goes back."""

from __future__ import annotations

import uuid

from overlay.client.subscribe.replay import Replay
from overlay.kafka.header_names import DEAD_CONSUMER, DEAD_STREAM
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.worker.scenes import read_committed

LETTERS = 3


def test_a_replay_from_the_start_sets_nothing_back(bootstrap: str, new_topic: NewTopicFixture) -> None:
    letters, target = new_topic(), new_topic()
    producer = SureProducer(bootstrap)
    for number in range(LETTERS):
        headers = [(DEAD_STREAM, b"S"), (DEAD_CONSUMER, b"c")]
        producer.produce(letters, str(number).encode(), headers=headers, partition=0)
    assert producer.flush(30) == 0
    prefix = f"o-{uuid.uuid4().hex[:8]}"

    def replay(*, limit: int | None = None, again: bool = False) -> list[bytes | None]:
        with Replay({"bootstrap.servers": bootstrap}, prefix, ("S", "c"), letters) as replaying:
            found = replaying.read(limit=limit, again=again)
            replaying.send(found, target)
            return [letter.record.value() for letter in found]

    assert replay() == [b"0", b"1", b"2"]
    assert replay(again=True, limit=1) == [b"0"]
    assert replay() == []
    assert [seen.value for seen in read_committed(bootstrap, target)] == [b"0", b"1", b"2", b"0"]
