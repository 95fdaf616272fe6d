"""Messages that the output can never take, at the dispatcher: given up with an advisory and a letter, and no other message
is touched."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from overlay.config.consumer import OnUndeliverable
from overlay.consumer.endings import UNDELIVERABLE
from overlay.consumer.events import Pulled
from overlay.consumer.pulls import PullRequest
from overlay.dispatch import effect_encoder
from overlay.dispatch.record_cache import RecordCache
from overlay.kafka.header_names import DELIVERIES, FIRST_DELIVERED, REASON
from overlay.output.batch_builder import OutputBatch
from tests.consumer.driver import SECOND
from tests.dispatch import scenes
from tests.dispatch.scenes import Office
from tests.oracle.push import TOKEN, parse_token
from tests.output.pressing import decode

LIMIT = 4_000


@pytest.fixture(autouse=True)
def graves(monkeypatch: pytest.MonkeyPatch) -> None:
    output_topic = scenes.letters_output_topic()
    monkeypatch.setattr(scenes, "letters_output_topic", lambda: replace(output_topic, topic="graves"))


def make_office(count: int, large: Iterable[int], **fields: Any) -> Office:
    """Records of which some, by stream sequence, are larger than the output takes."""
    fields = {"ack_wait": SECOND, "dead_letter": "graves", "on_undeliverable": OnUndeliverable.DEAD_LETTER, **fields}
    office = Office(count, **fields)
    for sequence in large:
        office.log[sequence - 1] = replace(office.log[sequence - 1], value=np.random.default_rng(1).bytes(LIMIT))
    shrink(office, LIMIT)
    return office


def shrink(office: Office, limit: int) -> None:
    """The output takes no more than so many bytes from now on."""
    office.output_topic = office.slot.output_topic = replace(office.output_topic, max_message_bytes=limit)


def sent(office: Office) -> list[int]:
    """Stream sequences as they were delivered, consumer sequences without a hole."""
    assert [token.consumer_sequence for token in office.sent] == list(range(1, len(office.sent) + 1))
    return [token.sequence for token in office.sent]


def letters(office: Office) -> list[tuple[int, str, str]]:
    """Stream sequence, reason and deliveries of each."""
    found = []
    for work in office.works:
        for _, outgoing in work.batches:
            for record in decode(outgoing).records if outgoing.topic == "graves" else ():
                headers = dict(record.headers)
                reason, deliveries = ((headers[name.encode()] or b"").decode() for name in (REASON, DELIVERIES))
                found.append((parse_token(headers[TOKEN] or b"").sequence, reason, deliveries))
    return found


def advisories(office: Office) -> list[tuple[int, int, int, str]]:
    """Stream and consumer sequence, deliveries and reason of what was terminated."""
    found = []
    for work in office.works:
        for _, outgoing in work.batches:
            for record in decode(outgoing).records if outgoing.topic == "p.events" else ():
                body = json.loads(record.value or b"")
                assert body["type"].endswith("advisory.v1.terminated")
                found.append(tuple(body[name] for name in ("stream_seq", "consumer_seq", "deliveries", "reason")))
    return found


@pytest.mark.parametrize("policy", ["explicit", "all"])
def test_they_are_given_up_before_they_take_a_sequence(policy: str) -> None:
    office = make_office(8, (1, 4, 5, 8), ack_policy=policy)
    office.offer()
    assert sent(office) == [2, 3, 6, 7]
    assert letters(office) == [(n, UNDELIVERABLE, "0") for n in (1, 4, 5, 8)]
    assert advisories(office) == [(n, 0, 0, UNDELIVERABLE) for n in (1, 4, 5, 8)]
    assert sum(work.dead_letters.total() for work in office.works) == 4
    # they settle no other message, whatever the policy
    assert office.slot.machine.state.window.pending.count == 4
    assert office.slot.machine.state.position == 8
    office.ack(2, 3, 6, 7)
    assert office.slot.machine.state.window.pending.count == 0
    # and do not come back
    office.sit(office.records)
    office.offer()
    office.settle()
    assert len(office.sent) == len(letters(office)) == 4


def test_only_those_whose_turn_it_is_are_given_up() -> None:
    office = make_office(6, (2, 5), max_ack_pending=2)
    office.offer()
    office.settle()
    assert (sent(office), [n for n, *_ in letters(office)]) == ([1, 3], [2])
    assert office.hold == 4
    office.ack(1, 3)
    assert (sent(office), [n for n, *_ in letters(office)]) == ([1, 3, 4, 6], [2, 5])


def test_what_the_output_took_and_takes_no_more() -> None:
    """Pending messages keep their history; those that still fit go again."""
    office = make_office(4, (1, 3))
    shrink(office, 1 << 20)
    office.offer()
    assert sent(office) == [1, 2, 3, 4]
    shrink(office, LIMIT)
    office.pass_time(2 * SECOND)
    assert sent(office)[4:] == [2, 4]
    assert letters(office) == [(1, UNDELIVERABLE, "1"), (3, UNDELIVERABLE, "1")]
    assert advisories(office) == [(1, 1, 1, UNDELIVERABLE), (3, 3, 1, UNDELIVERABLE)]
    assert office.slot.machine.state.window.pending.count == 2
    headers = dict(
        decode(next(o for w in office.works for _, o in w.batches if o.topic == "graves")).records[0].headers
    )
    assert not (headers[FIRST_DELIVERED.encode()] or b"").startswith(b"0001")


def test_what_is_not_at_hand_is_read_again_first() -> None:
    office = make_office(40, (5, 35), record_cache=RecordCache(1, 0), max_ack_pending=10)
    office.offer(1, 20)
    office.offer(21, 40)
    done = 0
    while done < 38:
        office.settle()
        fresh = [token.sequence for token in office.sent[done:]]
        assert fresh
        done += len(fresh)
        office.ack(*fresh)
    assert sent(office) == [n for n in range(1, 41) if n not in (5, 35)]
    assert [n for n, *_ in letters(office)] == [5, 35]
    assert office.recalled


def test_without_the_policy_the_batch_is_marked_and_the_message_kept() -> None:
    office = make_office(3, (2,), on_undeliverable=OnUndeliverable.STOP)
    office.offer()
    marked = [out.oversized_offset for work in office.works for _, out in work.batches if out.oversized_offset >= 0]
    assert (marked, letters(office)) == ([1], [])


def test_a_pull_that_no_reply_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effect_encoder, "MAX_MESSAGE_BYTES", LIMIT + effect_encoder.REPLY_ROOM)
    office = make_office(3, (2,), deliver_subject="")
    office.slot.output_topic = office.output_topic = None  # type: ignore[assignment]
    office.sit(())
    office.offer()
    work = office.step(said=[Pulled(PullRequest(batch=3), "inbox/0/1")])
    office.settle()
    replies = [
        r
        for w in (work, *office.works)
        for _, out in w.answers
        if isinstance(out, OutputBatch)
        for r in decode(out).records
    ]
    assert {parse_token(dict(r.headers)[TOKEN] or b"").sequence for r in replies if TOKEN in dict(r.headers)} == {1, 3}
    assert letters(office) == [(2, UNDELIVERABLE, "0")]


def test_pulls_to_a_full_topic_are_held_back_and_acks_are_not() -> None:
    """The messages wait for room, and go out in the step after there is some."""
    office = make_office(3, (), deliver_subject="")
    office.slot.output_topic = office.output_topic = None  # type: ignore[assignment]
    office.sit(())
    office.offer()
    office.dispatcher.hold_back(frozenset(("full",)))
    first = office.step(said=[Pulled(PullRequest(batch=2), "full/0/1"), Pulled(PullRequest(batch=1), "good/0/1")])
    office.settle()
    assert {answer.topic for work in (first, *office.works) for _, answer in work.answers} == {"good"}
    office.ack(1)
    assert office.slot.machine.state.window.floor.stream == 1
    assert not any(answer.topic == "full" for work in office.works for _, answer in work.answers)
    office.dispatcher.hold_back(frozenset())
    assert office.dispatcher.next_at == 0
    office.settle()
    answers = [answer for work in office.works for _, answer in work.answers if answer.topic == "full"]
    assert sum(answer.batch.count for answer in answers if isinstance(answer, OutputBatch)) == 2
