"""Steps 2 and 3 for one stream: fetched bytes become slices of records with the codes of their subjects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from overlay.field import Field, FieldKind
from overlay.scan import Decoder, Malformed, Records, make_plan
from overlay.scan.commit import NO_ABORTS, Aborted
from overlay.scan.decode import NO_STOP
from overlay.scan.header import Bytes
from overlay.subject import Matcher, Pattern, SubjectRule
from overlay.subject.dictionary import REASONS, Codes, Dictionary


@dataclass(frozen=True, slots=True)
class Addressed:
    """A slice and the subject code of each of its records, codes of `dictionary`. Valid until the next slice."""

    records: Records
    codes: Codes
    dictionary: Dictionary

    def count_unaddressed(self) -> dict[str, int]:
        """Records without a subject in the stream, by reason."""
        lost = self.codes[self.codes < 0]
        counts = np.bincount(-1 - lost, minlength=len(REASONS)) if lost.size else ()
        return {reason.value: int(n) for reason, n in zip(REASONS, counts, strict=False) if n}


class Addressing:
    """Decodes and addresses the records of one stream. Not for two threads at once.

    `subjects`: what belongs to the stream. `more`: fields wanted beside those of the rule; they follow them in `at`.
    """

    def __init__(self, rule: SubjectRule, subjects: Sequence[Pattern], more: Iterable[Field] = ()) -> None:
        self._rule = rule
        self._width = len(rule.fields)
        self._decoder = Decoder(make_plan((*rule.fields, *more)))
        self._stream = Matcher([(pattern, 0) for pattern in subjects])
        self._by_partition = any(isinstance(p, Field) and p.kind is FieldKind.PARTITION for p in rule.template)
        self._dictionaries: dict[tuple[str, int], Dictionary] = {}

    def dictionary(self, topic: str, partition: int) -> Dictionary:
        """The dictionary of a topic; one for each partition where the rule names the partition."""
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
        stop: int = NO_STOP,
        aborted: Aborted = NO_ABORTS,
        committed: bool = True,
    ) -> Iterator[Addressed | Malformed]:
        """Slices of the records with position <= offset < stop; see Decoder.decode."""
        dictionary = self.dictionary(topic, partition)
        for piece in self._decoder.decode(data, position, stop=stop, aborted=aborted, committed=committed):
            if isinstance(piece, Malformed):
                yield piece
            else:
                codes = dictionary.encode(piece.buf, piece.at[: self._width], piece.size[: self._width])
                yield Addressed(piece, codes, dictionary)
