"""The only module that draws at random for the service, so that a simulation can seed every choice
(tests/sim).
"""

from __future__ import annotations

import base64
import os
import random
import uuid
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def choose(candidates: Sequence[T]) -> T:
    """Return one of the candidates. Raises IndexError if there is none."""
    return random.choice(candidates)


def shuffle(items: Sequence[T]) -> list[T]:
    """Return a new list of the items in random order."""
    return random.sample(items, len(items))


def draw_id() -> str:
    """Return a new random id: a text of 32 hexadecimal digits."""
    return uuid.uuid4().hex


def draw_secret() -> str:
    """Return a new text that no client can guess: 128 random bits of the operating system, as 22
    letters, digits, dashes and underscores.
    """
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
