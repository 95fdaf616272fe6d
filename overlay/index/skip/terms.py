"""Terms: what a chunk's Bloom filter can be asked for.

What. A term is a short statement about some record of a chunk: its subject is `orders.eu.c7`, its subject's third token
is `c7`, its `carrier` equals `AA`, its `tail` is NULL. A chunk without a term has no such record, so a condition that
implies the term cannot be true of any of its records.

Which. A record with a subject of n tokens puts in the whole subject, its number of tokens, each token with its position, and
each proper prefix. A pattern asks for what all of its subjects have: `orders.*.c7` for the number 3, the prefix `orders`
and the third token `c7`; `orders.eu.>` for the prefix `orders.eu`, which only longer subjects put in. Tokens and prefixes
are taken to DEPTH, so that a subject of a thousand tokens is no burden.

Filter values are RabbitMQ's: one text a record, compared as a whole. By default it is the subject, so the whole subject and
the filter value are the same term and stand in a filter once. A record without a value puts in UNFILTERED.

Properties are canonical over what SQL calls equal: 1 and 1.0 are one term, and a string and a binary of the same bytes. So a
whole number is hashed as eight bytes of int64, any other as those of its double, a text by its bytes.

How. MurmurHash3 x64_128. Its seed keeps the kinds apart, and the positions, and for properties their names. Two kinds whose
seeds should ever be equal share terms, which costs a false positive and never an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mmh3
import numpy as np
import numpy.typing as npt

from overlay.kernels import kernel
from overlay.subject.dictionary import Texts
from overlay.subject.pattern import ONE, REST, Pattern

from .murmur import hash128

Hashes = npt.NDArray[np.uint64]
"""[terms, 2]: the two words of each hash."""

DEPTH = 16
"""Tokens and prefixes of a subject that are terms; further ones are left out."""

WHOLE, _COUNT, _PREFIX, _UNFILTERED, _NAMED = range(1, 6)
"""The seed of whole subjects and filter values, and those of the other kinds."""
_TOKEN = 0x100  # and the position

_DOT = ord(".")
_TWO_63 = 2.0**63
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Term:
    """A term by its hash. `text` is for people, `property` the name under `index.terms`, empty for subjects and values."""

    h1: int
    h2: int
    text: str = field(compare=False)
    property: str = field(default="", compare=False)


def _make(data: bytes, seed: int, text: str, property: str = "") -> Term:
    h1, h2 = mmh3.hash64(data, seed, signed=False)
    return Term(h1, h2, text, property)


def value_term(value: bytes) -> Term:
    """The filter value of a record, or its whole subject."""
    return _make(value, WHOLE, value.decode(errors="backslashreplace"))


UNFILTERED = _make(b"", _UNFILTERED, "no filter value")
"""A record without a filter value is there."""


def _count_term(tokens: int) -> Term:
    return _make(b"%d" % tokens, _COUNT, f"{tokens} tokens")


def _token_term(position: int, token: str) -> Term:
    return _make(token.encode(), _TOKEN + position, ".".join(["*"] * position + [token, ">"]))


def _prefix_term(tokens: tuple[str, ...]) -> Term:
    prefix = ".".join(tokens)
    return _make(prefix.encode(), _PREFIX, prefix + ".>")


def subject_terms(subject: str) -> list[Term]:
    """What a record with this subject puts in."""
    tokens = tuple(subject.split("."))
    return [
        value_term(subject.encode()),
        _count_term(len(tokens)),
        *(_token_term(position, token) for position, token in enumerate(tokens[:DEPTH])),
        *(_prefix_term(tokens[:k]) for k in range(1, min(len(tokens) - 1, DEPTH) + 1)),
    ]


def pattern_terms(pattern: Pattern) -> list[Term]:
    """What every subject of the pattern puts in, all of it; nothing for `>`."""
    tokens = pattern.tokens
    if pattern.is_literal:
        return [value_term(pattern.text.encode())]
    head = next(at for at, token in enumerate(tokens) if token in (ONE, REST))
    terms = [_prefix_term(tokens[: min(head, DEPTH)])] if head else []
    terms += [
        _token_term(position, token)
        for position, token in enumerate(tokens[:DEPTH])
        if position > head and token not in (ONE, REST)
    ]
    return terms if tokens[-1] == REST else [*terms, _count_term(len(tokens))]


def seed_of(family: str, name: str) -> int:
    """The seed of a property's terms: `family` is value, or null for the term of NULL."""
    return mmh3.hash(f"{family}:{name}".encode(), _NAMED, signed=False)


def property_term(name: str, value: bool | int | float | str | bytes) -> Term:
    """Some record's property equals `value`. `name` as it stands under `index.terms`; numbers are finite."""
    shown = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return _make(_canonical(value), seed_of("value", name), f"{name} = {shown}", name)


def null_term(name: str) -> Term:
    """Some record's property is NULL: it is missing, or cannot be read as its type."""
    return _make(b"", seed_of("null", name), f"{name} IS NULL", name)


def _is_double(value: float) -> bool:
    try:
        return float(value) == value
    except OverflowError:
        return False


def _canonical(value: bool | int | float | str | bytes) -> bytes:
    match value:
        case bytes():
            return value
        case str():
            return value.encode()
        case bool():
            return bytes([value])
        case float() if not value.is_integer():
            return np.float64(value).tobytes()
        case _ if int(value) in _INT64:
            return int(value).to_bytes(8, "little", signed=True)
        case _:
            # beyond int64 there are only doubles; a number that none of them is equals nothing
            return np.float64(value).tobytes() if _is_double(value) else b"%d" % value


def canonical_doubles(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """What the terms of finite doubles are hashed from, eight bytes each."""
    words = np.empty(values.size, np.uint64)
    _make_canonical(values, words)
    return words


def as_hashes(*terms: Term) -> Hashes:
    """Terms as kernels take them."""
    return np.array([(term.h1, term.h2) for term in terms], np.uint64).reshape(-1, 2)


def hash_subjects(texts: Texts, first: int) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """The terms of the subjects from number `first` on, one subject's behind the other's, and how many each has."""
    counts = np.empty(texts.bounds.size - 1 - first, np.int64)
    _count_terms(texts.text, texts.bounds, first, counts)
    hashes = np.empty((int(counts.sum()), 2), np.uint64)
    _hash_subjects(texts.text, texts.bounds, first, hashes)
    return hashes, counts


def hash_texts(texts: Texts, first: int) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """As `hash_subjects`, for texts that are terms as a whole only: filter values."""
    counts = np.ones(texts.bounds.size - 1 - first, np.int64)
    hashes = np.empty((counts.size, 2), np.uint64)
    _hash_wholes(texts.text, texts.bounds, first, hashes)
    return hashes, counts


@kernel(inline="always")
def canonical_double(value):  # type: ignore[no-untyped-def]
    """What the term of a finite double is hashed from, as a word."""
    if np.floor(value) == value and -_TWO_63 <= value < _TWO_63:
        return np.uint64(np.int64(value))
    return np.float64(value).view(np.uint64)


@kernel
def _make_canonical(values, words):  # type: ignore[no-untyped-def]
    for i in range(values.size):
        words[i] = canonical_double(values[i])


@kernel
def _count_terms(text, bounds, first, counts):  # type: ignore[no-untyped-def]
    for i in range(counts.size):
        tokens = 1
        for pos in range(bounds[first + i], bounds[first + i + 1]):
            tokens += text[pos] == _DOT
        counts[i] = 2 + min(tokens, DEPTH) + min(tokens - 1, DEPTH)


@kernel
def _hash_wholes(text, bounds, first, out):  # type: ignore[no-untyped-def]
    for i in range(out.shape[0]):
        start = bounds[first + i]
        out[i, 0], out[i, 1] = hash128(text, start, bounds[first + i + 1] - start, np.uint64(WHOLE))


@kernel
def _hash_subjects(text, bounds, first, out):  # type: ignore[no-untyped-def]
    """The terms in the order: whole, then per token the token and the prefix that ends with it, then the count."""
    digits = np.empty(20, np.uint8)
    put = 0
    for subject in range(first, bounds.size - 1):
        start, end = bounds[subject], bounds[subject + 1]
        out[put, 0], out[put, 1] = hash128(text, start, end - start, np.uint64(WHOLE))
        put += 1
        tokens, token_at = 0, start
        for pos in range(start, end + 1):
            if pos < end and text[pos] != _DOT:
                continue
            if tokens < DEPTH:
                out[put, 0], out[put, 1] = hash128(text, token_at, pos - token_at, np.uint64(_TOKEN + tokens))
                put += 1
                if pos < end:
                    out[put, 0], out[put, 1] = hash128(text, start, pos - start, np.uint64(_PREFIX))
                    put += 1
            tokens += 1
            token_at = pos + 1
        at = digits.size
        while tokens:
            at -= 1
            digits[at] = 48 + tokens % 10
            tokens //= 10
        out[put, 0], out[put, 1] = hash128(digits, at, digits.size - at, np.uint64(_COUNT))
        put += 1
