"""Where everyone stands as a session begins: the state's positions as tracks, those of machines stepped back to one sequence.
No IO."""

from __future__ import annotations

from collections.abc import Mapping

from overlay.index.ledger.ledger import Ledger
from overlay.kafka.log_position import Mark, Source
from overlay.state.shard_state import ShardState
from overlay.worker.assignment import Roster

from .positions import Place, Positions


def open_positions(roster: Roster, state: ShardState, indexed: Mapping[Place, Mark]) -> Positions:
    """Where the roster's consumers stand, and where indexing goes on. A partition in which a consumer has no position yet is
    read from its start."""
    positions = Positions(ordered=frozenset(roster.ledgers))
    for stream, heads in roster.heads.items():
        positions.enlist_ledger(stream, heads)
    for consumer, reader in roster.readers.items():
        sources = roster.sources[consumer[0]].partitions
        marks = {source: state.mark_of(consumer, source) or Mark(roster.starts[source]) for source in sources}
        if reader.has_machine and consumer[0] in roster.ledgers:
            own = {source: mark for source, mark in state.consumers[consumer].own.items() if source in marks}
            marks = _step_back(marks, own, roster.ledgers[consumer[0]])
        # who keeps the ledger knows sequences before they are committed, and only transactions keep them to themselves
        careful = consumer[0] in roster.heads and reader.outlet is not None and not reader.outlet.transactional
        positions.enlist(consumer, state.consumers[consumer], marks, careful=careful)
    for place, mark in indexed.items():
        positions.enlist_index(place, mark)
    return positions


def _step_back(marks: Mapping[Source, Mark], own: Mapping[Source, Mark], ledger: Ledger) -> dict[Source, Mark]:
    """Have a consumer with a machine stand at one sequence in all partitions: that of the first message it is held at.

    Its hold says from where on something is missing in a partition of which something was offered. The others have been read
    to their ends, but by a filter that may be another now. What a machine has done with it is not given again.
    """
    if not own:
        return dict(marks)
    places = ledger.positions_at(min(ledger.sequence_from(source, mark.position) for source, mark in own.items()))
    return {s: Mark(at) if (at := places.get(s, mark.position)) < mark.position else mark for s, mark in marks.items()}
