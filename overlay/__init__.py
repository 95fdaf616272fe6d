"""Subjects, filters and per-message acks on the Kafka you already have.

client = overlay.open("config-folder")
for batch in client.read("FLIGHTS", subjects=["flights.JFK.>"], sql="dep_delay > 60"): ...   # pyarrow RecordBatches
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import open_client as open

__version__ = "0.1.0"
__all__ = ["__version__", "load_ipython_extension", "open"]


def __getattr__(name: str) -> Any:
    # imported on demand: the command imports this package before it knows what it will do
    if name == "open":
        from .client import open_client

        return open_client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Show record batches and tables of pyarrow in this notebook with their first rows. IPython calls
    this for `%load_ext overlay`.
    """
    from .client.read.cells import write_records

    formatter = shell.display_formatter.formatters["text/html"]
    for name in ("RecordBatch", "Table"):
        formatter.for_type_by_name("pyarrow.lib", name, write_records)
