"""What the workers beside the one that was asked over HTTP say of their consumers, asked through the control topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from overlay.config import Loaded
from overlay.errors import OverlayError
from overlay.kafka.own_topics import shard_of
from overlay.state.shard_state import ConsumerId

from .facts import ConsumerFacts, ServiceFacts

ELSEWHERE = "elsewhere"
"""The state of a consumer or stream that another worker serves."""
AS_STORED = "their consumers are marked elsewhere, with positions and lag of the last commit"
_ACKS = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_waiting")


@dataclass(frozen=True, slots=True)
class Others:
    """What other workers say of the consumers of their shards. `note`: a sentence that says whose answers are missing, and
    why; "" if none are.
    """

    consumers: Mapping[ConsumerId, ConsumerFacts] = field(default_factory=dict)
    note: str = ""


def ask_others(loaded: Loaded, found: ServiceFacts, consumers: Mapping[ConsumerId, ConsumerFacts]) -> Others:
    """Ask the workers of all consumers that the worker `found` says are ELSEWHERE, at once, and wait up to GATHER_S seconds
    (client/control/control.py) for them. `consumers`: as that worker knows them. Blocks.
    """
    at = {id: shard_of(id, found.shard_count) for id in consumers} if found.shard_count else {}
    asked = {shard for id, shard in at.items() if consumers[id].state == ELSEWHERE}
    if not asked:
        return Others()
    from overlay.client.control import control as client

    wanted = Counter(shard for shard in at.values() if shard in asked)
    service, timeout = loaded.service, client.GATHER_S
    control = client.Control(service.kafka, service.topics.prefix, name="overlay")
    try:
        answers = control.list_shards("", wanted, timeout)
    except OverlayError as error:
        return Others(note=f"could not ask {_name(wanted.keys())}: {error}; {AS_STORED}")
    finally:
        control.close()
    told = [read_facts(info, consumers) for infos in answers.values() for info in infos]
    missing = wanted.keys() - answers.keys()
    if not missing:
        return Others({each.id: each for each in told})
    why = f"no answer within {timeout:g} s from {_name(missing)}, which `overlay shards` names"
    return Others({each.id: each for each in told}, f"{why}; {AS_STORED}")


def _name(shards: Collection[int]) -> str:
    numbers = ", ".join(map(str, sorted(shards)))
    return f"the worker of shard {numbers}" if len(shards) == 1 else f"the workers of shards {numbers}"


def read_facts(info: Mapping[str, Any], known: Mapping[ConsumerId, ConsumerFacts]) -> ConsumerFacts:
    """Return the facts in a ConsumerInfo, as its JSON object. `known`: consumers as another worker knows them, of which
    the output and the filters are the same.
    """
    from overlay.control.responses import OWN

    id, own = (info["stream_name"], info["name"]), info["overlay"]
    base = known.get(id) or ConsumerFacts(*id)
    # a consumer without acks has none of these
    acks = {name: info[name] for name in _ACKS} if "gate" in own else None
    if acks is not None:
        acks |= {"push_bound": bool(info.get("push_bound")), "paused": bool(info.get("paused"))}
        acks |= {"gate": own["gate"], "num_delayed": own["num_delayed"]}
    return ConsumerFacts(
        *id,
        base.deliver_subject,
        base.filters,
        **{name: own[name] for name in OWN if name in own},
        consumer_sequence=info["delivered"]["consumer_seq"],
        num_pending=info.get("num_pending"),
        acks=acks,
    )
