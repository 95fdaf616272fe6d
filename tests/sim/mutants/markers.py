"""Parts of what the product does about transactions without their markers (overlay/output/lost_markers.py), and about state and
ledgers that have lost records, taken out one at a time."""

from __future__ import annotations

from .mutant import Change, Mutant

MENDED = "025c97d"

MARKERS = (
    Mutant(
        "open-state-not-ended",
        """Leave a transaction open in the state that has ended without its marker there. The state cannot be read behind it,
        and the shard has no owner any more.""",
        (
            Change(
                "overlay.state.takeover",
                "        await transactions.end_lost([(topic, shard)], encode(Delta()))\n",
                "",
            ),
        ),
        mend=MENDED,
        history="test_lost_markers.py::test_a_commit_whose_marker_the_state_alone_has_lost_is_no_second_delivery",
    ),
    Mutant(
        "open-outputs-not-ended",
        """Leave a transaction open in an output that has ended without its marker there. The next commit of the same producer
        shows its records, also if it was aborted.""",
        (
            Change("overlay.worker.shard", "        own = {*outputs, *(index_topic", "        own = {*(index_topic"),
            Change(
                "overlay.worker.shard",
                "        await transactions.end_lost(transactions.list_partitions(written - own))\n",
                "",
            ),
        ),
        mend=MENDED,
        history="test_lost_markers.py::test_an_abort_by_the_timeout_of_which_the_output_lost_the_marker_shows_nothing",
    ),
    Mutant(
        "open-transactions-aborted",
        """Abort what has lost its marker, however it was decided. If the state alone has lost it, what the output shows is
        delivered once more.""",
        (
            Change(
                "overlay.output.transaction",
                "            if outcome is Outcome.COMMITTED:\n                await",
                "            if False:\n                await",
            ),
        ),
        mend=MENDED,
        history="test_lost_markers.py::test_a_commit_whose_marker_the_state_alone_has_lost_is_no_second_delivery",
    ),
    Mutant(
        "leaders-not-waited-for",
        """Send InitProducerId while partitions of the open transaction have no leader. The markers of its abort are lost, and
        so is the decision.""",
        (
            Change(
                "overlay.output.transaction",
                "            if not leaderless:\n",
                "            if True:\n",
            ),
        ),
        mend=MENDED,
        history="test_lost_markers.py::test_init_producer_id_waits_for_the_leaders_of_what_it_would_abort",
    ),
    Mutant(
        "coordinator-that-loads-not-asked-again",
        """Send InitProducerId to a coordinator that could not tell yet how the last transaction was decided. It forgets that
        decision, and what has lost its marker cannot be ended.""",
        (
            Change(
                "overlay.output.transaction",
                "                await asyncio.sleep(sender._retry_backoff)\n                return False\n",
                "                last = LastTransaction(None)\n",
            ),
        ),
        mend="e792569",
        history="test_lost_markers.py::test_a_coordinator_that_still_loads_is_asked_again",
    ),
    Mutant(
        "open-ledgers-not-ended",
        """Read the ledger before the transaction is ended that has lost its marker in the index. It hides the end of the
        ledger, and the shard has no owner any more.""",
        (
            Change(
                "overlay.worker.shard",
                "        await self._end_lost(transactions, own)\n",
                "",
            ),
        ),
        history="test_lost_markers.py::test_a_ledger_whose_marker_was_lost_can_be_read_by_the_next_owner[index]",
    ),
    Mutant(
        "state-of-an-earlier-owner-committed",
        """Commit a state record that has lost its marker because the last transaction was committed, though the record is of an
        owner before that, and was aborted.""",
        (
            Change(
                "overlay.output.transaction",
                "found[self._state].epoch != self._last.epoch:\n",
                "False:\n",
            ),
        ),
        history="test_state_cut.py::test_a_state_record_of_an_earlier_owner_is_not_committed_as_the_last_one_was[True]",
    ),
    Mutant(
        "state-links-not-followed",
        """Apply all records of the state, also those that build on lost ones. Messages that the lost records had said to be
        delivered, and that wait for an ack, are forgotten.""",
        (
            Change(
                "overlay.state.takeover",
                "            if void := find_void(replay.links, bounds[0]):\n",
                "            if void := frozenset[int]():\n",
            ),
        ),
        history="test_state_cut.py::test_messages_that_wait_for_an_ack_come_again_after_a_loss[1]",
    ),
    Mutant(
        "loss-of-the-state-not-noticed",
        """Commit a state record although Kafka has put it below the end of those before it. The owner goes on, and all that it
        writes is void.""",
        (
            Change(
                "overlay.output.transaction",
                "            if (offset := offsets[len(batches)]) < after:\n",
                "            if (offset := offsets[len(batches)]) < 0:\n",
            ),
        ),
        history="test_state_cut.py::test_an_owner_that_notices_the_loss_goes_on_from_what_is_left",
    ),
    Mutant(
        "lost-end-of-a-ledger-not-noticed",
        """Open a ledger that ends below what the state says was given out. The lost sequences are given out once more, and name
        other records.""",
        (
            Change(
                "overlay.worker.kept.ledgers",
                "    if opening.is_kept and ledger.next_sequence < state.sequences.get(stream, 0):\n",
                "    if False:\n",
            ),
        ),
        history="test_index_cut.py::test_a_stream_stops_whose_ledger_has_lost_rounds[True]",
    ),
    Mutant(
        "gap-in-a-ledger-not-noticed",
        """Open a ledger that lacks rounds in its midst. The records that they numbered have no sequence, and consumers with
        acks are not given them.""",
        (
            Change(
                "overlay.index.topic",
                "            if self.gap is None and self.doubt < 0:\n",
                "            if False:\n",
            ),
        ),
        history="test_index_cut.py::test_a_stream_stops_whose_ledger_has_lost_rounds[False]",
    ),
)
