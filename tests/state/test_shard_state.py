"""What a shard remembers: written, read back, merged, and begun anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta, ShardState, StateUnreadable, decode, encode
from tests.support.large_numbers import enlarge

NAMES = st.sampled_from(["A", "B"])
SOURCES: st.SearchStrategy[TopicPartition] = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 1))
OFFSETS = st.integers(0, 1 << 62)
MARKS = st.builds(LogPosition, OFFSETS, st.integers(-1, 9), st.integers(-1, (1 << 32) - 1))
CONSUMERS = st.builds(
    ConsumerState,
    OFFSETS,
    st.dictionaries(SOURCES, MARKS, max_size=3),
    st.dictionaries(SOURCES, OFFSETS, max_size=2),
    st.dictionaries(SOURCES, OFFSETS, max_size=2),
    st.dictionaries(SOURCES, OFFSETS, max_size=2),
    st.none() | OFFSETS,
    *[st.sampled_from(["", "one", "two"])] * 3,
)
IDS: st.SearchStrategy[ConsumerId] = st.tuples(NAMES, st.sampled_from(["c", "d"]))
DELTAS = st.builds(
    Delta,
    st.dictionaries(st.tuples(NAMES, SOURCES), MARKS, max_size=3),
    st.dictionaries(IDS, CONSUMERS, max_size=3),
    st.dictionaries(st.tuples(NAMES, st.sampled_from(["t", "u"])), st.sampled_from(["id1", "id2"]), max_size=2),
    st.lists(IDS, max_size=2, unique=True).map(tuple),
    st.none() | st.integers(0, 5),
    st.sampled_from([(), ("A",), ("A", "B")]),
    st.dictionaries(st.tuples(NAMES, SOURCES), MARKS, max_size=2),
    st.dictionaries(NAMES, OFFSETS, max_size=2),
)


def replay(deltas: list[Delta]) -> ShardState:
    state = ShardState()
    for delta in deltas:
        state.apply(delta)
    return state


@given(DELTAS)
def test_a_delta_is_read_as_it_was_written(delta: Delta) -> None:
    assert decode(encode(delta)) == (delta, False, None, False)


def test_a_consumer_of_the_service_is_written_as_before_there_were_jobs() -> None:
    written = encode(Delta(consumers={("S", "c"): ConsumerState(3)}))
    assert written == b'{"v":1,"kind":"delta","consumers":[["S","c",{"seq":3}]]}'


def test_positions_in_ack_topics_may_lack_their_epochs() -> None:
    """Earlier versions wrote offsets alone."""
    delta, *_ = decode(b'{"v":1,"kind":"delta","acks":[["S","overlay.S.acks",0,7]]}')
    assert delta == Delta(acks={("S", ("overlay.S.acks", 0)): LogPosition(7)})


@given(st.lists(DELTAS, max_size=4))
def test_a_checkpoint_says_all_that_the_deltas_said(deltas: list[Delta]) -> None:
    state = replay(deltas)
    found, is_checkpoint, *_ = decode(encode(state.checkpoint(), checkpoint=True))
    assert is_checkpoint
    assert replay([found]) == state


@given(st.lists(DELTAS, max_size=3), DELTAS, DELTAS)
def test_two_deltas_as_one(before: list[Delta], one: Delta, two: Delta) -> None:
    assert replay([*before, one.merge(two)]) == replay([*before, one, two])


def test_a_reset_drops_what_was_known_of_the_stream_and_nothing_else() -> None:
    source = ("t", 0)
    state = ShardState(
        {("A", source): LogPosition(5), ("B", source): LogPosition(6)},
        {("A", "c"): ConsumerState(3), ("B", "c"): ConsumerState(4)},
        {("A", "t"): "id1", ("B", "t"): "id1"},
        acks={("A", source): LogPosition(7, 3), ("B", source): LogPosition(8)},
    )
    anew = ConsumerState(3, {source: LogPosition(0)})
    state.apply(Delta(consumers={("A", "c"): anew}, topics={("A", "t"): "id2"}, reset=("A",)))
    assert state.cursors == {("B", source): LogPosition(6)}
    assert state.topics == {("A", "t"): "id2", ("B", "t"): "id1"}
    assert state.acks == {("B", source): LogPosition(8)}
    assert state.consumers == {("A", "c"): anew, ("B", "c"): ConsumerState(4)}
    assert Delta(reset=("A",)) and not Delta()


def test_a_forgotten_consumer() -> None:
    state = ShardState(consumers={("A", "c"): ConsumerState(3)})
    state.apply(Delta(forgotten=(("A", "c"), ("A", "d"))))
    assert state.consumers == {}


def test_a_consumer_that_is_forgotten_and_begins_anew_at_once() -> None:
    """In either order, merged to one delta: the later counts."""
    consumer = ("A", "c")
    forgotten, anew = Delta(forgotten=(consumer,)), Delta(consumers={consumer: ConsumerState(1)})
    for deltas, left in (((forgotten, anew), {consumer: ConsumerState(1)}), ((anew, forgotten), {})):
        state = ShardState(consumers={consumer: ConsumerState(9, {("t", 0): LogPosition(5)})})
        state.apply(decode(encode(deltas[0].merge(deltas[1])))[0])
        assert state.consumers == left


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"v":1}', b'{"v":1,"kind":"delta","cursors":[["A"]]}'])
def test_a_record_that_is_not_ours(value: bytes) -> None:
    with pytest.raises(StateUnreadable, match="not ours"):
        decode(value)


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(StateUnreadable, match="version 2; this overlay reads version 1"):
        decode(b'{"v":2,"kind":"delta"}')


@given(DELTAS)
def test_a_number_of_more_than_64_bits_is_refused(delta: Delta) -> None:
    """In an array, or in a request to Kafka, it would end the session by an error that tells nothing."""
    for record in enlarge(encode(delta, after=3)):
        with pytest.raises(StateUnreadable):
            decode(record)


def test_a_floor_of_a_sequence_without_a_sign_is_read() -> None:
    """A consumer may begin at any of JetStream's sequences, and earlier versions wrote what its file says."""
    delta, *_ = decode(
        b'{"v":1,"kind":"delta","consumers":[["S","c",{"seq":0,"floor":[["t",0,18446744073709551614]]}]]}'
    )
    assert delta.consumers["S", "c"].floor == {("t", 0): (1 << 63) - 1}
