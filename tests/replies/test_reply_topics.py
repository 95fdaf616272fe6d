from __future__ import annotations

from overlay.kafka.admin import Admin
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.replies.reply_topics import ReplyTopics
from tests.support.kafka import NewTopicFixture


async def test_only_what_is_there_is_written_to(admin: Admin, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=2)
    reply_topics = ReplyTopics(admin)
    record = Record(b"k", b"v")
    there = [Entry(topic, record, 0), Entry(topic, record, 1)]
    nowhere = [Entry(topic, record, 2), Entry(f"{topic}-missing", record)]
    for _ in range(2):  # the second time from memory
        assert await reply_topics.sort([*there, *nowhere]) == (there, nowhere)
    assert await reply_topics.sort([]) == ([], [])
