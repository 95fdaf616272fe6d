"""Terms: the statements that a chunk's Bloom filter can be asked about.

What. A term is a short statement about some record of a chunk: its subject is `orders.eu.c7`, its
subject's third token is `c7`, its `carrier` equals `AA`, its `tail` is NULL. A chunk without a term
has no such record, so a condition that implies the term is true of none of its records.

Which. A record with a subject of n tokens adds the whole subject, its number of tokens, each token
with its position, and each proper prefix. A pattern asks for what all of its subjects have:
`orders.*.c7` for the number 3, the prefix `orders` and the third token `c7`; `orders.eu.>` for the
prefix `orders.eu`, which only longer subjects add. Tokens and prefixes are taken up to DEPTH, so
that a subject of a thousand tokens stays cheap.

Filter values are RabbitMQ's: one text a record, compared as a whole. By default it is the subject,
so the whole subject and the filter value are the same term and are in a filter once. A record
without a value adds UNFILTERED.

Properties are canonical with respect to SQL's equality: 1 and 1.0 are one term, and so are a string
and a binary of the same bytes. So a whole number is hashed as eight bytes of int64, any other
number as its double, a text by its bytes.

How. MurmurHash3 x64_128. The seed separates the kinds, the positions, and the names of properties.
If two kinds ever had the same seed, they would share terms, which costs a false positive but never
a wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mmh3
import numpy as np

from overlay.arrays import Bytes, Doubles, Int, Ints, Words
from overlay.kernels import kernel
from overlay.subject.dictionary import Texts
from overlay.subject.pattern import ONE, REST, Pattern

from .murmur import hash128

Hashes = Words
"""[terms, 2]: the two uint64 words of each hash."""

DEPTH = 16
"""Most tokens and prefixes of a subject that become terms; further ones are left out."""

WHOLE, _COUNT, _PREFIX, _UNFILTERED, _NAMED = range(1, 6)
"""The seeds of the kinds of terms. WHOLE is for whole subjects and filter values."""
_TOKEN = 0x100  # plus the position

_DOT = ord(".")
_TWO_63 = 2.0**63
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class Term:
    """A statement about a record that a Bloom filter can be asked for, as its hash. `text`: the
    statement, for people. `property` is the name under `index.terms`, empty for subjects and filter
    values.
    """

    h1: int
    h2: int
    text: str = field(compare=False)
    property: str = field(default="", compare=False)


def _make(data: bytes, seed: int, text: str, property: str = "") -> Term:
    h1, h2 = mmh3.hash64(data, seed, signed=False)
    return Term(h1, h2, text, property)


def value_term(value: bytes) -> Term:
    """Return the term of a record's filter value, or of its whole subject."""
    return _make(value, WHOLE, value.decode(errors="backslashreplace"))


UNFILTERED = _make(b"", _UNFILTERED, "no filter value")
"""The term of a record without a filter value."""


def _count_term(tokens: int) -> Term:
    return _make(b"%d" % tokens, _COUNT, f"{tokens} tokens")


def _token_term(position: int, token: str) -> Term:
    return _make(token.encode(), _TOKEN + position, ".".join(["*"] * position + [token, ">"]))


def _prefix_term(tokens: tuple[str, ...]) -> Term:
    prefix = ".".join(tokens)
    return _make(prefix.encode(), _PREFIX, prefix + ".>")


def pattern_terms(pattern: Pattern) -> list[Term]:
    """Return the terms that every record with a subject of the pattern adds to a filter. The list
    is empty for patterns such as `>` and `*.>`, which no filter rules out.
    """
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
    """Return the seed that the terms of a property are hashed with. `family`: "value", or "null"
    for the term that says that it is NULL.
    """
    return mmh3.hash(f"{family}:{name}".encode(), _NAMED, signed=False)


def property_term(name: str, value: bool | int | float | str | bytes) -> Term:
    """Return the term "the property equals `value`". `name`: as under `index.terms`. Numbers must
    be finite.
    """
    shown = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return _make(_canonical(value), seed_of("value", name), f"{name} = {shown}", name)


def null_term(name: str) -> Term:
    """Return the term "the property is NULL": missing, or not readable as its type."""
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
            # outside int64 columns hold only doubles; a number that is no double equals none of
            # them
            return np.float64(value).tobytes() if _is_double(value) else b"%d" % value


def canonical_doubles(values: Doubles) -> Words:
    """Return the words that the terms of finite doubles are hashed from (uint64, one per value)."""
    words = np.empty(values.size, np.uint64)
    _make_canonical(values, words)
    return words


def as_hashes(*terms: Term) -> Hashes:
    """Return the hashes of terms as an array, uint64 [terms, 2]."""
    return np.array([(term.h1, term.h2) for term in terms], np.uint64).reshape(-1, 2)


def hash_subjects(texts: Texts, first: int) -> tuple[Hashes, Ints]:
    """Return the terms of the subjects from number `first` on: their hashes subject by subject, and
    how many each subject has.
    """
    counts = np.empty(texts.bounds.size - 1 - first, np.int64)
    _count_terms(texts.text, texts.bounds, first, counts)
    hashes = np.empty((int(counts.sum()), 2), np.uint64)
    _hash_subjects(texts.text, texts.bounds, first, hashes)
    return hashes, counts


def hash_texts(texts: Texts, first: int) -> tuple[Hashes, Ints]:
    """Return one term for each text from number `first` on, in the form of `hash_subjects`: the
    hashes, and a count of 1 for each. For filter values, which are terms only as a whole.
    """
    counts = np.ones(texts.bounds.size - 1 - first, np.int64)
    hashes = np.empty((counts.size, 2), np.uint64)
    _hash_wholes(texts.text, texts.bounds, first, hashes)
    return hashes, counts


@kernel(inline="always")
def canonical_double(value: float) -> np.uint64:
    """Return the word that the term of a finite double is hashed from.

    A whole number in int64 gives the word of that integer, so 1.0 and 1 have the same term. Any
    other double gives its own bits.
    """
    if np.floor(value) == value and -_TWO_63 <= value < _TWO_63:
        return np.uint64(np.int64(value))
    return np.float64(value).view(np.uint64)


@kernel
def _make_canonical(values: Doubles, words: Words) -> None:
    for i in range(values.size):
        words[i] = canonical_double(values[i])


@kernel
def _count_terms(text: Bytes, bounds: Ints, first: Int, counts: Ints) -> None:
    for i in range(counts.size):
        tokens = 1
        for pos in range(bounds[first + i], bounds[first + i + 1]):
            tokens += text[pos] == _DOT
        counts[i] = 2 + min(tokens, DEPTH) + min(tokens - 1, DEPTH)


@kernel
def _hash_wholes(text: Bytes, bounds: Ints, first: Int, out: Hashes) -> None:
    for i in range(out.shape[0]):
        start = bounds[first + i]
        out[i, 0], out[i, 1] = hash128(text, start, bounds[first + i + 1] - start, np.uint64(WHOLE))


@kernel
def _hash_subjects(text: Bytes, bounds: Ints, first: Int, out: Words) -> None:
    """Write the terms of the subjects from number `first` on to `out`. Order of a subject's terms:
    whole, then per token the token and the prefix that ends with it, then the count.
    """
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
