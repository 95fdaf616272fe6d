"""How far the index of a partition reaches, and what its headers say of records without a subject."""

from __future__ import annotations

from overlay.index.skip.chunk_header import AddressCounts
from overlay.worker.round.indexing import Reach, Sealed

SOURCE = ("t", 0)


def test_a_header_that_is_written_again_takes_the_place_of_the_last() -> None:
    reach = Reach(3, 100, AddressCounts(90, 2, (50, 100)))
    reach.add(Sealed("S", SOURCE, 100, 110, 10, 0))
    assert (reach.chunks, reach.position, reach.addresses) == (4, 110, AddressCounts(100, 2, (50, 100)))
    reach.add(Sealed("S", SOURCE, 100, 130, 30, 5))
    assert (reach.chunks, reach.position, reach.addresses) == (4, 130, AddressCounts(120, 7, (100, 130)))
    reach.add(Sealed("S", SOURCE, 130, 140, 10, 1))
    assert (reach.chunks, reach.position, reach.addresses) == (5, 140, AddressCounts(130, 8, (130, 140)))
