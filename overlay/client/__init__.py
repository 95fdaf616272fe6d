"""The overlay in a program of one's own: records of streams and topics as Arrow batches, without a service."""

from .columns import SCHEMA
from .door import Client, UnknownStream, open_client
from .question import BadQuestion, Question
from .reader import Progress
from .reading import AsyncReading, Reading

__all__ = [
    "SCHEMA",
    "AsyncReading",
    "BadQuestion",
    "Client",
    "Progress",
    "Question",
    "Reading",
    "UnknownStream",
    "open_client",
]
