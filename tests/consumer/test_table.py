from __future__ import annotations

from typing import get_args

import pytest

from overlay.consumer.events import Event
from overlay.consumer.machine import _HANDLERS
from overlay.consumer.table import TRANSITIONS, State


@pytest.mark.parametrize("state", [state for state in State if state is not State.GONE])
def test_every_state_knows_every_event(state: State) -> None:
    assert set(TRANSITIONS[state]) == set(get_args(Event)) == set(_HANDLERS)


def test_nothing_comes_after_the_end() -> None:
    assert TRANSITIONS[State.GONE] == {}
    assert set(TRANSITIONS) == set(State)
