"""Names that operators put into ACLs, and that services, clients and Spark jobs have to agree on."""

from __future__ import annotations

from overlay.consumer import acks
from overlay.fleet import status
from overlay.kafka.own_topics import (
    ACKS_CONFIG,
    CONTROL_CONFIG,
    EVENTS_CONFIG,
    FLEET_CONFIG,
    MESSAGE_BYTES,
    REPLY_CONFIG,
    acks_topic,
    control_topic,
    events_topic,
    fleet_app,
    fleet_topic,
    index_topic,
    journal_id,
    lease_group,
    list_shared_topics,
    ordered_topic,
    replay_group,
    reply_topic,
    shard_id,
    shard_of,
    state_topic,
    workers_group,
)
from overlay.output.batch_builder import MAX_MESSAGE_BYTES


def test_names_of_topics() -> None:
    assert state_topic("p") == "p.state"
    assert [control_topic("p"), reply_topic("p"), events_topic("p")] == ["p.control", "p.replies", "p.events"]
    assert list(list_shared_topics("p")) == ["p.control", "p.replies", "p.events"]
    assert list(list_shared_topics("p", requests=True)) == ["p.control", "p.replies", "p.events", "p.requests"]
    assert fleet_topic("p") == fleet_app("p") == "p.fleet"
    assert ordered_topic("p", "ordered-1") == "p-ordered-1"
    assert (index_topic("p", "S"), acks_topic("p", "S")) == ("p.S.index", "p.S.acks")


def test_topics_that_others_write_to_take_what_is_read_and_not_much_more() -> None:
    """Whatever the broker's default is: a batch of 100 MB is not accepted, and the largest ack is."""
    for config in (ACKS_CONFIG, CONTROL_CONFIG, EVENTS_CONFIG, FLEET_CONFIG, REPLY_CONFIG):
        assert config["max.message.bytes"] == str(MESSAGE_BYTES)
    assert MESSAGE_BYTES == MAX_MESSAGE_BYTES, "what an answer is made for"
    assert 2 * max(acks.MAX_BODY, status.MOST_BYTES) <= MESSAGE_BYTES


def test_names_of_groups_and_transactional_ids() -> None:
    assert (workers_group("p"), lease_group("p", ("S", "c"))) == ("p.workers", "p.spark.S.c")
    assert replay_group("p", ("S", "c")) == "p.replay.S.c"
    assert (shard_id("p", 3), journal_id("p", 3)) == ("p.shard.3", "p.control.3")


def test_consumers_are_spread_over_all_shards() -> None:
    found = {shard_of(("S", f"c{number}"), 4) for number in range(100)}
    assert found == {0, 1, 2, 3}
    assert shard_of(("S", "c"), 1) == 0


def test_a_consumer_keeps_its_shard_from_release_to_release() -> None:
    assert [shard_of(("S", "c"), 7), shard_of(("S",), 7)] == [4, 6]
