"""Parts of what the product does about transactions without their markers (overlay/output/lost_markers.py), and about state and
ledgers that have lost records, taken out one at a time."""

from __future__ import annotations

from .mutant import Change, Mutant

MENDED = "025c97d"
NOT_COMPLETED = (
    Change(
        "overlay.output.transaction",
        "        while found := await self._markers.await_told({self._state}, deadline):\n",
        "        while found := dict[TopicPartition, OpenTransaction]():\n",
    ),
    Change("overlay.output.transaction", "        if self._state in self._markers.unseen:\n", "        if False:\n"),
)
"""The next transaction begins without a look at the markers of the last one."""
ADDED = Change("overlay.output.transaction", "        if self._markers.unseen and ", "        if False and ")
"""The next transaction takes in partitions that have not told whether they have these markers."""

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
                "            if outcome is Outcome.ABORTED:\n                await",
                "            if True:\n                await",
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
        (Change("overlay.output.lost_markers", "and opened.epoch != self.epoch:\n", "and False:\n"),),
        history="test_state_cut.py::test_a_state_record_of_an_earlier_owner_is_not_committed_as_the_last_one_was[True]",
    ),
    Mutant(
        "earlier-commit-ended-as-the-last-transaction",
        """Abort an output's open transaction since the last one did not end, though that one has no records there, and the open
        one was committed before. Its deliveries are lost.""",
        (Change("overlay.output.lost_markers", "        if self.is_ongoing and ", "        if False and "),),
        history="test_earlier_markers.py::test_a_commit_that_a_later_transaction_follows_elsewhere_is_completed",
    ),
    Mutant(
        "own-lost-marker-not-looked-for",
        """Leave an own transaction open that has lost its marker in a partition to which nothing more is written, until the
        next owner takes the shard over.""",
        NOT_COMPLETED,
        history="test_earlier_markers.py::test_a_worker_completes_its_own_commit_whose_marker_was_lost",
    ),
    Mutant(
        "own-lost-marker-ended-with-the-next",
        """Write to partitions in which the last transaction has lost its marker, without completing it. If the next one is
        aborted, so is the one that was committed.""",
        (*NOT_COMPLETED, ADDED),
        history="test_own_markers.py::test_a_commit_is_kept_whatever_becomes_of_the_next_transaction[output-left]",
    ),
    Mutant(
        "partition-that-does-not-tell-written-to",
        """Write to a partition that does not say whether the last transaction is open there. If it is, and the next one is
        aborted, so is the one that was committed.""",
        (ADDED,),
        history="test_own_markers.py::test_a_partition_that_does_not_tell_is_written_to_when_it_has_its_marker[True]",
    ),
    Mutant(
        "partition-that-is-not-known-yet-taken-for-gone",
        """Take a partition for gone at the first answer that says so, though a leader that has just started does not know it
        yet. If a commit has lost its marker there, and the next transaction is aborted, so is the commit.""",
        (Change("overlay.output.own_markers", "if now - self._gone[tp] >= GONE_S", "if now >= self._gone[tp]"),),
        history="test_own_markers.py::test_a_partition_that_a_broker_does_not_know_yet_is_asked_on",
    ),
    Mutant(
        "aborted-beside-a-partition-that-does-not-tell",
        """Abort a transaction while another partition may have a committed one open. The new owner finds that open, and takes
        it for a part of the aborted one.""",
        (Change("overlay.output.transaction", "        if self._markers.unseen:\n", "        if False:\n"),),
        history="test_own_markers.py::test_a_commit_is_kept_beside_a_transaction_elsewhere[aborted]",
    ),
    Mutant(
        "ending-of-the-former-owner-not-kept",
        """Do not write down how the last transaction of the former owner was decided. An output that tells only a later owner
        what is open there loses what was committed.""",
        (
            Change(
                "overlay.state.takeover", "add(state.endings, transactions.find_ending())", "add(state.endings, None)"
            ),
        ),
        history="test_endings.py::test_a_commit_is_kept_that_an_owner_in_between_could_not_see",
    ),
    Mutant(
        "command-that-does-not-keep-endings",
        """Have an operator's command change the state without writing down how the last transaction before it was decided. An
        output that has open what was aborted shows it with the next commit.""",
        (Change("overlay.state.amend", "state.sign().merge(", "Delta(generation=state.generation).merge("),),
        history="test_endings.py::test_an_abort_is_not_shown_after_an_owner_that_writes_no_outputs",
    ),
    Mutant(
        "state-that-does-not-tell-taken-for-settled",
        """Go on as if nothing were open in the state while its leader does not tell. What was open there ends as the next
        transaction does, also if it was aborted.""",
        (
            Change(
                "overlay.output.transaction",
                "        if (reason := found.unknown.get(self._state)) is not None:\n",
                '        if reason := "":\n',
            ),
        ),
        history="test_lost_markers.py::test_a_leader_of_the_state_that_does_not_answer_is_said",
    ),
    Mutant(
        "control-topic-held-up",
        """Do nothing about an open transaction in the control topic behind which requests wait. Its journal waits as well, and
        no worker sees the requests.""",
        (Change("overlay.control.serve", "        await self._end_held_up()\n", ""),),
        history="test_control_held_up.py::test_requests_behind_a_lost_marker_are_answered[False]",
    ),
    Mutant(
        "control-topic-read-without-a-stop",
        """Wait for records up to the end that the control topic had when its reading began, though compaction and an unclean
        election have left none there.""",
        (Change("overlay.control.tail", "                self._partition_fetch.is_compacted = True\n", ""),),
        history="test_control_held_up.py::test_a_worker_starts_although_nothing_is_left_below_the_end_of_the_control_topic",
    ),
    Mutant(
        "floors-above-the-log",
        """Keep the floor of a consumer that begins at the end of its stream where the log ended before it lost that end. New
        records below it are not delivered.""",
        (
            Change(
                "overlay.worker.assignment",
                "floor=known.floor if is_ahead else limit(known.floor))",
                "floor=known.floor)",
            ),
        ),
        history="test_new.py::test_records_in_the_place_of_lost_ones_are_new[False-1]",
    ),
    Mutant(
        "state-links-not-followed",
        """Apply all records of the state, also those that build on lost ones. Messages that the lost records had said to be
        delivered, and that wait for an ack, are forgotten.""",
        (
            Change(
                "overlay.state.takeover",
                "    if void := find_void(replay.links, bounds[0]):\n",
                "    if void := frozenset[int]():\n",
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
