"""Which consumers the next status of a worker tells of, if it is to tell of any. Pure.

What a status costs must not grow with idle consumers. So a consumer is described only if something says
that it may have changed: a delivery, a new session of its shard, or that it was busy when it was last
told. Beside these, each status describes a fixed share of all consumers in turn. Readers that come late
know all of them after a minute, and a change that no sign announced is told by then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from overlay.state.shard_state import ConsumerId

SHARE = 1 / 15
"""The part of all consumers that a status which tells of consumers tells in turn. There is one every four seconds
(timetable.py): all consumers are told within a minute."""
MOST = 1_000
"""Most consumers that are described for one status, so that it takes some 10 ms of the event loop."""


@dataclass(slots=True)
class Changes:
    """The consumers of one worker that wait to be told. Call `assign` when the worker's shards or
    consumers change, then for each status `note`, `take`, and `settle` for each that was taken."""

    _mine: tuple[ConsumerId, ...] = ()
    _here: frozenset[ConsumerId] = frozenset()
    """The same as a set."""
    _told: dict[ConsumerId, int] = field(default_factory=dict)
    """A hash of what was last told of each consumer."""
    _due: dict[ConsumerId, bool] = field(default_factory=dict)
    """Consumers to describe, in the order in which they became due, and whether to tell them even if nothing has changed."""
    _watched: set[ConsumerId] = field(default_factory=set)
    """Consumers to describe again for the next status, since they were busy or had just changed."""
    _next: int = 0
    """The place in `_mine` of the first consumer of the next share."""

    def assign(self, mine: Iterable[ConsumerId], known: Iterable[ConsumerId]) -> list[ConsumerId]:
        """Tell of the consumers `mine` from now on, and note all of them as due. Return, sorted, those
        that were told before and do not exist any more: neither in `mine` nor in `known`.

        `known`: all consumers, also those that other workers serve.
        """
        self._mine = tuple(sorted(mine))
        self._here = here = frozenset(self._mine)
        self._next = 0
        gone = sorted(self._told.keys() - here - set(known))
        self._told = {id: told for id, told in self._told.items() if id in here}
        self._watched &= here
        self._due = {id: is_forced for id, is_forced in self._due.items() if id in here}
        self.note(self._mine)
        return gone

    def note(self, active: Iterable[ConsumerId]) -> None:
        """Note that these consumers may have changed, so that `take` returns them. Those that `assign`
        was not given are ignored.
        """
        for id in active:
            if id in self._here:
                self._due.setdefault(id, False)

    def repeat(self, lost: Iterable[ConsumerId]) -> None:
        """Note that these consumers have to be told even if nothing has changed: the status that told of them was lost. Those
        that `assign` was not given are ignored.
        """
        self._due |= {id: True for id in lost if id in self._here}

    def take(self) -> list[ConsumerId]:
        """Return the consumers to describe for this status, those first that wait the longest: the noted
        ones, those that `settle` has kept in view, and the next share of all. They stay due until
        `settle` or `drop`.

        At most MOST, or a sixth of the worker's consumers if that is more: each is described within six
        statuses.
        """
        self.note(sorted(self._watched))
        self._watched.clear()
        count = len(self._mine)
        for _ in range(math.ceil(count * SHARE)):
            self._due[self._mine[self._next]] = True
            self._next = (self._next + 1) % count
        most = max(MOST, math.ceil(count / 6))
        return [id for id, _ in zip(self._due, range(most), strict=False)]

    def settle(self, id: ConsumerId, told: int, *, is_busy: bool) -> bool:
        """Return whether the status has to tell of a consumer that was taken and described: its description has
        changed since it was last told, or its turn has come. It is not due any more, but if it has changed or is busy
        the next `take` notes it again.

        `told`: a hash of its description; `is_busy`: whether it may change again without a sign.
        """
        is_forced = self._due.pop(id, False)
        has_changed = self._told.get(id) != told
        self._told[id] = told
        if has_changed or is_busy:
            self._watched.add(id)
        return is_forced or has_changed

    def drop(self, id: ConsumerId) -> None:
        """Forget that a consumer is due. For one that was taken and cannot be described."""
        self._due.pop(id, None)
