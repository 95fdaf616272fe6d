"""Acks of a client that may write them and has read no delivery of the consumer: whatever it says, nothing changes.

Such a client knows everything else: names, sequences, the names that earlier versions gave to incarnations, the state topic.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.consumer.acks import Flaw, Token, Verb, write_head, write_ranges
from overlay.consumer.effects import Answer, Deliver, Effect, Refuse
from overlay.consumer.events import FlowAnswered, Pulled, Ticked
from overlay.consumer.lineage import hide
from overlay.consumer.pulls import PullRequest
from overlay.consumer.snapshot import decode
from overlay.consumer.window import Pair
from overlay.dispatch.ack_decoder import AckBatch
from overlay.dispatch.served_consumer import ConsumerSlot
from tests.consumer.driver import SECOND, START, Driver, configure, some
from tests.consumer.owners import AT_LEAST, EXACT, WAIT, list_pending, offer, restore, tell

OWN = "7x2-sOKmJ0v1Qn6nEw3mJb0wVA", "7x3-gqUoQXTtM4u2kqZ0J1cB5Q"
"""The incarnations of the consumer, one after the other."""
GUESSES = ("", "7x1", "7x2", "7x3", "_", "7x3-", "7x3-gqUoQXTtM4u2kqZ0J1cB5q", *map(hide, OWN))
"""Names that a stranger may try: those of earlier versions, the beginning of the true ones, what the state has of them."""
BODIES = (
    b"", b"+ACK", b"-NAK", b"-NAK 5s", b"+WPI", b"+TERM", b"+TERM why", b"+NXT", b"+NXT 3",
    b'+NXT {"batch": 2, "no_wait": true}',
)  # fmt: skip

numbers = st.integers(1, 12)
tokens = st.builds(
    lambda by, deliveries, stream, consumer: str(Token("S", "c", deliveries, stream, consumer, incarnation=by)),
    st.sampled_from(GUESSES), st.integers(1, 3), numbers, numbers,
)  # fmt: skip
ranges = st.lists(st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair))), min_size=1, max_size=3)
heads = st.sampled_from([write_head("S", "c", by) for by in GUESSES])
acks = st.one_of(
    st.tuples(tokens, st.sampled_from(BODIES)),
    st.tuples(heads, ranges.map(write_ranges)),
    st.tuples(heads, ranges.map(lambda each: write_ranges(each, is_unnamed=True))),
)


def deliver(**fields: Any) -> Driver:
    """Two owners deliver: 1 to 6 with committed and uncommitted deliveries, 1 to 3 again, and 7 to 9."""
    first = restore([], OWN[0], START, **fields)
    pull(first)
    offer(first, 1, 2, 3)
    records = [first.machine.take_checkpoint()]
    offer(first, 4, 5, 6)
    second = restore(records, OWN[1], first.now + 2 * WAIT, **fields)
    pull(second)
    second.do(Ticked())
    offer(second, 4, 5, 6, 7, 8, 9)
    assert second.machine.state.window.delivered == Pair(12, 9)
    return second


def pull(driver: Driver) -> None:
    """Have a pull consumer deliver everything that it is offered for a while."""
    if not driver.machine.state.config.is_push:
        driver.do(Pulled(PullRequest(batch=100, expires=3600 * SECOND), "reader"))


def read_state(driver: Driver) -> tuple[object, ...]:
    """All that the machine knows, but for what each call of `take_checkpoint` counts as written."""
    record, state = decode(driver.machine.take_checkpoint()), driver.machine.state
    rows = {name: column.tolist() for name, column in record.rows.items()}
    flow = state.pace.flow
    asked = None if flow is None else (flow.subject, flow.outstanding, flow.limit)
    return json.dumps(record.head, default=str), rows, len(state.waiting), state.active_at, state.acked_at, asked


KINDS = (
    {"ack_policy": "explicit", "delivery": EXACT},
    {"ack_policy": "explicit", "delivery": AT_LEAST},
    {"ack_policy": "all", "delivery": AT_LEAST},
    {"ack_policy": "explicit", "pull": True},
    {"ack_policy": "none", "pull": True, "ack_wait": 0},
)


@pytest.mark.parametrize("fields", KINDS, ids=lambda fields: "-".join(map(str, fields.values())))
@given(said=st.lists(st.tuples(acks, st.booleans()), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_what_a_stranger_says_changes_nothing(
    fields: dict[str, Any], said: list[tuple[tuple[str, bytes], bool]]
) -> None:
    driver = make(**fields)
    before, pending = read_state(driver), list_pending(driver.machine)
    for (token, body), wants_answer in said:
        effects = tell(driver, token.encode(), body, "stranger" if wants_answer else "")
        assert not [effect for effect in effects if not isinstance(effect, Refuse | Answer)]
        # an answer says that a message is settled, and is only given where that is so
        assert not (Answer("stranger") in effects and names_pending(token, pending))
    assert read_state(driver) == before


def make(**fields: Any) -> Driver:
    if fields["ack_policy"] == "none":
        driver = Driver(configure(**fields), incarnation=OWN[1])
        pull(driver)
        offer(driver, *range(1, 10))
        return driver
    return deliver(**fields)


def names_pending(token: str, pending: list[int]) -> bool:
    parts = token.split(".")
    return len(parts) > 6 and int(parts[-4]) in pending


@given(st.lists(st.tuples(st.sampled_from(GUESSES), numbers, numbers), min_size=1, max_size=8), st.sampled_from(Verb))
@settings(max_examples=60, deadline=None)
def test_a_stranger_s_acks_are_left_out_of_columns(said: list[tuple[str, int, int]], verb: Verb) -> None:
    for policy in ("explicit", "all"):
        slot = ConsumerSlot(deliver(ack_policy=policy, delivery=AT_LEAST).machine)
        names = (*dict.fromkeys(by for by, _, _ in said), "")
        by, sequences, consumer_seqs = zip(*said, strict=True)
        batch = AckBatch(
            verb, some(*sequences), some(*consumer_seqs), some(*[1] * len(said)),
            some(*(names.index(name) for name in by)), names=names,
        )  # fmt: skip
        kept, refused = slot.sift(batch)
        assert (kept.sequences.size, len(refused)) == (0, len(said))


def test_the_reader_of_a_delivery_settles_it() -> None:
    """The twin of what is refused: the same acks with the names of the incarnations count."""
    driver = deliver(ack_policy="explicit", delivery=EXACT)
    assert tell(driver, Token("S", "c", 1, 1, 1, incarnation=OWN[0])) == []
    assert tell(driver, write_head("S", "c", OWN[1]).encode(), write_ranges([(7, 12)])) == []
    assert list_pending(driver.machine) == [2, 3]


def deliver_by_earlier_version(incarnation: str, **fields: Any) -> Driver:
    """Deliver 1 to 4 as an earlier version does, of which 2 again, settle 1, and deliver 5 to 8 as this one does."""
    former = restore([], incarnation, START, **fields)
    offer(former, 1, 2, 3, 4)
    tell(former, Token("S", "c", 1, 1, 1, incarnation=incarnation))
    tell(former, Token("S", "c", 1, 2, 2, incarnation=incarnation), b"-NAK")
    assert former.sent()[-1] == (2, 5, 2)
    driver = restore([former.machine.take_checkpoint()], OWN[0], former.now, **fields)
    offer(driver, 5, 6, 7, 8)
    assert driver.sent() == [(5, 6, 1), (6, 7, 1), (7, 8, 1), (8, 9, 1)]
    return driver


@pytest.mark.parametrize("incarnation", ["", "7x1"])
@pytest.mark.parametrize("body", [b"+ACK", b"+TERM"])
@pytest.mark.parametrize("delivery", [EXACT, AT_LEAST])
def test_a_token_of_an_earlier_version_settles_its_own_delivery_alone(
    incarnation: str, body: bytes, delivery: str
) -> None:
    driver = deliver_by_earlier_version(incarnation, ack_policy="explicit", delivery=delivery)
    made = {(1, 1), (2, 2), (3, 3), (4, 4), (2, 5)}
    for sequence in range(1, 9):
        for consumer_seq in range(1, 12):
            if (sequence, consumer_seq) not in made:
                tell(driver, Token("S", "c", 1, sequence, consumer_seq, incarnation=incarnation), body)
    assert list_pending(driver.machine) == [2, 3, 4, 5, 6, 7, 8]
    for sequence, consumer_seq in sorted(made - {(1, 1), (2, 5)}):
        tell(driver, Token("S", "c", 1, sequence, consumer_seq, incarnation=incarnation), body)
    assert list_pending(driver.machine) == [5, 6, 7, 8]


@pytest.mark.parametrize("incarnation", ["", "7x1"])
def test_a_redelivery_of_an_earlier_version_can_be_acked(incarnation: str) -> None:
    driver = deliver_by_earlier_version(incarnation)
    assert tell(driver, Token("S", "c", 2, 2, 5, incarnation=incarnation)) == []
    assert list_pending(driver.machine) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("incarnation", ["", "7x1"])
def test_with_all_a_token_of_an_earlier_version_covers_what_that_delivered(incarnation: str) -> None:
    driver = deliver_by_earlier_version(incarnation, ack_policy="all")
    tell(driver, Token("S", "c", 1, 8, 4, incarnation=incarnation))
    tell(driver, Token("S", "c", 1, 5, 12, incarnation=incarnation))
    assert list_pending(driver.machine) == [2, 3, 4, 5, 6, 7, 8]
    tell(driver, Token("S", "c", 1, 4, 4, incarnation=incarnation))
    assert list_pending(driver.machine) == [5, 6, 7, 8]


@pytest.mark.parametrize("fields", KINDS[3:], ids=lambda fields: str(fields["ack_policy"]))
def test_the_reader_of_a_pulled_message_pulls_the_next(fields: dict[str, Any]) -> None:
    driver = Driver(configure(**fields), incarnation=OWN[0])
    driver.do(Pulled(PullRequest(1), "first"))
    offer(driver, 1, 2, 3)
    assert tell(driver, Token("S", "c", 1, 1, 1, incarnation=OWN[1]), b"+NXT", "second") == [Refuse(Flaw.INCARNATION)]
    told = tell(driver, Token("S", "c", 1, 1, 1, incarnation=OWN[0]), b"+NXT", "third")
    assert list_delivered(told) == [("third", [2])]


def list_delivered(effects: list[Effect]) -> list[tuple[str, list[int]]]:
    return [(each.reply, each.sequences.tolist()) for each in effects if isinstance(each, Deliver)]


@pytest.mark.parametrize("policy", ["none", "flow_control"])
def test_a_stranger_does_not_answer_flow_control(policy: str) -> None:
    fields: dict[str, Any] = {"flow_control": True, "idle_heartbeat": SECOND, "ack_wait": 0}
    driver = Driver(configure(ack_policy=policy, **fields), incarnation=OWN[0])
    driver.offer(2, size=2 << 20)
    flow = driver.machine.state.pace.flow
    assert flow is not None
    asked = flow.subject
    assert asked == f"$JS.FC._.{OWN[0]}.S.c.0000"
    for by in GUESSES:
        driver.do(FlowAnswered(f"$JS.FC._.{by}.S.c.0000", 1))
        driver.do(FlowAnswered("$JS.FC.S.c.0000", 1))
    assert flow.subject == asked
    driver.do(FlowAnswered(asked, 1))
    assert flow.subject != asked


def test_the_state_has_no_name_of_an_incarnation() -> None:
    driver = deliver(ack_policy="explicit")
    for record in (driver.machine.take_delta(), driver.machine.take_checkpoint()):
        assert not [name for name in OWN if name.encode() in record]
        assert hide(OWN[1]).encode() in record
