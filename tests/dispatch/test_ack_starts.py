"""Where a session begins to read ack topics, and what it remembers for consumers that are not served."""

from __future__ import annotations

from overlay.dispatch.ack_offsets import AckOffsets
from overlay.dispatch.ack_starts import find_shared, settle
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.state.shard_state import ConsumerId, ConsumerState, ShardState

TOPIC = "overlay.S.acks"
FIRST, SECOND = (TOPIC, 0), (TOPIC, 1)
AWAY, HERE = ("S", "away"), ("S", "here")
ENDS = {FIRST: 50, SECOND: 60}


def make_state(heard: dict[TopicPartition, int] | None = None) -> ShardState:
    """A shard with two consumers that have machines, of which one may have heard less."""
    return ShardState(
        consumers={AWAY: ConsumerState(3, heard=heard or {}), HERE: ConsumerState(4)},
        topics={("S", TOPIC): "id"},
        acks={("S", FIRST): LogPosition(10)},
        machines={AWAY: [b"1"], HERE: [b"2"]},
    )


def begin(
    state: ShardState, served: set[ConsumerId], sources: tuple[TopicPartition, ...] = (FIRST,), identity: str = "id"
) -> dict[TopicPartition, AckOffsets]:
    """Begin a session, with the state taking note of it."""
    shared = find_shared(state, "S", sources, identity, ENDS)
    since, delta = settle(state, "S", shared, identity, served)
    state.apply(delta)
    return since


def test_a_shard_that_has_never_read_a_topic_begins_at_its_end() -> None:
    state = ShardState()
    assert begin(state, set(), (FIRST, SECOND)) == {FIRST: AckOffsets(50), SECOND: AckOffsets(60)}
    assert state.acks == {("S", FIRST): LogPosition(50), ("S", SECOND): LogPosition(60)}


def test_consumers_that_are_all_served_share_one_position() -> None:
    state = make_state()
    assert begin(state, {AWAY, HERE}) == {FIRST: AckOffsets(10)}
    assert not state.consumers[AWAY].heard


def test_a_consumer_that_is_away_keeps_its_position() -> None:
    state = make_state()
    assert begin(state, {HERE}) == {FIRST: AckOffsets(10)}
    state.acks["S", FIRST] = LogPosition(20)
    assert begin(state, {HERE}) == {FIRST: AckOffsets(20)}
    assert state.consumers[AWAY].heard == {FIRST: 10}
    assert begin(state, {AWAY, HERE}) == {FIRST: AckOffsets(20, {"away": 10})}
    assert state.consumers[AWAY].heard == {FIRST: 10}, "until it has heard what the others have"


def test_a_consumer_that_comes_back_where_the_others_stand_shares_their_position() -> None:
    state = make_state(heard={FIRST: 10})
    assert begin(state, {AWAY, HERE}) == {FIRST: AckOffsets(10)}
    assert not state.consumers[AWAY].heard


def test_a_consumer_without_deliveries_has_no_acks_to_come() -> None:
    state = make_state()
    del state.machines[AWAY]
    begin(state, {HERE})
    assert not state.consumers[AWAY].heard


def test_a_partition_that_was_added_is_read_from_its_start() -> None:
    state = make_state()
    assert begin(state, {HERE}, (FIRST, SECOND)) == {FIRST: AckOffsets(10), SECOND: AckOffsets(0)}
    assert state.consumers[AWAY].heard == {FIRST: 10, SECOND: 0}


def test_a_topic_that_was_created_again_is_read_from_its_start() -> None:
    state = make_state(heard={FIRST: 5})
    assert begin(state, {HERE}, identity="other") == {FIRST: AckOffsets(0)}
    assert state.consumers[AWAY].heard == {FIRST: 0}
    state.acks["S", FIRST] = LogPosition(20)
    assert begin(state, {AWAY, HERE}, identity="other") == {FIRST: AckOffsets(20, {"away": 0})}


def test_a_state_of_an_earlier_version_knows_no_id() -> None:
    state = make_state()
    state.topics.clear()
    assert begin(state, {HERE}) == {FIRST: AckOffsets(10)}
    assert state.topics == {("S", TOPIC): "id"}


def test_other_streams_are_left_alone() -> None:
    state = make_state()
    other = ("T", "away")
    state.consumers[other], state.machines[other] = ConsumerState(1), [b"3"]
    begin(state, {HERE})
    assert not state.consumers[other].heard


def test_a_consumer_of_another_stream_keeps_its_position() -> None:
    other = ("T", "away")
    state = make_state()
    state.consumers[other] = ConsumerState(3, heard={("overlay.T.acks", 0): 7})
    state.machines[other] = [b"3"]
    begin(state, {AWAY, HERE, other})
    assert state.consumers[other].heard == {("overlay.T.acks", 0): 7}
