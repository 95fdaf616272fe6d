from __future__ import annotations

from typing import Any

import pytest

from overlay.consumer.start import Ends, find_start
from tests.consumer.driver import configure


@pytest.mark.parametrize(
    ("fields", "ends", "start"),
    [
        ({}, Ends(3, 9), 3),
        ({"deliver_policy": "new"}, Ends(3, 9), 10),
        ({"deliver_policy": "last"}, Ends(3, 9, last_match=7), 7),
        ({"deliver_policy": "last"}, Ends(3, 9), 10),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 1}, Ends(3, 9), 3),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 5}, Ends(3, 9), 5),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 50}, Ends(3, 9), 50),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2026-01-01T00:00:00Z"}, Ends(3, 9, at_time=6), 6),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2026-01-01T00:00:00Z"}, Ends(3, 9), 10),
        ({"deliver_policy": "last_per_subject", "filter_subject": ">"}, Ends(3, 9, per_subject=4), 4),
        ({"deliver_policy": "last_per_subject", "filter_subject": ">"}, Ends(3, 2), 3),
    ],
)
def test_starts(fields: dict[str, Any], ends: Ends, start: int) -> None:
    assert find_start(configure(**fields), ends) == start
