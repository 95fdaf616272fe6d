"""Initial positions of a session: the positions of the state as cursors, without IO.

In a stream with a ledger, a consumer with a machine and positions of its own steps back to one
sequence in all partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from overlay.kafka.log_position import LogPosition
from overlay.state.shard_state import ShardState, StreamPartition
from overlay.worker.assignment import Assignment

from .cursors import Cursors
from .order import step_back
from .skip_route import Routes


def open_cursors(assignment: Assignment, state: ShardState, indexed: Mapping[StreamPartition, LogPosition]) -> Cursors:
    """Return a session's cursors. Consumers at one position of a partition share a cursor. They begin where the state
    says, or at the partition's log start if it has no position.

    In a stream with a ledger, a consumer with a machine and positions of its own steps back to one sequence in all
    partitions. Ledgers that are kept here begin at `assignment.heads`, indexes at `indexed`. `state` must have every
    consumer of the assignment: apply the delta of `enlist` before.
    """
    routes = Routes(assignment.streams, assignment.indexes, assignment.readers)
    cursors = Cursors(assignment.readers, assignment.ledgers, routes)
    for stream, heads in assignment.heads.items():
        cursors.enlist_ledger(stream, heads)
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
            log_positions = step_back(log_positions, own, assignment.ledgers[consumer[0]])
        # the shard that keeps the ledger knows sequences before they are committed; a transaction
        # hides them until then, a plain send does not
        careful = (
            consumer[0] in assignment.heads
            and reader.output_topic is not None
            and not reader.output_topic.transactional
        )
        cursors.enlist(consumer, state.consumers[consumer], log_positions, careful=careful)
    for partition, log_position in indexed.items():
        cursors.enlist_index(partition, log_position)
    return cursors
