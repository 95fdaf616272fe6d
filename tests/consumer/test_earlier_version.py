"""State that the version before secret names wrote, and tokens of that version in the hands of readers.

The records are a checkpoint and two deltas. Their first owner delivered 1 to 5, of which 1 was acked. The second one was told
to deliver 2 again, and delivered 6 and 7. An owner has no name in records of versions without incarnations.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from overlay.consumer.acks import Flaw, Token, write_head, write_ranges
from overlay.consumer.effects import Refuse
from overlay.consumer.events import Ticked
from overlay.consumer.snapshot import decode
from tests.consumer.driver import START, Driver, configure
from tests.consumer.owners import AT_LEAST, EXACT, WAIT, list_pending, offer, restore, tell

RECORDS: dict[str, list[str]] = json.loads((Path(__file__).parent / "earlier_records.json").read_text())
NEXT = "9x1-sOKmJ0v1Qn6nEw3mJb0wVA"
PENDING = [2, 3, 4, 5, 6, 7]
DELIVERED = {"7x1": [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)], "7x2": [(2, 6), (6, 7), (7, 8)]}
"""Stream and consumer sequences by owner."""
KINDS: list[dict[str, Any]] = [
    {"delivery": EXACT},
    {"delivery": AT_LEAST},
    {"delivery": AT_LEAST, "ack_policy": "all"},
]
kinds = pytest.mark.parametrize("fields", KINDS, ids=lambda fields: "-".join(fields.values()))
names = pytest.mark.parametrize("name", ["", "7x1"], ids=["unnamed", "named"])


def go_on(name: str, **fields: Any) -> Driver:
    """Return a machine of this version that begins with the records."""
    return restore([base64.b64decode(record) for record in RECORDS[name]], NEXT, START, **fields)


@kinds
@names
def test_what_is_pending_stays_so_and_is_delivered_again_in_time(fields: dict[str, Any], name: str) -> None:
    driver = go_on(name, **fields)
    assert (list_pending(driver.machine), driver.sent()) == (PENDING, [])
    driver.now += 2 * WAIT
    driver.do(Ticked())
    assert sorted(sequence for sequence, *_ in driver.sent()) == PENDING


@names
def test_tokens_of_earlier_owners_settle_their_deliveries(name: str) -> None:
    driver = go_on(name)
    offer(driver, 8, 9)
    for owner, deliveries in DELIVERED.items():
        for sequence, consumer_seq in deliveries[1:]:
            tell(driver, Token("S", "c", 1, sequence, consumer_seq, incarnation=name and owner))
    assert list_pending(driver.machine) == [8, 9]


@names
def test_ranges_of_tokens_of_earlier_owners_settle_their_deliveries(name: str) -> None:
    driver = go_on(name)
    offer(driver, 8, 9)
    for owner in DELIVERED:
        tell(driver, write_head("S", "c", name and owner).encode(), write_ranges([(1, 20)], is_unnamed=not name))
    assert list_pending(driver.machine) == [8, 9]


@names
def test_a_next_by_a_token_of_an_earlier_owner_counts_until_the_message_is_settled(name: str) -> None:
    driver = Driver(
        configure(pull=True, ack_wait=WAIT),
        [decode(base64.b64decode(record)) for record in RECORDS[name]],
        incarnation=NEXT,
    )
    token = Token("S", "c", 1, 3, 3, incarnation=name)
    tell(driver, token, b"+NXT", "reader")
    assert list_pending(driver.machine) == [2, 4, 5, 6, 7]
    # what a push consumer has delivered is delivered again by a pull consumer
    assert [sequence for sequence, *_ in driver.sent()] == [2]
    assert Refuse(Flaw.INCARNATION) in tell(driver, token, b"+NXT", "reader")
    assert len(driver.sent()) == 1
