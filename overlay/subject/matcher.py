"""A matcher for many patterns at once: which of them match a subject.

A subject is looked up once, however many patterns there are. Patterns without wildcards are a dict.
The others share a trie of tokens: a node has a branch for each literal token that some pattern has
there, one for `*`, and the ids of the patterns that end here or continue with `>`. A lookup follows
all branches that fit, level by level. So its cost depends on the tokens of the subject and the
patterns that still fit, not on the number of patterns. The idea is that of the subscription lists
in NATS servers.

A matcher is called once for each distinct subject of a stream, of which there may be hundreds of
thousands.
"""

from __future__ import annotations

from collections.abc import Iterable

from .pattern import ONE, REST, Pattern

__all__ = ["Matcher"]


class _Node:
    __slots__ = ("branches", "here", "one", "rest")

    def __init__(self) -> None:
        self.branches: dict[str, _Node] = {}
        self.one: _Node | None = None
        self.here: list[int] = []
        self.rest: list[int] = []


class Matcher:
    """A set of patterns with ids, which finds the ids of the patterns that match a subject.

    `patterns`: pairs of pattern and id. Several patterns may have one id, like the filters of a
    consumer.
    """

    __slots__ = ("_literals", "_root")

    def __init__(self, patterns: Iterable[tuple[Pattern, int]]) -> None:
        self._literals: dict[str, tuple[int, ...]] = {}
        self._root: _Node | None = None
        for pattern, known in patterns:
            if pattern.is_literal:
                self._literals[pattern.text] = _merge(self._literals.get(pattern.text, ()), (known,))
            else:
                self._root = self._root or _Node()
                _add(self._root, pattern, known)

    def match(self, subject: str) -> tuple[int, ...]:
        """Return the ids of all patterns that match `subject`, ascending, each once; () if none
        matches. `subject` has to be legal and without wildcards, which is not checked.
        """
        literal = self._literals.get(subject, ())
        if self._root is None:
            return literal
        found = _walk(self._root, subject.split("."))
        return _merge(literal, found) if found else literal


def _add(root: _Node, pattern: Pattern, known: int) -> None:
    node = root
    for token in pattern.tokens:
        if token == REST:
            node.rest.append(known)
            return
        if token == ONE:
            node.one = node.one or _Node()
            node = node.one
        else:
            node = node.branches.setdefault(token, _Node())
    node.here.append(known)


def _walk(root: _Node, tokens: list[str]) -> list[int]:
    found: list[int] = []
    nodes = [root]
    for token in tokens:
        reached = []
        for node in nodes:
            if node.rest:
                found += node.rest
            branch = node.branches.get(token)
            if branch is not None:
                reached.append(branch)
            if node.one is not None:
                reached.append(node.one)
        if not reached:
            return found
        nodes = reached
    for node in nodes:
        found += node.here
    return found


def _merge(some: Iterable[int], more: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*some, *more}))
