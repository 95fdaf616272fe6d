"""Cycles of topics: the search for one consumer agrees with the one for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overlay.config import ConsumerConfig, StreamConfig, find_cycle
from overlay.config.cycle import find_cycles

TOPICS = st.sampled_from("abcdef")
NAMES = ("S", "T", "U")
WORLDS = st.tuples(
    st.lists(st.sets(TOPICS, min_size=1, max_size=2), min_size=3, max_size=3),
    st.lists(st.tuples(st.sampled_from(NAMES), TOPICS, st.none() | TOPICS), min_size=1, max_size=6),
)


def make_stream(name: str, topics: set[str]) -> StreamConfig:
    return StreamConfig.model_validate({"name": name, "topics": tuple(sorted(topics)), "subjects": (f"{name}.>",)})


def make_consumer(name: str, stream: str, output: str, dead_letter: str | None) -> ConsumerConfig:
    fields = {"stream": stream, "durable_name": name, "deliver_subject": output, "dead_letter": dead_letter}
    return ConsumerConfig.model_validate(fields)


@given(WORLDS)
def test_one_consumer_is_judged_as_among_all(
    world: tuple[list[set[str]], list[tuple[str, str, str | None]]],
) -> None:
    sources, outputs = world
    streams = {name: make_stream(name, topics) for name, topics in zip(NAMES, sources, strict=True)}
    made = [make_consumer(f"c{number}", *each) for number, each in enumerate(outputs)]
    consumers = {config.id: config for config in made}
    cycles = find_cycles(streams, consumers)
    for config in made:
        others = {id: other for id, other in consumers.items() if id != config.id}
        assert find_cycle(streams, others, config) == cycles.get(config.id, ())
        # one that is there already under its name changes nothing
        assert find_cycle(streams, consumers, config) == cycles.get(config.id, ())


def test_a_way_back_through_another_stream_is_found() -> None:
    streams = {"S": make_stream("S", {"a"}), "T": make_stream("T", {"b"})}
    back = make_consumer("back", "T", "a", None)
    assert find_cycle(streams, {back.id: back}, make_consumer("c", "S", "b", None)) == ("b", "T/back", "a")
    assert find_cycle(streams, {}, make_consumer("c", "S", "b", None)) == ()
