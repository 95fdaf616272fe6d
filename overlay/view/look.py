"""Facts about streams and consumers, from the running service and completed from Kafka.

One worker is asked first: the one that listens at the address in overlay.yaml. Its answers count only if
it keeps its state under the same prefix in the same cluster. If there are several workers, this one
knows its own shards. The workers of the others may be asked for their consumers (others.py). For shards without an answer,
the facts are those of their last commit.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from overlay.config import HttpConfig, Loaded
from overlay.config.identity import Identity, identify
from overlay.errors import ConfigError, CredentialsRefused, SourceUnavailable

from .facts import ConsumerFacts, OverlayFacts, ServiceFacts, StreamFacts
from .others import ELSEWHERE, Others, ask_others
from .running import NoService, ask_service
from .stored import REMOVED, SPARK, describe_memory, read_memory

NO_RATES = "positions and lag are those of the last commit, and there are no rates"
RATES_OF_JOBS = NO_RATES + " but those of Spark jobs"


async def look(loaded: Loaded, *, asks_others: bool = False) -> OverlayFacts:
    """Return the facts about all streams and consumers, asked of the service and of Kafka. `asks_others`: whether to ask
    all workers for their consumers, not only the one at the address in overlay.yaml.

    If only Kafka answers, there are no rates but those of Spark jobs. If only the service does, consumers that it
    does not know are missing, and those without a file have no config. `notes` of the result say so, and why the
    other does not answer: it may refuse the credentials. If Kafka does not answer, and no service or only one of
    another config does, raises SourceUnavailable or CredentialsRefused, as Kafka does.
    """
    mine = identify(loaded)
    # both are asked at once: a user waits
    asking = asyncio.create_task(_ask(loaded.service.http))
    try:
        memory = await read_memory(loaded)
    except (SourceUnavailable, CredentialsRefused) as error:
        running, note = await asking
        # without Kafka, a service that belongs to this config is enough
        if running is None or running.service is None or explain_stranger(running.service, mine, ""):
            raise
        notes = (f"this is what the service says; {error}", *compare(running.service, mine))
        by_file = {id: replace(found, config=loaded.consumers.get(id)) for id, found in running.consumers.items()}
        return replace(running, consumers=by_file, notes=notes)
    running, note = await asking
    stored = describe_memory(loaded, memory)
    if running is not None and running.service is not None:
        note = explain_stranger(running.service, mine, memory.cluster)
        if not note:
            others = None
            if asks_others:
                others = await asyncio.to_thread(ask_others, loaded, running.service, running.consumers)
            return combine(running, stored, mine, others)
    has_rates = any(found.rate is not None for found in stored.consumers.values())
    return replace(stored, notes=(f"{note}; {RATES_OF_JOBS if has_rates else NO_RATES}",))


async def _ask(http: HttpConfig) -> tuple[OverlayFacts | None, str]:
    """Return what the service at an address says, and ""; or None, and why it says nothing."""
    try:
        return await ask_service(http), ""
    except (NoService, CredentialsRefused, ConfigError) as error:
        # what Kafka remembers is shown all the same
        return None, str(error)


def explain_stranger(found: ServiceFacts, mine: Identity, cluster: str) -> str:
    """Return why a service does not belong to this config (`mine`), as a sentence for the user; "" if it does.

    `cluster`: Kafka's id of the cluster of this config, "" if unknown.
    """
    if found.prefix != mine.prefix:
        why = f"its topics.prefix is {found.prefix!r}, here it is {mine.prefix!r}"
    elif found.cluster and cluster and found.cluster != cluster:
        why = f"its Kafka is the cluster {found.cluster} at {found.bootstrap}, here it is {cluster} at {mine.bootstrap}"
    else:
        return ""
    return (
        f"what answers at {found.url} is the service of another config, {found.folder}: {why}. Give each service an"
        " http.listen of its own, or name the folder that is meant"
    )


def compare(found: ServiceFacts, mine: Identity, others: Others | None = None) -> list[str]:
    """Return notes for the user: one if the service runs other streams and consumers than this
    folder has now, one if it has only some of the shards. Empty if neither is so. `others`: what the workers of the
    other shards have said, None if they were not asked.
    """
    notes = []
    if found.digest != mine.digest:
        notes.append(
            f"the service at {found.url} runs other streams and consumers than {mine.folder} has now; it follows"
            f" {found.folder}, and takes up what changes there within seconds"
        )
    if others is not None:
        notes += [others.note] if others.note else []
    elif found.shard_count > len(found.shards):
        owned = ", ".join(map(str, found.shards)) or "none"
        notes.append(
            f"the worker at {found.url} has these of the {found.shard_count} shards: {owned}. Consumers of the others are"
            f" marked {ELSEWHERE}: another worker serves them, if one runs; their positions and lag are those of the last"
            " commit"
        )
    return notes


def combine(running: OverlayFacts, stored: OverlayFacts, mine: Identity, others: Others | None = None) -> OverlayFacts:
    """Return the facts of both: the service's where it has any, with positions from the stored state
    where it has none. A note names each stream of the config, and each consumer by file or by
    request, that the service does not know. `others`: what other workers have said, None if they were not asked.
    """
    if others is not None:
        running = replace(running, consumers={**running.consumers, **others.consumers})
    streams, consumers = dict(stored.streams), dict(stored.consumers)
    for name, found in running.streams.items():
        streams[name] = _complete_stream(found, stored.streams.get(name))
    for consumer, says in running.consumers.items():
        consumers[consumer] = _complete(says, stored.consumers.get(consumer))
    notes = compare(running.service, mine, others) if running.service else []
    notes += [f"the running service does not know {kind} {word}" for kind, word in _unknown(running, stored)]
    return OverlayFacts(dict(sorted(streams.items())), dict(sorted(consumers.items())), running.service, tuple(notes))


def _complete_stream(says: StreamFacts, stored: StreamFacts | None) -> StreamFacts:
    """Return the service's facts about a stream, with positions from the state if it has none. Then the
    counts and the rate are None if another worker serves the stream (state ELSEWHERE).
    """
    if says.partitions or stored is None:
        return says
    found = replace(says, partitions=stored.partitions)
    if says.state == ELSEWHERE:
        return replace(found, decoded=None, read_again=None, rate=None)
    return found


def _complete(says: ConsumerFacts, stored: ConsumerFacts | None) -> ConsumerFacts:
    """Return the service's facts about a consumer, with its config, and with positions from the state if it has none.
    Then, if another worker serves it (state ELSEWHERE), `delivered`, `dead_letters`, `rate` and `lag_seconds` are None. If
    the consumer is left to Spark jobs, return the stored facts, with the service's `lag_seconds`, unless the service still
    serves it.
    """
    if stored is None:
        return says
    if stored.state == SPARK and (says.state == SPARK or not says.positions):
        # the plans were read now, and by the service some seconds ago
        return replace(stored, lag_seconds=says.lag_seconds)
    says = replace(says, config=stored.config)
    if says.positions:
        return says
    found = replace(
        says,
        consumer_sequence=stored.consumer_sequence,
        positions=stored.positions,
        lag_records=stored.lag_records if says.lag_records is None else says.lag_records,
    )
    return _forget_counts(found) if says.state == ELSEWHERE else found


def _forget_counts(found: ConsumerFacts) -> ConsumerFacts:
    """Return the facts without what only the worker that serves the consumer can count."""
    return replace(found, delivered=None, dead_letters=None, rate=None, lag_seconds=None)


def _unknown(running: OverlayFacts, stored: OverlayFacts) -> list[tuple[str, str]]:
    """Return the streams of the config, and the consumers by file or by request, that the service does
    not have, as ("stream" or "consumer", name). Removed consumers are left out.
    """
    streams = [("stream", name) for name in stored.streams if name not in running.streams]
    consumers = [
        ("consumer", "/".join(consumer))
        for consumer, facts in stored.consumers.items()
        if consumer not in running.consumers and facts.state != REMOVED
    ]
    return streams + consumers
