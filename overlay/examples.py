"""Example configs: beside the package in a source tree, inside it if installed from a wheel."""

from __future__ import annotations

from pathlib import Path

from .errors import OverlayError

_PACKAGE = Path(__file__).resolve().parent
PLACES = (_PACKAGE / "_examples", _PACKAGE.parent / "examples")
"""Folders in which examples are searched, in this order."""


class ExampleMissing(OverlayError):
    """An example that was asked for is in none of the folders PLACES. The user has to install the
    package again, if the name is right.
    """


def find_example(name: str) -> Path:
    """Return the config folder of the example with this name, such as `flights`. Raises
    ExampleMissing if there is none.
    """
    for place in PLACES:
        if (place / name / "overlay.yaml").is_file():
            return place / name
    looked = " nor in ".join(str(place / name) for place in PLACES)
    raise ExampleMissing(f"example {name!r} is not in {looked}. Install kafka-overlay again, or use its source tree")
