"""Fetches that the shards of a worker share, so that each record is fetched once for all of them.

The shards of a worker divide its consumers, not the partitions: a shard reads all partitions of each
stream that it has a consumer of. So eight shards at the end of a log would fetch each record eight
times. They are at the same place most of the time, since all of them wait there for new records.

Who owns what
-------------
A session owns its fetcher, with a client and partition fetches of its own. Only this fetcher fills
them and moves them. A session may end at any time, and no other one depends on it.

The worker owns the shared fetches, with one more client. For each source partition that at least two
fetchers read, they have a *front*: how far any of these fetchers is known to have come, a partition
fetch from there on, and the last answers, which are kept for partition fetches that have not come so
far yet. Sessions ask, and the front answers: it holds nothing that a session would miss.

States of a partition
---------------------
    alone     fewer than two fetchers read it: each fetches for itself, and nothing is kept
    untold    no fetcher has had an answer yet, or the front was given up
    resting   there is a front, and no partition fetch waits at it: nothing is fetched
    asked     a partition fetch waits at the front: a fetch is in flight, or about to be
    stalled   asked, and no answer has come for 5 s: no partition fetch waits, each fetches for itself

An answer to a fetcher's own fetch makes the front, or moves it if it reaches beyond. A partition
fetch that wants data (`serve`) gets a kept answer that has its position, or waits if it is at the
front, or is told to fetch for itself. An answer to the front's fetch is kept, and wakes all
fetchers with partition fetches that wait. The next fetch is sent when one of them has taken the
answer, and wants more.

What must not happen
--------------------
- *A slow shard must hold up no other one.* The front follows the fastest. A slow shard is served
  from what is kept, with all that is there in one piece: the fastest one takes answers of a record
  or two, and a round for each of them would leave the others ever further behind. If what it needs
  is gone, it fetches for itself, by its own connection, until it comes to what is kept again. So
  shards that lag and shards at the end never take turns, and a shard that begins at the end does not
  wait for a front that is behind: its own answer moves the front there.
- *A connection that answers nothing must hold up no shard for long.* The worker's client may wait for
  a request of its own until that times out, 40 s. So a front that is asked and has no answer for
  5 s (`find_patience`) has stalled: what waits at it is woken, and `serve` has it fetch for itself, by a
  connection of its own. The front stays where these answers move it, and its fetch goes on. With the
  next answer to that it is asked again. The time counts from the last answer or from when it was asked,
  and not from when a fetch was sent: it may wait behind one of another partition.
- *No answer from before a log was compared.* A session compares the log with its state before it
  reads. An answer that was asked for before its partition fetch began may be of the log before an
  election. Such an answer is not used, also if it is in flight: a partition fetch begins with a
  fetch of its own.
- *No answer from another log.* The batch before the position has to have the leader epoch that the
  partition fetch knows. If not, it fetches for itself, and the fetcher compares the logs.
- *No answer from beyond the end.* If an answer says that the log ends below the front, or that the
  front's position is not in the log any more, the front is given up, with all that it keeps.
- *Nothing is decided here.* A batch that cannot be read, and any error, gives the front up. Each
  fetcher then finds for itself, and its session acts by its own rules.
- *Bounded memory.* KEEP_BYTES for all partitions, and nothing for longer than KEEP_S. What a shard
  that is behind is given in one piece is a copy, of JOINED_BYTES at most for each partition.

What has been fetched once is decoded by each shard: streams and consumers differ in the fields that
they want, and subjects have numbers that only one pipeline knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from overlay.arrays import Bytes
from overlay.clock import monotonic
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.logs import get_logger
from overlay.scan.decode import NO_STOP
from overlay.waits import Backoff, is_set_within, set_after

from . import fetcher as fetching
from .connection import open_client
from .fetched import Fetched, join
from .fetcher import Fetcher
from .partition_fetch import PartitionFetch
from .properties import Properties

log = get_logger(__name__)

KEEP_BYTES = 16 << 20
"""Most bytes of answers that are kept, of all partitions together."""
JOINED_BYTES, JOINED_ANSWERS = 2 << 20, 200
"""A partition fetch gets so many kept answers of up to so many bytes at once, or one of any size. To join that many takes a
few milliseconds."""
KEEP_S = 5.0
"""Longest time in seconds for which an answer is kept."""
STALLED_S = 4.0
"""Seconds beyond what fetches take (`find_patience`) after which a front that is asked has stalled. For slow networks and
brokers."""
LOOK_S = 1.0
"""Seconds between two looks for fronts that have stalled."""
MOST_NAMED = 5
"""Most partitions that a log message names."""
BACKOFF_S = (0.5, 30.0)
"""Shortest and longest pause in seconds before the client is opened again after an error."""


def find_patience() -> float:
    """Return the seconds after which a front that is asked has stalled, counted from when the latest answer was asked for.
    A broker without new records answers within `fetcher.LONG_WAIT_MS`, and the next answer may take as long."""
    return 2 * fetching.LONG_WAIT_MS / 1000 + STALLED_S


@dataclass(frozen=True, slots=True)
class _Answer:
    """A kept answer. `asked`: when it was asked for, monotonic seconds."""

    fetched: Fetched
    asked: float

    def fits(self, position: int, epoch: int) -> bool:
        """Return whether the log of this answer is the one that a reader at `position` has read, by the leader epoch of the
        batch before that position. An epoch below 0 is not known, and fits.
        """
        batches = self.fetched.batches
        row = max(0, int(np.searchsorted(batches["last_offset"], position)) - 1)
        return epoch < 0 or int(batches[row]["leader_epoch"]) == epoch

    def follows(self, before: Fetched) -> bool:
        """Return whether the first batch of this answer is the one behind the last batch of another answer."""
        end, first = before.log_position, int(self.fetched.batches[0]["base_offset"])
        return self.fetched.position == end.position <= first and self.fits(end.position, end.epoch)


@dataclass(eq=False, slots=True)
class _Front:
    """The foremost position of a partition, and the answers right before it."""

    fetch: PartitionFetch
    """Reads from the front on. It is paused while no partition fetch waits."""
    reach: int
    """The front: the offset after the last answer. `fetch` may be behind it while it is in flight."""
    epoch: int
    """Leader epoch of the batch before `reach`, below 0 if unknown."""
    reached: float
    """When the answer that reached it was asked for, monotonic seconds."""
    stable_end: int = -1
    end: int = -1
    """The log's last stable offset and high watermark by the latest answer."""
    heard: float = -1.0
    """When the latest answer was asked for, monotonic seconds."""
    since: float | None = None
    """Since when it is asked, monotonic seconds; None while it rests."""
    kept: deque[_Answer] = field(default_factory=deque)
    """Ascending: each reaches beyond the one before, and none begins beyond it."""
    waiting: dict[PartitionFetch, None] = field(default_factory=dict)

    def find(self, position: int, epoch: int, since: float) -> Fetched | None:
        """Return what is kept from the offset `position` on, of several answers up to JOINED_BYTES; None if that offset is not
        there. `epoch`: leader epoch of the batch before it, below 0 if unknown; None if the answer is of another log.
        `since`: only what was asked for after that counts, monotonic seconds.
        """
        if not self.kept or position < self.kept[0].fetched.position:
            return None
        found: list[_Answer] = []
        for answer in reversed(self.kept):
            found.append(answer)
            if answer.fetched.position <= position:
                break
        first = found.pop()
        if position >= first.fetched.next_offset or first.asked <= since or not first.fits(position, epoch):
            return None
        parts, size = [first.fetched], first.fetched.data.size
        while found and len(parts) < JOINED_ANSWERS:
            answer = found.pop()
            size += answer.fetched.data.size
            if size > JOINED_BYTES or answer.asked <= since or not answer.follows(parts[-1]):
                break
            parts.append(answer.fetched)
        return join(parts) if len(parts) > 1 else parts[0]

    def learn(self, fetch: PartitionFetch) -> bool:
        """Take up the ends of the log that the latest answer to `fetch` has told, unless a later one is known. Return
        whether they have changed.
        """
        if fetch.answered < self.heard:
            return False
        before = self.stable_end, self.end
        self.stable_end, self.end, self.heard = fetch.stable_end, fetch.end, fetch.answered
        return before != (self.stable_end, self.end)

    def has_lost_end(self, fetch: PartitionFetch) -> bool:
        """Return whether the latest answer to `fetch` says that the log ends below the front, and was asked for later."""
        return fetch.end < self.reach and fetch.answered > self.reached

    def advance(self) -> None:
        """Have `fetch` read from the front on, unless an answer is on its way or has not been taken up."""
        if self.fetch.position != self.reach and not self.fetch.in_flight and self.fetch.ready is None:
            self.fetch.seek(self.reach, self.epoch)

    def ask(self, fetch: PartitionFetch) -> None:
        """Have a partition fetch wait for the next answer."""
        if self.since is None:
            self.since = monotonic()
        self.waiting[fetch] = None
        self.fetch.resume()

    def rest(self) -> None:
        """Fetch nothing until a partition fetch waits again."""
        self.since = None
        self.fetch.pause()

    def is_stalled(self) -> bool:
        """Return whether it is asked, and no answer has come for too long."""
        return self.since is not None and monotonic() - max(self.since, self.fetch.answered) > find_patience()

    def wake(self) -> None:
        """Have the fetchers whose partition fetches wait ask again."""
        waiting, self.waiting = self.waiting, {}
        for fetch in waiting:
            fetch.wake()


@dataclass(slots=True)
class SharedFetches:
    """The fetches of a worker for source partitions that several of its fetchers read. `count`: called with the bytes
    that these fetches have brought.
    """

    kafka: Properties
    count: Callable[[int], object]
    _readers: dict[TopicPartition, dict[PartitionFetch, Fetcher]] = field(default_factory=dict)
    _fronts: dict[TopicPartition, _Front] = field(default_factory=dict)
    _order: deque[tuple[_Front, _Answer, float]] = field(default_factory=deque)
    """All kept answers in the order in which they came, with the monotonic time of that. Those of a front that was given
    up are removed with it."""
    _bytes: int = 0
    _fetcher: Fetcher | None = None
    """Reads the fronts; None while there is no client."""
    _client: AIOKafkaClient | None = None
    _topics: dict[str, bool] = field(default_factory=dict)
    """Topics with several readers, and whether the client knows them already."""
    _counted: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client has to be opened, or to ask for a topic."""

    # what fetchers call

    def join(self, fetcher: Fetcher, fetch: PartitionFetch) -> None:
        """Note that a fetcher has begun a partition fetch."""
        readers = self._readers.setdefault(fetch.tp, {})
        readers[fetch] = fetcher
        if fetch.topic not in self._topics and self._is_shared(fetch.tp):
            self._topics[fetch.topic] = False
            self._news.set()

    def leave(self, fetch: PartitionFetch) -> None:
        """Note that a partition fetch has ended. Does nothing if that is known."""
        readers = self._readers.get(fetch.tp, {})
        readers.pop(fetch, None)
        front = self._fronts.get(fetch.tp)
        if front is not None:
            front.waiting.pop(fetch, None)
            if not self._is_shared(fetch.tp):
                self._give_up(front)
        if not readers:
            self._readers.pop(fetch.tp, None)
            if not any(tp.topic == fetch.topic for tp in self._readers):
                self._forget_topic(fetch.topic)

    def serve(self, fetch: PartitionFetch) -> bool:
        """Fill a partition fetch that wants data from what is kept, or have it wait at the front. Return False if it
        has to fetch for itself.
        """
        front = self._fronts.get(fetch.tp)
        if front is None or not _may_share(fetch):
            return False
        self._drop_old()
        if fetch.position < front.reach:
            fetched = front.find(fetch.position, fetch.epoch, fetch.since)
            if fetched is None:
                return False
            fetch.end = front.end
            fetch.offer(replace(fetched, position=fetch.position, stable_end=front.stable_end))
            return True
        if fetch.position > front.reach or (front.fetch.in_flight and front.fetch.asked <= fetch.since):
            # the front is behind, or the answer on its way is older than the partition fetch
            return False
        if front.is_stalled():
            return False
        if front.heard > fetch.since:
            fetch.learn_ends(front.stable_end, front.end)
        front.ask(fetch)
        return True

    def waits(self, fetch: PartitionFetch) -> bool:
        """Return whether a partition fetch waits at a front."""
        front = self._fronts.get(fetch.tp)
        return front is not None and fetch in front.waiting

    def note(self, fetch: PartitionFetch, fetched: Fetched | None) -> None:
        """Take up the answer to a fetcher's own fetch, which has moved it; None if the answer had no data."""
        if not _may_share(fetch) or not self._is_shared(fetch.tp):
            return
        if fetched is not None and not _is_whole(fetched):
            return
        front = self._fronts.get(fetch.tp) or self._begin(fetch)
        if front is None:
            return
        if front.has_lost_end(fetch):
            self._give_up(front)
            return
        has_changed = front.learn(fetch)
        begin = fetch.position if fetched is None else fetched.position
        if begin > front.reach:
            self._forget(front)
            front.reach, front.epoch, front.reached = begin, fetch.epoch, fetch.answered
            has_changed = True
        if fetched is not None and fetched.next_offset > front.reach:
            self._keep(front, _Answer(replace(fetched, data=_copy(fetched.data)), fetch.answered))
            has_changed = True
        front.advance()
        if has_changed:
            front.wake()

    # the worker's own task

    async def run(self, stop: asyncio.Event) -> None:
        """Read the fronts until `stop`, with a client that is opened when the first partition has several readers. Raises
        no error of Kafka: until the client is open, each fetcher fetches for itself.
        """
        backoff = Backoff(*BACKOFF_S)
        stopping = asyncio.create_task(set_after(stop, self._news), name="stopping")
        try:
            while not stop.is_set():
                await self._news.wait()
                if stop.is_set() or not self._topics:
                    self._news.clear()
                    continue
                try:
                    await self._read(stop)
                except (SourceUnavailable, CredentialsRefused, KafkaError, OSError) as error:
                    log.warning("shards fetch for themselves", reason=str(error) or type(error).__name__)
                except Exception:
                    log.exception("shards fetch for themselves")
                if not stop.is_set():
                    await backoff.rest(stop)
        finally:
            stopping.cancel()

    async def _read(self, stop: asyncio.Event) -> None:
        """Open a client, and take up what comes for the fronts until `stop`. Raises SourceUnavailable, KafkaError."""
        self._client = client = await open_client(self.kafka)
        try:
            self._fetcher = fetcher = Fetcher(client)
            self._counted = 0
            following = asyncio.create_task(set_after(stop, fetcher.changed), name="stopping")
            learning = asyncio.create_task(self._learn_topics(client), name="learning")
            learning.add_done_callback(lambda _: fetcher.changed.set())
            try:
                while not stop.is_set():
                    fetcher.changed.clear()
                    if learning.done():
                        learning.result()
                    for front in list(self._fronts.values()):
                        self._hear(front)
                    self._leave_stalled()
                    self.count(fetcher.bytes_fetched - self._counted)
                    self._counted = fetcher.bytes_fetched
                    if not await is_set_within(fetcher.changed, min(LOOK_S, KEEP_S) if self._fronts else None):
                        self._drop_old()
            finally:
                following.cancel()
                learning.cancel()
                await self._close(fetcher)
        finally:
            self._client = None
            await client.close()

    async def _close(self, fetcher: Fetcher) -> None:
        """Give all fronts up, and end the fetcher."""
        for front in list(self._fronts.values()):
            self._give_up(front)
        self._fetcher = None
        self._topics = dict.fromkeys(self._topics, False)
        await fetcher.close()

    async def _learn_topics(self, client: AIOKafkaClient) -> None:
        """Have the client ask for the topics that it does not know yet, until cancelled. Apart from `_read`: a broker that
        does not answer must not hold up what comes from others.
        """
        while True:
            self._news.clear()
            for topic in [topic for topic, is_known in self._topics.items() if not is_known]:
                await client.add_topic(topic)
                if topic in self._topics:
                    self._topics[topic] = True
                else:
                    client._topics.discard(topic)
            await self._news.wait()

    def _forget_topic(self, topic: str) -> None:
        """Ask no more for the metadata of a topic that is read no more."""
        if self._topics.pop(topic, None) is not None and self._client is not None:
            self._client._topics.discard(topic)

    def _hear(self, front: _Front) -> None:
        """Take up what has come for a front."""
        fetch, taken = front.fetch, front.fetch.ready
        if (taken is not None and not (isinstance(taken, Fetched) and _is_whole(taken))) or front.has_lost_end(fetch):
            self._give_up(front)
            return
        has_changed = front.learn(fetch)
        if isinstance(taken, Fetched):
            front.rest()
            fetch.take()
            if taken.next_offset > front.reach:
                self._keep(front, _Answer(taken, fetch.answered))
            has_changed = True
        front.advance()
        if has_changed:
            front.wake()

    def _leave_stalled(self) -> None:
        """Have partition fetches that wait at stalled fronts fetch for themselves."""
        stalled = [front for front in self._fronts.values() if front.waiting and front.is_stalled()]
        if stalled:
            log.warning(
                "shards fetch for themselves",
                reason=f"no answer to shared fetches for {find_patience():g} s",
                partitions=[f"{front.fetch.topic}-{front.fetch.partition}" for front in stalled[:MOST_NAMED]],
                count=len(stalled),
            )
        for front in stalled:
            front.wake()

    # fronts

    def _is_shared(self, tp: TopicPartition) -> bool:
        """Return whether at least two fetchers read a partition."""
        return len(set(self._readers.get(tp, {}).values())) > 1

    def _begin(self, fetch: PartitionFetch) -> _Front | None:
        """Return a new front where a partition fetch is after an answer; None as long as there is no client that knows
        the topic.
        """
        if self._fetcher is None or not self._topics.get(fetch.topic):
            return None
        reader = self._fetcher.start(fetch.topic, fetch.partition, fetch.position, epoch=fetch.epoch)
        reader.pause()
        self._fronts[fetch.tp] = front = _Front(reader, fetch.position, fetch.epoch, fetch.answered)
        self._fetcher.changed.set()  # `_read` looks for stalled fronts from now on
        return front

    def _give_up(self, front: _Front) -> None:
        """Forget a front. Partition fetches that wait at it fetch for themselves."""
        assert self._fetcher is not None
        del self._fronts[front.fetch.tp]
        self._fetcher.shut(front.fetch)
        self._forget(front)
        front.wake()

    def _keep(self, front: _Front, answer: _Answer) -> None:
        """Keep an answer that reaches beyond the front, which moves the front."""
        fetched = answer.fetched
        # a batch that is cut off comes whole with the next answer
        answer = replace(answer, fetched=replace(fetched, data=fetched.data[: int(fetched.batches[-1]["end"])]))
        front.kept.append(answer)
        self._order.append((front, answer, monotonic()))
        self._bytes += answer.fetched.data.size
        at = answer.fetched.log_position
        front.reach, front.epoch, front.reached = at.position, at.epoch, answer.asked
        self._drop_old()

    def _forget(self, front: _Front) -> None:
        """Drop what is kept for a front."""
        self._bytes -= sum(each.fetched.data.size for each in front.kept)
        front.kept.clear()
        self._order = deque(each for each in self._order if each[0] is not front)

    def _drop_old(self) -> None:
        """Drop the oldest answers, of all fronts, until what is left may be kept."""
        while self._order and (self._bytes > KEEP_BYTES or self._order[0][2] < monotonic() - KEEP_S):
            front, answer, _ = self._order.popleft()
            front.kept.popleft()  # both are in the order in which they came
            self._bytes -= answer.fetched.data.size


def _copy(data: Bytes) -> Bytes:
    """Return a copy of data that was fetched: a view would keep the bytes of the whole response. It is for reading only,
    as all that is fetched: kernels are compiled for such data, and would be once more for other data.
    """
    copy = data.copy()
    copy.flags.writeable = False
    return copy


def _may_share(fetch: PartitionFetch) -> bool:
    """Return whether a partition fetch reads on and on. One that skips by an index wants a part of a log."""
    return fetch.size is None and fetch.stop == NO_STOP


def _is_whole(fetched: Fetched) -> bool:
    """Return whether all batches of an answer can be read, by their headers, and its end is known by the last one."""
    batches = fetched.batches
    return fetched.unreadable < 0 and bool(batches.size) and int(batches[-1]["last_offset"]) + 1 == fetched.next_offset
