"""Which requests are decided together. Pure.

A decision is made on a registry that contains every earlier one, so each costs a transaction, the
wait until that was read back, and a change of the shard, perhaps with a new session. For thousands of creates that takes
hours. But creates, updates and deletes of different consumers do not depend on each other, as long
as none of them could close a cycle of topics. Those of one shard are decided on the same registry,
and are written in one transaction. While there is not room for all creates, each request is decided
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from .records import ConsumerId
from .requests import Op, Request

MOST = 500
"""Most requests that are decided together."""
MOST_CHARACTERS = 4 << 20
"""Most characters of the requests that are decided together, apart from the last of them. What they
lead to is held in memory until it is written."""


def group_requests(
    requests: Iterable[Request], find_shard: Callable[[ConsumerId], int | None], is_alone: Callable[[Request], bool]
) -> Iterator[tuple[int, list[Request]]]:
    """Yield each shard with requests to decide together, in an order in which they may be decided.

    Requests for which `find_shard` returns None are left out. A request for which `is_alone` is true
    is yielded alone, after all before it and before all after it. If the shard's group is full, or has
    a request about the same consumer already, all groups so far are yielded first.
    """
    groups: dict[int, _Group] = {}
    for request in requests:
        shard = find_shard(request.about)
        if shard is None:
            continue
        # a refusal for being one too many depends on nothing
        alone, about = is_alone(request), request.id if request.is_excess else request.about
        group = groups.get(shard)
        if alone or (group is not None and (group.is_full or about in group.requests)):
            yield from _list_groups(groups)
            groups.clear()
        if alone:
            yield shard, [request]
        else:
            group = groups.setdefault(shard, _Group())
            group.requests[about] = request
            group.characters += len(request.text)
    yield from _list_groups(groups)


@dataclass(slots=True)
class _Group:
    """Requests to decide together, by what they are about. `characters`: of their texts."""

    requests: dict[ConsumerId | str, Request] = field(default_factory=dict)
    characters: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.requests) >= MOST or self.characters >= MOST_CHARACTERS


def _list_groups(groups: dict[int, _Group]) -> list[tuple[int, list[Request]]]:
    return [(shard, list(group.requests.values())) for shard, group in groups.items()]


def is_independent(request: Request, sources: Collection[str]) -> bool:
    """Return whether the decision on a request depends on no other consumer: it deletes one, or
    creates or changes one whose config names none of `sources`, the source topics of all streams.
    """
    if request.op is Op.DELETE and not request.fault:
        return True
    config = request.body.get("config")
    if request.fault or request.op not in (Op.CREATE, Op.UPDATE) or not isinstance(config, dict):
        return False
    # whatever the field is called: without an output that a stream reads there is no cycle
    return not any(isinstance(value, str) and value in sources for value in config.values())
