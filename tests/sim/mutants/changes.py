"""Faults in how a running session takes up changes of its consumers."""

from __future__ import annotations

from .mutant import Change, Mutant

CHANGES = (
    Mutant(
        "new-consumer-waits-for-its-neighbours",
        """Have a new consumer join the foremost cursor of a partition however far that is behind the consumer's beginning. It
        is given nothing until that has caught up.""",
        (
            Change(
                "overlay.worker.cursors.cursors",
                "if tail is not None and 0 < log_position.position - tail.position <= MOST_BEHIND:\n",
                "if tail is not None and tail.position < log_position.position:\n",
            ),
        ),
        history="test_changes.py::test_a_new_consumer_beside_neighbours_that_are_behind[5-False]",
    ),
    Mutant(
        "new-consumer-is-given-older-records",
        """Have a new consumer join a cursor that is a little behind its beginning, and forget where it begins.""",
        (
            Change(
                "overlay.worker.cursors.cursors",
                "own[source], floor[source] = tail.log_position, max(log_position.position, floor.get(source, 0))\n",
                "own[source] = tail.log_position\n",
            ),
        ),
        history="test_changes.py::test_a_new_consumer_beside_neighbours_that_are_behind[1000-True]",
    ),
    Mutant(
        "moved-consumer-numbers-anew",
        """Have a session's deliveries go on after the consumer sequences that it began with, for a consumer that
        delivers to another topic while the session runs. Its sequences go back.""",
        (
            Change(
                "overlay.worker.round.pipeline",
                "        self._deliveries = Deliveries(dict(sequences), self._sequencing)\n\n    @property\n",
                "\n    @property\n",
            ),
        ),
        history="test_changes.py::test_a_consumer_that_delivers_elsewhere_goes_on_with_its_sequence",
    ),
    Mutant(
        "old-filter-goes-on",
        """Keep the readers of a cursor as the pipeline sees them as long as its consumers are the same, though one of them
        wants something else now. It is given what its former filter wants.""",
        (
            Change(
                "overlay.worker.cursors.cursors",
                "        self._intake.forget_readerships()\n        # also what an earlier",
                "        # also what an earlier",
            ),
        ),
        history="test_changes.py::test_a_consumer_that_comes_changes_and_goes_pauses_no_neighbour[out-c]",
    ),
    Mutant(
        "answered-once-read-back",
        """Answer an update once the control topic was read up to it. The session has not taken it up yet: the consumer is
        served with its old filter, and records that follow the answer pass it by.""",
        (
            Change(
                "overlay.control.answering",
                "        if self.taken_up() < written:\n            return False\n        is_served",
                "        if self.journals.tail.seen < written:\n            return False\n        is_served",
            ),
        ),
        history="test_changes.py::test_an_update_is_answered_when_it_is_in_effect",
    ),
    Mutant(
        "change-lost-with-its-session",
        """Take a change for committed whose session ends before its commit. A deleted consumer stays in the state.""",
        (
            Change(
                "overlay.worker.change_queue",
                "            if not taken.done():\n                taken.set_result(False)\n",
                "            if not taken.done():\n                taken.set_result(True)\n",
            ),
        ),
        history="test_changes.py::test_a_session_that_ends_while_it_takes_a_change_up[_change-False]",
    ),
    Mutant(
        "left-output-is-watched",
        """Have a session need an output that no consumer delivers to any more. It ends when that is deleted.""",
        (
            Change(
                "overlay.worker.change_queue",
                "        for topic in change.unused:\n            self.assignment.outputs.pop(topic, None)\n",
                "",
            ),
        ),
        history="test_changes.py::test_an_output_that_was_left_may_be_deleted",
    ),
    Mutant(
        "unknown-to-the-client",
        """Have a session read for a new consumer in a topic whose metadata its client never asks for.""",
        (
            Change(
                "overlay.worker.change_setup",
                "        await session.client.add_topic(topic)\n",
                "        pass\n",
            ),
        ),
        history="test_changes.py::test_a_consumer_of_a_stream_in_which_its_session_has_not_read",
    ),
    Mutant(
        "checkpoint-forgets-to-forget",
        """Write a checkpoint in place of a record that forgets a consumer. The records of its machine stay in force, and one
        that is made again under its name goes on with them.""",
        (
            Change(
                "overlay.worker.commit.commits",
                "replace(self.state.checkpoint(), forgotten=delta.forgotten) if checkpoint else delta\n",
                "self.state.checkpoint() if checkpoint else delta\n",
            ),
        ),
        history="test_deleted.py::test_a_machine_that_a_checkpoint_forgets_does_not_come_back",
    ),
    Mutant(
        "deleted-in-memory-alone",
        """Serve a deleted consumer no more, and leave what the state knows of it. One that is made again under its name goes on
        where it stood.""",
        (
            Change(
                "overlay.worker.change_queue",
                "        return forgotten.merge(delta)\n",
                "        return delta\n",
            ),
        ),
        history="test_changes.py::test_a_consumer_that_is_made_again_begins_at_the_beginning",
    ),
    Mutant(
        "offers-of-the-former-filter-lost",
        """Drop what a machine was offered when its filter changes, and read on behind it. What it was offered and had not
        delivered is never offered to it again.""",
        (
            Change(
                "overlay.worker.change_queue",
                "                moved = self.cursors.rewind(id)\n",
                "                moved = Moved(set(), set())\n",
            ),
        ),
        history="test_machine_changes.py::test_another_filter_begins_with_what_is_not_delivered[1]",
    ),
    Mutant(
        "deleted-machine-runs-on",
        """Forget a deleted consumer, and leave its machine with the dispatcher. What that records comes behind the unit that
        forgets it.""",
        (
            Change(
                "overlay.worker.change_queue",
                "for id in change.step.removed if id in change.step.with_machines]\n",
                "for id in change.step.removed if False]\n",
            ),
        ),
        history="test_machine_changes.py::test_a_consumer_that_comes_changes_and_goes_pauses_no_neighbour[1]",
    ),
    Mutant(
        "namesake-takes-former-acks",
        """Name the incarnation of a consumer that comes while the session runs after its shard's owner alone. One that is made
        again under its name has the same, and acks of the former one's deliveries settle its messages.""",
        (Change("overlay.worker.dispatch_setup", 'f"{owner}-{draw_secret()}"', 'f"{owner}-{config.id[1]}"'),),
        history="test_machine_changes.py::test_a_namesake_is_another_consumer[0]",
    ),
    Mutant(
        "pulls-of-a-deleted-consumer-wait",
        """Take the machine of a deleted consumer away without a word. Clients with open pull requests wait until these run
        out.""",
        (
            Change(
                "overlay.dispatch.dispatcher",
                "        for event in (*said, Deleted()):\n",
                "        for event in said:\n",
            ),
        ),
        history="test_machine_changes.py::test_a_pull_consumer_is_deleted_with_requests_that_wait",
    ),
    Mutant(
        "rounds-wait-for-steps",
        """Have the reading loop wait for the dispatcher's step before it takes a change up. Neighbours without machines are
        given nothing while a step reads records again.""",
        (
            Change(
                "overlay.worker.change_queue",
                "                last = self._dismiss_machines(change)\n",
                "                while self.dispatch_loop is not None and self.dispatch_loop.between_steps.locked():\n"
                "                    queued.is_looked_at.set()\n"
                "                    await asyncio.sleep(0.01)\n"
                "                last = self._dismiss_machines(change)\n",
            ),
        ),
        history="test_machine_changes.py::test_a_step_that_takes_long_holds_up_its_machines_alone",
    ),
)
