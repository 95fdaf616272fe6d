from __future__ import annotations

from typing import get_args

import pytest

from overlay.consumer.events import Event
from overlay.consumer.machine import _HANDLERS
from overlay.consumer.table import TRANSITIONS, Phase


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.GONE])
def test_every_phase_knows_every_event(phase: Phase) -> None:
    assert set(TRANSITIONS[phase]) == set(get_args(Event)) == set(_HANDLERS)


def test_nothing_comes_after_the_end() -> None:
    assert TRANSITIONS[Phase.GONE] == {}
    assert set(TRANSITIONS) == set(Phase)
