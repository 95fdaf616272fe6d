"""The Faust application of `overlay fleet run`. No module but this one and screened_consumer.py imports Faust.

Faust assigns the partition of each topic that is followed to one of the processes with the same prefix, keeps its
tables in changelog topics, and hands both to another process when that one goes. All decisions are in the pure modules:
agents put records into rows (memory.py, definitions.py, tallies.py), and a timer judges the rows (live.py) and writes
what opens and closes to the events topic. Data never flows through here, and no worker waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import faust
from faust.auth import OAuthCredentials
from faust.types import TP, EventT, StreamT

from overlay.clock import monotonic, now_ms, now_ns
from overlay.config import Loaded, ServiceConfig
from overlay.control.tail import read_registry
from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import for_aiokafka, reach
from overlay.kafka.own_topics import (
    EVENTS_CONFIG,
    FLEET_CONFIG,
    control_topic,
    events_topic,
    fleet_app,
    fleet_topic,
)
from overlay.kafka.properties import Properties, list_servers
from overlay.logs import get_logger
from overlay.waits import Backoff, unless

from .definitions import Confirmed, Definitions
from .findings import OpenFindings
from .live import LivePicture, encode_event
from .memory import Memory
from .publisher import ensure_topic
from .screened_consumer import screen_topics
from .status import Refusal
from .tallies import Tallies

log = get_logger(__name__)

JUDGE_S = 1.0
"""Seconds between two looks at the rows."""
SESSION_S = 10.0
"""Seconds after which another process takes over from one that is not heard."""
PAUSES_S = (0.5, 30.0)
"""Shortest and longest pause before the application starts again after an error."""
STOP_S = 10.0
"""Seconds in which an application commits and stops. One that hangs is left alone, and Kafka misses it SESSION_S later."""
FAILED_STOP_S = 1.0
"""The same for one that has failed, whose client has mostly ended with it: then it waits for a commit that never comes."""
CLOCKS_MS = 60_000
"""By how many ms this clock and Kafka's may differ when rows of definitions are compared with the control topic."""
MOST_LETTER_TOPICS = 500
"""Most topics of dead letters that are followed, whatever is written to the control topic."""
LOOK_S = 30.0
"""Seconds between two looks at which topics there are to follow. A change of them is a new start."""
METADATA_MS = 5_000
"""How old the client's metadata may be. A topic that was deleted and created anew is not read before the client knows it."""
BUFFER_RECORDS = 128
"""Records that wait for one agent. Each may have a megabyte."""


@dataclass(frozen=True, slots=True)
class Followed:
    """Topics that are followed beside the fleet's own: those of them that exist, that this user may read, and that have one
    partition. A process has all partitions of a topic then, or none.
    """

    events: bool = False
    control: bool = False
    letters: tuple[str, ...] = ()
    """Topics of dead letters."""


async def run_app(service: ServiceConfig, live: LivePicture, stop: asyncio.Event) -> None:
    """Keep `live` up to date until `stop`, by a Faust application. When Kafka cannot be reached, or the application
    ends by itself, with an error or without, another one is started after a pause, from the same tables. Meanwhile
    `live` stands by.

    Raises CredentialsRefused, and OverlayError if a topic may not be created or the fleet's has several partitions.
    """
    backoff = Backoff(*PAUSES_S)
    while not stop.is_set():
        began = monotonic()
        try:
            if await unless(stop, _prepare(service)):
                followed = await find_followed(service, live)
                await _run_once(service, live, stop, followed)
        except SourceUnavailable as error:
            log.warning("waiting for Kafka", reason=str(error))
        except OverlayError:
            raise
        except Exception as error:
            # of Faust or one of its tasks; it has logged it
            log.exception("the fleet's application ended and begins again", reason=str(error) or type(error).__name__)
        finally:
            live.stand_by()
        if monotonic() - began > 2 * PAUSES_S[1]:
            backoff.reset()
        if not stop.is_set():
            await backoff.rest(stop)


async def _prepare(service: ServiceConfig) -> None:
    """Create the fleet's topic and the events topic if they are missing. Raises OverlayError if one may not be created,
    or if the fleet's has several partitions, SourceUnavailable, CredentialsRefused.
    """
    await reach(service.kafka)
    topics = service.topics
    topic = fleet_topic(topics.prefix)
    async with Admin(service.kafka) as admin:
        await ensure_topic(admin, topic, FLEET_CONFIG, topics.replication)
        await ensure_topic(admin, events_topic(topics.prefix), EVENTS_CONFIG, topics.replication)
        if (count := (await admin.find_topics([topic], with_config=False))[topic].partitions) != 1:
            raise OverlayError(f"topic {topic} has {count} partitions and must have 1. Delete it: it will be made anew")


async def find_followed(service: ServiceConfig, live: LivePicture, before: Followed = Followed()) -> Followed:
    """Return which topics are to be followed now. Topics of dead letters that were followed `before` stay, also when no
    consumer names them any more. Raises SourceUnavailable, CredentialsRefused.
    """
    prefix = service.topics.prefix
    events, control = events_topic(prefix), control_topic(prefix)
    letters = {*_choose_letter_topics(live, prefix), *before.letters}
    async with Admin(service.kafka) as admin:
        found = await admin.find_readable({events, control, *letters})
    single = {name for name, partitions in found.items() if partitions == 1}
    return Followed(events in single, control in single, tuple(sorted(letters & single - {events, control})))


def _choose_letter_topics(live: LivePicture, prefix: str) -> list[str]:
    """Return which topics of dead letters to follow: those that files name first. None of the overlay's own, whatever a
    definition says: an application that takes its own changelog for one hangs.
    """
    named = sorted(live.letter_topics, key=lambda name: (name not in live.expected.letter_topics, name))
    return [name for name in named if not name.startswith(f"{prefix}.")][:MOST_LETTER_TOPICS]


async def find_confirmed(service: ServiceConfig) -> Confirmed:
    """Return which consumers the control topic has defined now. Raises SourceUnavailable, CredentialsRefused."""
    before = now_ms() - CLOCKS_MS
    async with Admin(service.kafka) as admin:
        registry = await read_registry(service.kafka, admin, Loaded(service, {}, {}, (), {}))
    return Confirmed(frozenset(id for id, each in registry.definitions.items() if not each.is_deleted), before)


async def _await_change(service: ServiceConfig, live: LivePicture, followed: Followed) -> None:
    """Wait until other topics than these are to be followed."""
    while True:
        await asyncio.sleep(LOOK_S)
        with contextlib.suppress(SourceUnavailable):
            if (found := await find_followed(service, live, followed)) != followed:
                log.info(
                    "topics to follow have changed", events=found.events, control=found.control, letters=found.letters
                )
                return


async def _run_once(service: ServiceConfig, live: LivePicture, stop: asyncio.Event, followed: Followed) -> None:
    """Run a new application until `stop`, until other topics than these are to be followed, or until it ends by itself.
    In the last case raise the error that has ended it, if there was one.
    """
    confirmed = await find_confirmed(service) if followed.control else None
    with tempfile.TemporaryDirectory(prefix="overlay-fleet-") as folder:
        app = make_app(service, live, folder, followed)
        live.definitions.confirmed = confirmed
        try:
            if await unless(stop, app.start()):
                waits = [app.wait_until_stopped(), _await_change(service, live, followed)]
                await unless(stop, _await_first(waits))
        finally:
            live.stand_by()
            await _end(app)
        if app.crash_reason is not None and not stop.is_set():
            raise app.crash_reason


async def _end(app: faust.App) -> None:
    """Stop an application within 2 * STOP_S seconds, whatever state it is in.

    Faust first commits what its agents have done. After an error in one part, or while Kafka is away, that fails or does
    not end, and Faust leaves the other parts as they are then: its client would stay in the group, with the topics, and
    timers would go on. So they are stopped here.
    """
    has_failed = app.crash_reason is not None
    if await _end_within(FAILED_STOP_S if has_failed else STOP_S, [app.stop()]):
        return
    parts = [app, *_list_parts(app)]
    for part in parts:
        for future in [*part._futures]:
            future.cancel()
    if not await _end_within(STOP_S, [part.stop() for part in parts]):
        log.warning("parts of the fleet's application did not stop")


def _list_parts(service: Any) -> list[Any]:
    """Return what a service of Faust has started, and what that has."""
    children = [child for child in service._children if child is not None]
    return children + [part for child in children for part in _list_parts(child)]


async def _end_within(patience_s: float, ends: Sequence[Coroutine[Any, Any, None]]) -> bool:
    """Run these until they have ended, but no longer than so many seconds. Return whether all ended well."""
    tasks = [asyncio.ensure_future(end) for end in ends]
    try:
        await asyncio.wait(tasks, timeout=patience_s)
    finally:
        # a task of Faust may swallow that, so nothing waits for it
        for task in tasks:
            task.cancel()
    return all(task.done() and not task.cancelled() and task.exception() is None for task in tasks)


async def _await_first(waits: list[Coroutine[Any, Any, None]]) -> None:
    """Wait until one of these has ended, and cancel the others. Raises what it has raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _OnePartition(faust.Table[str, Any]):
    """A table with one partition. Timers write to it as well, beside the streams, so a row has no event whose partition could
    be its own; and Faust's partitioner fails while its producer has not heard of the changelog's topic.
    """

    def partition_for_key(self, key: str) -> int:
        return 0


def make_app(service: ServiceConfig, live: LivePicture, folder: str, followed: Followed = Followed()) -> faust.App:
    """Return an application, not started yet, that keeps `live` up to date. Replaces the rows of `live` by ones in the
    application's tables, which are kept in memory and in changelog topics. `folder`: for what else Faust writes.
    """
    topics = service.topics
    app = faust.App(
        fleet_app(topics.prefix),
        broker=[f"kafka://{server}" for server in list_servers(service.kafka)],
        broker_session_timeout=SESSION_S,
        consumer_auto_offset_reset="earliest",
        consumer_metadata_max_age_ms=METADATA_MS,
        datadir=folder,
        store="memory://",
        stream_buffer_maxsize=BUFFER_RECORDS,
        table_standby_replicas=0,
        topic_disable_leader=True,
        topic_partitions=1,
        topic_replication_factor=topics.replication,
        web_enabled=False,
        Table=_OnePartition,
        **make_credentials(service.kafka),
    )
    tables = {
        name: app.Table(name, partitions=1)
        for name in ("workers", "consumers", "streams", "findings", "definitions", "tallies")
    }
    live.memory = Memory(tables["workers"], tables["consumers"], tables["streams"])
    live.open_findings = OpenFindings(tables["findings"])
    live.definitions, live.tallies = Definitions(tables["definitions"]), Tallies(tables["tallies"])
    topics_of_others = _follow(app, live, topics.prefix, followed)
    _judge_often(app, live, topics.prefix)

    def note(topic: str, refused: Counter[str]) -> None:
        log.warning("batches passed over", topic=topic, reasons=dict(refused))
        live.memory.refused[Refusal.MALFORMED] += refused.total()

    screen_topics(app, topics_of_others, note)
    return app


Take = Callable[[LivePicture, EventT[bytes], str], None]


def _follow(app: faust.App, live: LivePicture, prefix: str, followed: Followed) -> set[str]:
    """Add an agent for each kind of topic to the application, which puts its records into the rows of `live`. Return the
    topics that are followed.
    """
    kinds: list[tuple[tuple[str, ...], Take]] = [((fleet_topic(prefix),), take_event)]
    if followed.events:
        kinds.append(((events_topic(prefix),), take_advisory))
    if followed.control:
        kinds.append(((control_topic(prefix),), take_definition))
    if followed.letters:
        kinds.append((followed.letters, take_letter))
    for names, take in kinds:
        _add_agent(app, live, prefix, names, take)
    return {name for names, _ in kinds for name in names}


def _add_agent(app: faust.App, live: LivePicture, prefix: str, names: tuple[str, ...], take: Take) -> None:
    async def follow(stream: StreamT[bytes]) -> None:
        async for event in stream.events():
            take(live, event, prefix)

    app.agent(app.topic(*names, **_RAW), name=f"overlay.fleet.{take.__name__}")(follow)


def _judge_often(app: faust.App, live: LivePicture, prefix: str) -> None:
    """Add a timer to the application. Every JUDGE_S seconds it judges the rows and sends what opens and closes to the
    events topic, or has `live` stand by while this process does not have the fleet's topic.
    """
    topic, events = fleet_topic(prefix), app.topic(events_topic(prefix), **_RAW)

    @app.timer(JUDGE_S)  # type: ignore[untyped-decorator] # Faust has no types for it
    async def judge() -> None:
        if not _is_active(app, topic):
            live.stand_by()
            return
        opened, closed = live.judge(int(monotonic() * 1000))
        for is_open, findings in ((True, opened), (False, closed)):
            for finding in findings:
                log.info("finding", opened=is_open, kind=finding.kind.value, about=finding.about, text=finding.text)
                key, value = encode_event(finding, now_ns(), is_open=is_open)
                await events.send(key=key, value=value)


_RAW: Mapping[str, Any] = {
    "key_type": bytes,
    "key_serializer": "raw",
    "value_type": bytes,
    "value_serializer": "raw",
    # workers and _prepare create the topics, with their own settings
    "allow_empty": True,
    "internal": False,
}


def take_event(live: LivePicture, event: EventT[bytes], prefix: str) -> None:
    """Put a record of the fleet's topic that Faust has read into the rows of `live.memory`, or count there why it is
    passed over.
    """
    appended = round(event.message.timestamp * 1000)
    live.memory.take(event.message.key, event.message.value, appended, now_ms(), prefix)


def take_advisory(live: LivePicture, event: EventT[bytes], prefix: str) -> None:
    """Count a record of the events topic in `live.tallies`. `prefix`: not used."""
    live.tallies.take_event(event.message.key, round(event.message.timestamp * 1000), now_ms())


def take_definition(live: LivePicture, event: EventT[bytes], prefix: str) -> None:
    """Put a record of the control topic into `live.definitions`. `prefix`: not used."""
    live.definitions.take(event.message.key, event.message.value, round(event.message.timestamp * 1000))


def take_letter(live: LivePicture, event: EventT[bytes], prefix: str) -> None:
    """Count a dead letter in `live.tallies`. `prefix`: not used."""
    live.tallies.take_letter(event.message.headers, round(event.message.timestamp * 1000), now_ms())


def _is_active(app: faust.App, topic: str) -> bool:
    """Return whether the fleet's topic is assigned to this process, and its tables have been read from their changelogs."""
    return bool(app.tables.actives_ready and not app.rebalancing and TP(topic, 0) in app.consumer.assignment())


def make_credentials(kafka: Properties) -> dict[str, Any]:
    """Return Faust's keyword arguments for TLS and SASL, {} if `kafka` has neither. Raises SourceUnavailable while
    certificates or secrets cannot be read.
    """
    settings = for_aiokafka(kafka)
    context = settings.get("ssl_context")
    if tokens := settings.get("sasl_oauth_token_provider"):
        return {"broker_credentials": OAuthCredentials(oauth_cb=tokens, ssl_context=context)}
    if "sasl_mechanism" in settings:
        credentials = faust.SASLCredentials(
            username=settings["sasl_plain_username"],
            password=settings["sasl_plain_password"],
            mechanism=settings["sasl_mechanism"],
            ssl_context=context,
        )
        return {"broker_credentials": credentials}
    return {} if context is None else {"broker_credentials": faust.SSLCredentials(context)}
