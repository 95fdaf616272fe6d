"""Mends of the project's history about shards that change hands, workers that end, and answers to what they produce."""

from __future__ import annotations

from .mutant import Change, Mutant

OWNERSHIP = (
    Mutant(
        "shards-taken-while-leaving",
        """A worker that is stopped in a rebalance starts the shards that this rebalance gives it, and does not end:
        nothing stops them again.""",
        (
            Change(
                "overlay.worker.membership",
                "            # a rebalance under way may still assign shards, which would then run forever\n"
                "            self._take = None\n",
                "",
            ),
        ),
        mend="d1717c6",
    ),
    Mutant(
        "stop-waits-for-the-rebalance",
        """A worker looks at its stop signal between two polls of the group only. A poll does not return within a
        rebalance, and a rebalance does not end while Kafka is away.""",
        (
            Change(
                "overlay.worker.membership",
                "                if await unless(stop, self._poll()):\n                    await _wait(stop, POLL_S)\n",
                "                await self._poll()\n                await _wait(stop, POLL_S)\n",
            ),
        ),
        mend="e4daa89",
        history="test_host.py::test_a_worker_stops_while_kafka_is_away",
    ),
    Mutant(
        "leave-without-a-limit",
        """A worker that ends waits until the coordinator of its group has answered that it leaves.""",
        (
            Change(
                "overlay.worker.membership",
                "            async with asyncio.timeout(LEAVE_S):\n",
                "            async with asyncio.timeout(None):\n",
            ),
        ),
        mend="1c5eeb3",
        history="test_shards.py::test_a_coordinator_that_does_not_answer_holds_up_no_end",
    ),
    Mutant(
        "partitions-known-for-five-minutes",
        """The member that leads the group asks for the state topic's partitions every five minutes. If its first
        question is lost, no worker is given a shard until then.""",
        (Change("overlay.worker.membership", "METADATA_MS = 5_000\n", "METADATA_MS = 300_000\n"),),
        mend="0f48a6b",
        history="test_host.py::test_a_worker_that_joined_while_kafka_restarted_serves_soon",
    ),
    Mutant(
        "generations-only-rise",
        """Leave a shard alone whose state is of a newer generation of the group than ours. Kafka forgets a group
        without members, and the next one counts from 1 again.""",
        (
            Change(
                "overlay.state.takeover",
                "        if generation is None:\n",
                "        if generation is None or generation < state.generation:\n",
            ),
        ),
        mend="c6eb39a",
    ),
    Mutant(
        "producer-stopped-without-a-limit",
        """After an error wait until the producer has stopped by itself. Its connections wait until their bytes are sent, and a
        broker whose host is gone takes none.""",
        (
            Change(
                "overlay.output.transaction",
                "            await asyncio.wait((stopping,), timeout=STOP_S)\n",
                "            await asyncio.wait((stopping,))\n",
            ),
        ),
        mend="a082a18",
        history="test_shards.py::test_a_broker_that_takes_no_bytes_holds_up_no_session",
    ),
    Mutant(
        "cancelled-shard-ends-in-silence",
        """A shard ends without a word when another task has cancelled one of its own, and no worker serves it.""",
        (
            Change(
                "overlay.worker.shard",
                "                if is_cancelled():\n                    raise\n",
                "                raise\n",
            ),
        ),
        mend="b7452d1",
        history="test_shards.py::test_a_task_that_another_one_cancels_ends_a_session_alone",
    ),
    Mutant(
        "unforeseen-error-ends-the-worker",
        """An error that is none of those foreseen ends the worker with all its shards.""",
        (
            Change(
                "overlay.worker.shard",
                "            except Exception as error:\n                # unreadable state",
                "            except Exception as error:\n                raise\n                # unreadable state",
            ),
        ),
        mend="f289270",
        history="test_shards.py::test_an_unforeseen_error_ends_a_session_alone",
    ),
    Mutant(
        "state-read-once",
        """Give up a shard whose state is trimmed while it is read, instead of reading it again.""",
        (Change("overlay.state.takeover", "READS = 5\n", "READS = 1\n"),),
        mend="9e17ff8",
        history="test_trimmed_states.py::test_a_state_that_is_trimmed_while_it_is_read_is_read_again_at_once",
    ),
    Mutant(
        "head-held-for-nothing",
        """Have the cursor that gives out sequences sit a round out for any cursor of the index that has data, also for one
        that does not move in this round. Then it may never go on.""",
        (
            Change(
                "overlay.worker.cursors.order",
                "            if stop > cursor.position:\n"
                "                if stop == head.position:\n"
                "                    held.add(source)\n",
                "            if stop == head.position:\n"
                "                held.add(source)\n"
                "            if stop > cursor.position:\n",
            ),
        ),
        mend="e4a7ad8",
        history="test_ledger_retention.py::test_an_index_that_retention_moves_ahead_of_the_ledger_does_not_hold_it_up",
    ),
    Mutant(
        "requests-decided-by-a-former-owner",
        """Decide requests without asking the group whether the shard is still assigned to this worker. One whose heartbeats
        hang fences the owner's journal, and answers for a shard that it does not serve.""",
        (
            Change(
                "overlay.control.shard_journals",
                "        if not await self.host.is_owner(shard):\n",
                "        if False:\n",
            ),
        ),
        history="test_former_owners.py::test_a_worker_whose_heartbeats_hang_fences_no_journal",
    ),
    Mutant(
        "states-dropped-by-a-former-owner",
        """Drop the state of a deleted consumer without asking the group whether the shard is still assigned to this worker.
        Its new owner may serve another consumer by the same name.""",
        (
            Change(
                "overlay.worker.shard_manager",
                "            if await self.membership.confirm(number) is None:\n",
                "            if False:\n",
            ),
        ),
        history="test_former_owners.py::test_a_worker_that_slept_while_it_dropped_a_state_leaves_the_state_of_a_namesake_alone[config0-shard_manager.amend]",
    ),
    Mutant(
        "shards-taken-that-were-given-up",
        """Serve exactly the shards of an assignment once the control topic is read, also if the group has dealt them out anew
        meanwhile. A shard that is ours again is given up, and taken over once more.""",
        (
            Change(
                "overlay.worker.shard_manager",
                "            if not self.membership.is_assigned(numbers):\n",
                "            if False:\n",
            ),
        ),
        mend="57b86e9",
        history="test_moving_shards.py::test_a_shard_that_comes_back_before_it_is_given_up_runs_on",
    ),
    Mutant(
        "duplicate-counts-without-its-offset",
        """Count a batch as taken at offset -1 if the broker has it already and does not say where. If it is a checkpoint, all
        state of the shard is deleted: Kafka takes -1 for the end of the log.""",
        (
            Change(
                "overlay.output.produce",
                "(error is kafka_errors.DuplicateSequenceNumber and offset >= 0)\n",
                "error is kafka_errors.DuplicateSequenceNumber\n",
            ),
            Change(
                "overlay.kafka.admin",
                "        if before < 0:\n",
                "        if False:\n",
            ),
        ),
        mend="126791c",
        history="test_answers.py::test_a_duplicate_of_unknown_offset_deletes_no_state",
    ),
    Mutant(
        "abort-before-the-answers",
        """Abort a transaction while a batch of it has no answer. A broker that does not verify transactions takes the batch
        later, and the next commit makes it visible.""",
        (
            Change(
                "overlay.output.transaction",
                "        if not await self._produce.settle(ANSWERS_S):\n",
                "        if False:\n",
            ),
        ),
        mend="126791c",
        history="test_answers.py::test_a_batch_that_arrives_after_the_abort_is_not_committed",
    ),
)
