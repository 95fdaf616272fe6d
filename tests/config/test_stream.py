"""What a stream's file may say, beyond what its types hold."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from overlay.config import StreamConfig


def test_a_timestamp_is_no_part_of_a_subject() -> None:
    with pytest.raises(ValidationError, match="Leave it out; it is a field for properties"):
        StreamConfig.model_validate({"name": "S", "topics": ("t",), "subject": {"template": "a.{timestamp}"}})
