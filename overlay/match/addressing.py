"""Steps 2 and 3 for one stream: fetched bytes become slices of records with their subject codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from overlay.arrays import Bytes
from overlay.config.stream import StreamConfig
from overlay.field import Field, FieldKind
from overlay.scan import Decoder, Malformed, Records, make_plan
from overlay.scan.codec import Arena
from overlay.scan.commit import NO_ABORTS, Aborted
from overlay.scan.decode import NO_STOP
from overlay.scan.values import DeclaredFormat
from overlay.subject import Matcher, Pattern, SubjectRule
from overlay.subject.dictionary import REASONS, Codes, Dictionary, Texts

from .formats import make_format


@dataclass(frozen=True, slots=True)
class Addressed:
    """A slice of records of one partition, and the subject code of each record (int32): a number in
    `dictionary`, -1 - i for a record without a subject in the stream because of REASONS[i]. Valid
    until the next slice is asked for.
    """

    records: Records
    codes: Codes
    dictionary: Dictionary
    topic: str
    partition: int

    @property
    def texts(self) -> Texts:
        """Return the subjects of all codes of `dictionary`, by code, also of those that do not occur in the slice."""
        return self.dictionary.texts

    def count_unaddressed(self) -> dict[str, int]:
        """Return the number of records of the slice without a subject in the stream, by reason (the
        value of an Unaddressed). Reasons without a record are left out.
        """
        lost = self.codes[self.codes < 0]
        counts = np.bincount(-1 - lost, minlength=len(REASONS)) if lost.size else ()
        return {reason.value: int(n) for reason, n in zip(REASONS, counts, strict=False) if n}


def make_addressing(stream: StreamConfig, values: DeclaredFormat | None = None) -> Addressing:
    """Return a decoder of a stream's records. `values`: the format of the stream's values, if the caller has one already;
    None makes one, for which all schemas of the stream are parsed.
    """
    return Addressing(stream.subject.rule, stream.patterns, values=values or make_format(stream.values))


class Addressing:
    """A decoder of the records of one stream, which gives each its subject code. Not for two threads at once.

    `subjects`: the patterns of the stream's subjects; a record whose subject matches none of them has no subject in the
    stream. `values`: the format of values that are not JSON, None for JSON.
    """

    def __init__(self, rule: SubjectRule, subjects: Sequence[Pattern], *, values: DeclaredFormat | None = None) -> None:
        self._rule = rule
        self._width = len(rule.fields)
        self._values = values
        self._arena = Arena()
        self._decoders: dict[tuple[Field, ...], Decoder] = {}
        self._stream = Matcher([(pattern, 0) for pattern in subjects])
        self._by_partition = any(isinstance(p, Field) and p.kind is FieldKind.PARTITION for p in rule.template)
        self._dictionaries: dict[tuple[str, int], Dictionary] = {}

    def dictionary(self, topic: str, partition: int) -> Dictionary:
        """Return the dictionary of subjects of a topic, or of a partition if the subject rule names
        the partition. The first call makes it, empty; later calls return the same one.
        """
        key = (topic, partition if self._by_partition else -1)
        if key not in self._dictionaries:
            self._dictionaries[key] = Dictionary(self._rule, topic, partition, self._is_wanted)
        return self._dictionaries[key]

    def _is_wanted(self, subject: str) -> bool:
        return bool(self._stream.match(subject))

    def read(
        self,
        topic: str,
        partition: int,
        data: Bytes,
        position: int,
        *,
        more: tuple[Field, ...] = (),
        stop: int = NO_STOP,
        aborted: Aborted = NO_ABORTS,
        committed: bool = True,
    ) -> Iterator[Addressed | Malformed]:
        """Yield slices of the records in `data` with position <= offset < stop, in order, with their
        subject codes, and a Malformed for each batch that cannot be read. Records without a subject
        in the stream are in the slices too. A slice is valid until the next one is asked for.

        `data`: the record batches of a fetch. `more`: fields to decode besides those of the subject
        rule. Each set of fields has a decoder of its own, so that a reader does not pay for fields
        that other readers want. `aborted`, `committed`: as in Decoder.decode. Finish one reading
        before the next one.
        """
        dictionary = self.dictionary(topic, partition)
        decoder = self._decoder(more)
        for piece in decoder.decode(data, position, stop=stop, aborted=aborted, committed=committed):
            if isinstance(piece, Malformed):
                yield piece
            else:
                codes = dictionary.encode(piece.buf, piece.at[: self._width], piece.size[: self._width])
                yield Addressed(piece, codes, dictionary, topic, partition)

    def _decoder(self, more: tuple[Field, ...]) -> Decoder:
        if more not in self._decoders:
            if len(self._decoders) > 16:  # consumers come and go, so sets of fields do too
                self._decoders.clear()
            plan = make_plan((*self._rule.fields, *more))
            self._decoders[more] = Decoder(plan, arena=self._arena, values=self._values)
        return self._decoders[more]
