"""Subjects, filters and per-message acks on the Kafka you already have.

client = overlay.open("config-folder")
for batch in client.read("FLIGHTS", subjects=["flights.JFK.>"], sql="dep_delay > 60"): ...   # pyarrow RecordBatches
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import open_client as open

__version__ = "0.1.0"
__all__ = ["__version__", "open"]


def __getattr__(name: str) -> Any:
    # imported on demand: the command imports this package before it knows what it will do
    if name == "open":
        from .client import open_client

        return open_client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
