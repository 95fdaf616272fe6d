"""Mends of the project's history about requests: to create and delete consumers, and for messages."""

from __future__ import annotations

from .mutant import Change, Mutant

REQUESTS = (
    Mutant(
        "create-outlives-its-deletion",
        """Leave a create without an answer when its consumer is deleted. The request stays in the control topic, and the next
        owner of the shard creates the consumer once more.""",
        (
            Change(
                "overlay.control.serve",
                "self._sort(id for id in self.registry.find_deleted() if id not in busy)",
                "self._sort(self.registry.find_deleted())",
            ),
            Change(
                "overlay.control.serve",
                "            elif request.op in (Op.CREATE, Op.UPDATE) and at < max(deletes, default=0):\n",
                "            elif False:\n",
            ),
            Change(
                "overlay.control.answering",
                "        return is_served or id not in self.registry.effective().consumers\n",
                "        return is_served\n",
            ),
        ),
        mend="dc6956a",
        history="test_deleted.py::test_a_create_that_is_not_answered_yet_does_not_undo_a_delete",
    ),
    Mutant(
        "control-topic-that-has-grown-again-is-read-on",
        """Believe that retention has moved the start of a control topic that did not have the position, if the topic is long
        enough by the time its bounds are asked for. It lost its end and has grown again, and what was lost counts still.""",
        (
            Change(
                "overlay.control.tail",
                "                if start <= self.seen or end < max(self.seen, self._again_to):\n",
                "                if end < max(self.seen, self._again_to):\n",
            ),
        ),
        history="test_control_cut.py::test_a_lost_definition_does_not_count_for_a_worker_that_slept",
    ),
    Mutant(
        "another-ack-policy-taken-up",
        """Take a file's ack policy up without asking the state, though the control topic has lost what the file said.""",
        (
            Change(
                "overlay.worker.assignment",
                "if policy != mine[id].ack_policy}\n",
                "if False}\n",
            ),
        ),
        history="test_control_cut.py::test_another_ack_policy_is_not_taken_up_after_a_loss",
    ),
    Mutant(
        "holes-in-the-control-topic-passed-over",
        """Read the control topic on where compaction has taken records. A worker that slept for longer than tombstones stay
        keeps a consumer that was deleted meanwhile.""",
        (
            Change(
                "overlay.control.tail",
                "            case Fetched() if has_hole(taken, self._again_to if self.is_behind else 0):\n"
                '                await self.read_anew("records were compacted away before they were read")\n',
                "",
            ),
        ),
        mend="dc6956a",
        history="test_deleted.py::test_a_worker_that_slept_while_a_deletion_was_compacted_away_forgets_the_consumer",
    ),
    Mutant(
        "new-begins-when-first-served",
        """Begin a consumer with `deliver_policy: new` where the log ends when it is first served. It is not given what was
        written between its creation and then.""",
        (
            Change(
                "overlay.worker.assignment",
                "config, loaded.ends.get(config.id), bounds, state, assignment, delta)\n",
                "config, None, bounds, state, assignment, delta)\n",
            ),
        ),
        mend="e273fcc",
        history="test_new.py::test_a_consumer_that_is_served_late_begins_where_it_was_created",
    ),
    Mutant(
        "answers-without-a-correlation",
        """Answer a request that names a reply topic and no correlation without one. A client that shares its topic with
        others cannot tell which messages it has pulled, and acks none.""",
        (
            Change(
                "overlay.replies.reply_address",
                "Address(topic, named or correlation, number)",
                "Address(topic, named, number)",
            ),
        ),
        mend="82a5d6b",
    ),
    Mutant(
        "copies-of-a-former-topic-count",
        """Read the requests topic from behind the highest offset of which there is a copy, whichever topic that was in. A topic
        that was created again begins at 0, and its first requests are never read.""",
        (
            Change(
                "overlay.control.relay",
                "copied.get(self._topic_id, -1) + 1",
                "max(copied.values(), default=-1) + 1",
            ),
        ),
        history="test_open_requests.py::test_a_requests_topic_that_is_created_again_is_read_from_its_start[False]",
    ),
)
