"""What the tokens of deliveries promise: sequences that are unique and in order, of a consumer without a hole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from overlay.consumer.acks import Token, parse_token

from .reading import Found

TOKEN = "Nats-Reply-To"


def read_token(record: Found) -> Token:
    """Return the token of a delivery. Raises AssertionError if it has none."""
    token = parse_token((record.header(TOKEN) or b"").decode())
    assert token is not None, f"{record.value!r} has no token: {record.headers}"
    return token


def check_tokens(outputs: Iterable[Sequence[Found]]) -> None:
    """Check the deliveries of consumers of one stream that are given all of it exactly once. Raises AssertionError.

    A record has one stream sequence, whoever is given it, and no other record has that. A consumer's sequences begin at 1, and
    those of the stream rise with them.
    """
    given: dict[bytes | None, int] = {}
    for records in outputs:
        tokens = {record.value: read_token(record) for record in records}
        for value, token in tokens.items():
            known = given.setdefault(value, token.stream_seq)
            assert known == token.stream_seq, (
                f"{value!r} is {token.stream_seq} for {token.consumer}, {known} for another"
            )
        ordered = sorted(tokens.values(), key=lambda token: token.consumer_seq)
        for number, token in enumerate(ordered, 1):
            assert token.consumer_seq == number, f"{token.consumer}: {token.consumer_seq} in place of {number}"
        for before, after in pairwise(ordered):
            assert before.stream_seq < after.stream_seq, f"{after} comes behind {before}"
    assert len(set(given.values())) == len(given), "two records have one stream sequence"
