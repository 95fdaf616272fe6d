"""Faults that were never in the product: in fencing, in what one transaction holds, in log positions and in offsets."""

from __future__ import annotations

from .mutant import Change, Mutant

PLANTED = (
    Mutant(
        "owner-not-fenced",
        """Give every ownership of a shard a transactional id of its own. Then InitProducerId fences no former owner,
        and one that was frozen while its shard moved commits what the new owner has delivered already.""",
        (
            Change(
                "overlay.kafka.own_topics",
                '    return f"{prefix}.shard.{shard}"\n',
                '    from overlay.chance import draw_id\n\n    return f"{prefix}.shard.{shard}.{draw_id()}"\n',
            ),
        ),
    ),
    Mutant(
        "state-read-before-fencing",
        """Read a shard's state before InitProducerId instead of after it. What the former owner commits in between is
        delivered again.""",
        (
            Change(
                "overlay.state.takeover",
                "    await transactions.start([topic])\n    try:\n"
                "        await transactions.end_lost([(topic, shard)], encode(Delta()))\n"
                "        state, count = await read_state(client, admin, topic, shard)\n",
                "    state, count = await read_state(client, admin, topic, shard)\n"
                "    await transactions.start([topic])\n    try:\n"
                "        await transactions.end_lost([(topic, shard)], encode(Delta()))\n",
            ),
        ),
    ),
    Mutant(
        "state-cut-short",
        """Read a shard's state only up to the record before its last one. The next owner begins where the last
        transaction but one left off, and delivers what the last one held once more.""",
        (
            Change(
                "overlay.state.takeover",
                "read_records(client, topic, shard, *bounds, plain=plain):",
                "read_records(client, topic, shard, bounds[0], max(bounds[0], bounds[1] - 2), plain=plain):",
            ),
        ),
    ),
    Mutant(
        "state-in-a-transaction-of-its-own",
        """Commit the output and the state that accounts for it in two transactions. A worker that is killed between
        them has its last records delivered again.""",
        (
            Change(
                "overlay.output.transaction",
                "        offsets = await self._commit([*batches, *records], check)\n",
                "        offsets = await self.commit(batches)\n        offsets += await self.write(records)\n",
            ),
        ),
    ),
    Mutant(
        "checkpoint-deleted",
        """Delete the state below the record behind a checkpoint, and with it the checkpoint. A shard that moves before
        anything else is delivered has forgotten where its consumers stood.""",
        (Change("overlay.worker.commit.commits", "self._forget_below(offset)\n", "self._forget_below(offset + 1)\n"),),
    ),
    Mutant(
        "earlier-cursor-wins",
        """When several rounds go into one transaction, have the cursor of the first of them count instead of that of
        the last. After a restart the rest of that transaction is delivered again.""",
        (
            Change(
                "overlay.state.shard_state",
                "            {**_without(later.reset, self.cursors), **later.cursors},\n",
                "            {**later.cursors, **_without(later.reset, self.cursors)},\n",
            ),
        ),
    ),
    Mutant(
        "cursor-ahead-of-its-round",
        """Write the position of a round with the transaction before it, as if the positions in memory were committed. A
        worker that is killed between the two leaves out the round.""",
        (
            Change(
                "overlay.worker.commit.commits",
                "        self._queued += queued.size\n",
                "        self._queued += queued.size\n        self.state.cursors.update(unit.delta.cursors)\n",
            ),
            Change(
                "overlay.worker.commit.commits",
                "written = replace(self.state.checkpoint(), forgotten=delta.forgotten) if checkpoint else delta\n",
                "written = Delta(dict(self.state.cursors)).merge(self.state.checkpoint() if checkpoint else delta)\n"
                "        written.cursors.update(self.state.cursors)\n",
            ),
        ),
    ),
    Mutant(
        "aborted-records-delivered",
        """Forget which transactions of a fetch response were aborted, and deliver their records.""",
        (
            Change(
                "overlay.kafka.fetcher",
                "        pairs = np.array(aborted, np.int64).reshape(-1, 2) if aborted else NO_ABORTS\n",
                "        pairs = NO_ABORTS\n",
            ),
        ),
    ),
    Mutant(
        "retry-with-new-numbers",
        """Send a batch whose answer was lost with the next sequence number of the partition instead of the one it had.
        The broker cannot tell that it has the batch already.""",
        (
            Change(
                "overlay.output.produce",
                "        if queue.sent == 0:  # those behind it have been answered as well\n",
                "        if queue.sent == 0:\n"
                "            numbers = self._producer._txn_manager\n"
                "            for batch in queue.batches:\n"
                "                at = numbers.sequence_number(queue.tp)\n"
                "                batch.data = batch.outgoing.batch.build(numbers.producer_id, numbers.producer_epoch, at)\n"
                "                numbers.increment_sequence_number(queue.tp, batch.outgoing.batch.count)\n",
            ),
        ),
    ),
    Mutant(
        "late-batch-forgotten",
        """Commit a transaction although Kafka has not taken one of its batches in time.""",
        (
            Change(
                "overlay.output.produce",
                "        if late:\n",
                "        if late and len(late) < len(queued):\n"
                "            return [-1 if batch.taken in late else batch.taken.result() for batch in queued]\n"
                "        if late:\n",
            ),
        ),
    ),
    Mutant(
        "absent-consumer-follows-the-cursor",
        """Give a consumer that is left out, since its output refuses, no position of its own. The cursor moves on
        without it, and it is never given what it has missed.""",
        (Change("overlay.worker.assignment", "    delta.consumers.update(_pin_absent(state, assignment))\n", ""),),
        history="test_acks_passed_over.py::test_acks_for_a_consumer_that_is_away_count_when_it_is_back",
    ),
    Mutant(
        "ledger-round-apart",
        """Commit a round of the ledger, which gives out stream sequences, with the transaction behind that of its
        deliveries. A worker that is killed between them has told of sequences that are given to other records then.""",
        (
            Change(
                "overlay.worker.commit.commits",
                "        return [*(outgoing for _, outgoing in self.owned), *self.ledger, *self.index]\n",
                "        return [*(outgoing for _, outgoing in self.owned), *self.index]\n",
            ),
        ),
    ),
    Mutant(
        "consumer-sequence-not-kept",
        """Remember the last consumer sequence as it was when the session began. The next owner gives out the same ones
        again.""",
        (
            Change(
                "overlay.worker.cursors.cursors",
                "            self._standings[consumer].sequence = sequence\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "twice-as-many-pending",
        """Let twice max_ack_pending messages wait for their acks before new ones are held back.""",
        (
            Change(
                "overlay.consumer.window",
                "        return max(most - self.pending.count + freed, 0)\n",
                "        return max(2 * most - self.pending.count + freed, 0)\n",
            ),
        ),
    ),
)
