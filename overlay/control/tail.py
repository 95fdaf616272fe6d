"""Reading the control topic into a book: all of it, and then what comes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.structs import TopicPartition

from overlay.admin import Admin
from overlay.config import Loaded
from overlay.connection import Properties, for_aiokafka
from overlay.errors import CredentialsRefused, SourceUnavailable

from .book import Book
from .records import Subject, control_topic

POLL_MS = 200
OPEN_S = 30.0


@dataclass(slots=True)
class Tail:
    """`open`, then `read` as often as one likes, then `close`."""

    kafka: Properties
    admin: Admin
    book: Book
    seen: int = 0
    """How far the book has read."""
    _reader: AIOKafkaConsumer | None = None

    @property
    def topic(self) -> str:
        return control_topic(self.book.prefix)

    async def open(self) -> None:
        """Read the topic, which is there, up to its present end. Raises SourceUnavailable, CredentialsRefused."""
        place = TopicPartition(self.topic, 0)
        self._reader = AIOKafkaConsumer(
            **for_aiokafka(self.kafka), isolation_level="read_committed", auto_offset_reset="earliest"
        )
        try:
            async with asyncio.timeout(OPEN_S):
                await self._reader.start()
                self._reader.assign([place])
                await self._reader.seek_to_beginning(place)
                end = await self.find_end()
                while self.seen < end:
                    await self.read()
        except TopicAuthorizationFailedError as error:
            raise CredentialsRefused(f"{self.topic}: Kafka does not allow Read. Grant it") from error
        except (KafkaError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SourceUnavailable(f"{self.topic}: cannot be read: {reason}") from error

    async def read(self) -> set[Subject]:
        """Take in what has come, or what comes soon; what it was about. Raises KafkaError."""
        assert self._reader is not None
        place = TopicPartition(self.topic, 0)
        found = await self._reader.getmany(place, timeout_ms=POLL_MS)
        subjects = set()
        for record in found.get(place, ()):
            headers: dict[str, bytes] = dict(record.headers)
            subject = self.book.take(record.key, record.value, headers.get, record.timestamp)
            subjects |= {subject} if subject else set()
        self.seen = await self._reader.position(place)
        return subjects

    async def find_end(self) -> int:
        """The committed end of the topic."""
        source = (self.topic, 0)
        return (await self.admin.find_bounds([source]))[source][1]

    async def close(self) -> None:
        if self._reader is not None:
            with contextlib.suppress(KafkaError, OSError):
                await self._reader.stop()


async def read_book(kafka: Properties, admin: Admin, files: Loaded) -> Book:
    """The book as the topic and the files have it now; where there is no topic, the files alone. Raises SourceUnavailable."""
    book = Book(files)
    tail = Tail(kafka, admin, book)
    if tail.topic not in await admin.find_topics([tail.topic], with_config=False):
        return book
    try:
        await tail.open()
    finally:
        await tail.close()
    return book
