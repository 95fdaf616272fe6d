"""Ack tokens as users give them."""

from __future__ import annotations

from overlay.consumer.acks import Token, parse_token
from overlay.errors import OverlayError
from overlay.kafka.header_names import TOKEN


class BadAckToken(OverlayError, ValueError):
    """A text that is not an ack token. The caller acts."""


def find_token(text: str) -> Token:
    """Return the contents of the ack token `text`. Raises BadAckToken, with advice, for any other text."""
    found = parse_token(text)
    if found is None and parse_token(f"$JS{text}"):
        raise BadAckToken(
            f"{text!r} is a token without its $JS, which a shell takes for a variable. Put it in single quotes"
        )
    if found is None:
        raise BadAckToken(
            f"{text!r} is no ack token. Tokens look like $JS.ACK._.1x1.STREAM.CONSUMER.1.17.17.0.0; a delivery has its own in"
            f" the header {TOKEN}"
        )
    return found
