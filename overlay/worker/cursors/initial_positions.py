"""Where everyone stands as a session begins: the state's positions as cursors, those of machines stepped back to one sequence.
No IO."""

from __future__ import annotations

from collections.abc import Mapping

from overlay.index.ledger.ledger import Ledger
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.state.shard_state import ShardState
from overlay.worker.assignment import Assignment

from .positions import Place, Positions


def open_positions(assignment: Assignment, state: ShardState, indexed: Mapping[Place, LogPosition]) -> Positions:
    """Where the assignment's consumers stand, and where indexing goes on. A partition in which a consumer has no
    position yet is read from its start."""
    positions = Positions(ordered=frozenset(assignment.ledgers))
    for stream, heads in assignment.heads.items():
        positions.enlist_ledger(stream, heads)
    for consumer, reader in assignment.readers.items():
        sources = assignment.sources[consumer[0]].partitions
        log_positions = {
            source: state.log_position_of(consumer, source) or LogPosition(assignment.starts[source])
            for source in sources
        }
        if reader.has_machine and consumer[0] in assignment.ledgers:
            own = {
                source: log_position
                for source, log_position in state.consumers[consumer].own.items()
                if source in log_positions
            }
            log_positions = _step_back(log_positions, own, assignment.ledgers[consumer[0]])
        # who keeps the ledger knows sequences before they are committed, and only transactions keep them to themselves
        careful = (
            consumer[0] in assignment.heads
            and reader.output_topic is not None
            and not reader.output_topic.transactional
        )
        positions.enlist(consumer, state.consumers[consumer], log_positions, careful=careful)
    for place, log_position in indexed.items():
        positions.enlist_index(place, log_position)
    return positions


def _step_back(
    log_positions: Mapping[TopicPartition, LogPosition], own: Mapping[TopicPartition, LogPosition], ledger: Ledger
) -> dict[TopicPartition, LogPosition]:
    """Have a consumer with a machine stand at one sequence in all partitions: that of the first message it is held at.

    Its hold says from where on something is missing in a partition of which something was offered. The others have been read
    to their ends, but by a filter that may be another now. What a machine has done with it is not given again.
    """
    if not own:
        return dict(log_positions)
    places = ledger.positions_at(
        min(ledger.sequence_from(source, log_position.position) for source, log_position in own.items())
    )
    return {
        s: LogPosition(at) if (at := places.get(s, log_position.position)) < log_position.position else log_position
        for s, log_position in log_positions.items()
    }
