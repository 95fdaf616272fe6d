"""Which requests are decided together. Pure.

A decision is made on a registry that contains every earlier one, so each costs a transaction, the
wait until that was read back, and a new session of the shard. For thousands of creates that takes
hours. But creates and updates of different consumers do not depend on each other, as long as none
of them could close a cycle of topics. Those of one shard are decided on the same registry, and are
written in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

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

    Requests of shards for which `find_shard` returns None are left out. A request for which
    `is_alone` is true is decided after those before it, and before those behind it. So is a request
    about a consumer that an earlier request of the group is about.
    """
    groups: dict[int, dict[ConsumerId, Request]] = {}
    for request in requests:
        shard = find_shard(request.about)
        if shard is None:
            continue
        alone, group = is_alone(request), groups.get(shard, {})
        if alone or request.about in group or _is_full(group):
            yield from _list_groups(groups)
            groups.clear()
        if alone:
            yield shard, [request]
        else:
            groups.setdefault(shard, {})[request.about] = request
    yield from _list_groups(groups)


def _is_full(group: Mapping[ConsumerId, Request]) -> bool:
    return len(group) >= MOST or sum(len(request.text) for request in group.values()) >= MOST_CHARACTERS


def _list_groups(groups: dict[int, dict[ConsumerId, Request]]) -> list[tuple[int, list[Request]]]:
    return [(shard, list(group.values())) for shard, group in groups.items()]


def is_independent(request: Request, sources: Collection[str]) -> bool:
    """Return whether the decision on a request depends on no other consumer: it creates or changes
    a consumer that delivers to none of `sources`, the source topics of all streams.
    """
    config = request.body.get("config")
    if request.fault or request.op not in (Op.CREATE, Op.UPDATE) or not isinstance(config, dict):
        return False
    # whatever the field is called: without an output that a stream reads there is no cycle
    return not any(isinstance(value, str) and value in sources for value in config.values())
