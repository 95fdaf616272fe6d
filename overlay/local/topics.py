"""Topics of the embedded Kafka, or of another one: created, listed, and looked up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from overlay.config.model import check_topic
from overlay.config.suggestion import suggest
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin, TopicFacts, new_topic
from overlay.kafka.properties import Properties

INTERNAL = "__"
"""How the names of Kafka's own topics begin."""


class TopicRefused(OverlayError):
    """A topic that cannot be created, or is not there. The user has to act."""


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic with its number of partitions, and of offsets in all of them. With compaction or
    transactions there are fewer records than offsets.
    """

    name: str
    partitions: int
    offsets: int


async def create_topics(
    kafka: Properties,
    names: Sequence[str],
    *,
    partitions: int,
    replication: int,
    config: Mapping[str, str],
    may_exist: bool,
) -> dict[str, TopicFacts]:
    """Create topics and wait until Kafka can describe them. Return those that were there before, by name, which are
    left as they are.

    Raises TopicRefused if a name is not valid, or if one was there and `may_exist` is not set, before any is created;
    also if Kafka refuses one, and the others are created then. Raises SourceUnavailable and CredentialsRefused.
    """
    for name in names:
        _check_name(name)
    async with Admin(kafka) as admin:
        present = await admin.find_topics(names, with_config=False)
        if present and not may_exist:
            raise TopicRefused(
                f"topic {', '.join(present)}: exists already, and nothing was created. Name another one, or add --if-missing"
            )
        missing = [new_topic(name, partitions, replication, config) for name in names if name not in present]
        _, refused = await admin.create_topics(missing)
    if refused:
        raise TopicRefused("; ".join(refused.values()))
    return present


async def list_topics(kafka: Properties, *, internal: bool = False) -> list[ListedTopic]:
    """Return the topics that this user may see, sorted by name. Kafka's own are among them only if `internal` is set.

    Raises SourceUnavailable and CredentialsRefused.
    """
    async with Admin(kafka) as admin:
        names = [name for name in await admin.list_topics("") if internal or not name.startswith(INTERNAL)]
        found = (await admin.find_topics(names, with_config=False)).values()
        bounds = await admin.find_bounds(
            [(facts.name, number) for facts in found for number in range(facts.partitions)]
        )
    offsets = dict.fromkeys((facts.name for facts in found), 0)
    for (name, _), (first, end) in bounds.items():
        offsets[name] += end - first
    return [ListedTopic(facts.name, facts.partitions, offsets[facts.name]) for facts in found]


async def find_topic(kafka: Properties, name: str) -> TopicFacts:
    """Return the description of a topic, with its settings as far as this user may read them.

    Raises TopicRefused if there is no such topic or the name is not valid, SourceUnavailable and CredentialsRefused.
    """
    _check_name(name)
    async with Admin(kafka) as admin:
        found = (await admin.find_topics([name])).get(name)
        others = [] if found else await admin.list_topics("")
    if found is None:
        raise TopicRefused(_describe_missing(name, others))
    return found


def _check_name(name: str) -> None:
    try:
        check_topic(name)
    except ValueError as error:
        raise TopicRefused(f"topic {name!r}: {error}") from None


def _describe_missing(name: str, others: Collection[str]) -> str:
    near = suggest(name, [other for other in others if not other.startswith(INTERNAL)])
    return f"topic {name!r}: there is no such topic.{near} To create it: overlay local topic create {name}"
