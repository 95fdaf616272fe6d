from __future__ import annotations

from pathlib import Path

import pytest

from overlay.errors import BrokerError
from overlay.local import Condition, status, stop
from overlay.local.node import ALONE, BrokerNode
from overlay.local.state import BrokerState, Home, read_state, write_state


def test_state_survives_the_file(tmp_path: Path) -> None:
    node = BrokerNode(2, (9002, 9004), "cluster", 256)
    state = BrokerState(9001, 9004, pid=7, listeners={"SSL": "127.0.0.1:9003"}, properties={"a": "b"}, node=node)
    write_state(Home(tmp_path), state)
    assert read_state(Home(tmp_path)) == state


def test_state_of_an_earlier_version_is_of_a_broker_alone(tmp_path: Path) -> None:
    Home(tmp_path).state.write_text('{"port": 1, "controller_port": 2}')
    assert read_state(Home(tmp_path)) == BrokerState(1, 2, node=ALONE)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"port": 1, "controller_port": 2, "node": 7}', "{}", '{"port": 1, "controller_port": 2, "colour": 3}'],
)
def test_state_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str) -> None:
    Home(tmp_path).state.write_text(text)
    with pytest.raises(BrokerError, match=r"state\.json.*Delete it"):
        read_state(Home(tmp_path))


def test_folder_without_broker(tmp_path: Path) -> None:
    assert status(tmp_path / "none").condition is Condition.ABSENT
    assert stop(tmp_path / "none") is False
