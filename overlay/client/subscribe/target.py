"""The target of a subscription: which consumer it reads, and the topics of its deliveries and acks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from overlay.client.arguments import BadQuestion
from overlay.config.consumer import AckPolicy, ConsumerConfig
from overlay.config.suggestion import suggest
from overlay.errors import OverlayError

from .acking import Head


class UnknownConsumer(OverlayError, LookupError):
    """No config file has a consumer of this name, and the service does not know it, could not be asked, or is not
    asked (`spark`). In `spark` also: several streams have one of this name, or it is a pull consumer. The caller
    names another one."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a subscription reads, and by what rules.

    `head`: the consumer. `topic`: its output topic. `group`: its reader group. `policy`: its ack
    policy. `heartbeat_s`: seconds between its heartbeats, 0 if it sends none.
    """

    head: Head
    topic: str
    group: str
    policy: AckPolicy
    heartbeat_s: float = 0.0


def aim(config: ConsumerConfig) -> Target:
    """Return the target of a subscription to a push consumer. Raises BadQuestion for a pull consumer."""
    stream, name = config.id
    if not config.is_push:
        raise BadQuestion(
            f"consumer {stream}/{name} has no deliver_subject, so there is no topic to subscribe to. It is a pull consumer:"
            f" client.pull({name!r}).fetch(100, timeout=2), or for message in client.pull({name!r})"
        )
    group = config.deliver_group or name
    return Target(Head(stream, name), config.deliver_subject, group, config.ack_policy, config.idle_heartbeat / 1e9)


def check_idle(idle: float | None) -> None:
    """Raise BadQuestion unless `idle`, the seconds after which a loop ends, is None or a number above 0."""
    if idle is not None and (isinstance(idle, bool) or not isinstance(idle, int | float) or not idle > 0):
        raise BadQuestion(f"idle is {idle!r}, and has to be a number of seconds, more than 0")


def find_consumer(known: Iterable[ConsumerConfig], name: str, stream: str, where: str = "") -> ConsumerConfig:
    """Return the one consumer of this name in `known`, of the stream `stream` unless that is empty.

    `where`: the place searched, for messages. Raises UnknownConsumer, with a suggestion, if there is
    none, and BadQuestion if `stream` is empty and several streams have a consumer of this name.
    """
    known = list(known)
    found = [config for config in known if config.id[1] == name and stream in ("", config.stream)]
    if len(found) == 1:
        return found[0]
    if found:
        streams = ", ".join(sorted(config.stream for config in found))
        raise BadQuestion(f"streams {streams} have a consumer {name!r} each. Say which one is meant: stream=...")
    names = sorted({config.id[1] for config in known if stream in ("", config.stream)})
    of_stream = f" of stream {stream!r}" if stream else ""
    prefix = f"{where}: " if where else ""
    known_names = f" There is {', '.join(names)}" if names else ""
    raise UnknownConsumer(f"{prefix}there is no consumer {name!r}{of_stream}.{suggest(name, names)}{known_names}")
