"""Mends of the project's history about acks, and about what machines remember of deliveries that wait for them."""

from __future__ import annotations

from .mutant import Change, Mutant

ACKS = (
    Mutant(
        "ack-of-another-incarnation-counts",
        """Count an ack by its consumer sequence alone, whichever incarnation its token names. The sequences of
        deliveries that were not committed are given out again after a kill, so an ack of such a delivery settles
        another message.""",
        (
            Change(
                "overlay.consumer.lineage",
                "        given = np.zeros(consumer_seqs.size, np.bool_)\n"
                "        for first, last, _ in self._by_hidden.get(hide(incarnation), ()):\n"
                "            given |= (consumer_seqs >= first) & (consumer_seqs <= min(last, delivered))\n"
                "        return given\n",
                "        return consumer_seqs <= delivered\n",
            ),
        ),
        mend="00aedb8",
        history="test_incarnations.py::test_an_ack_settles_what_its_incarnation_gave_out",
    ),
    Mutant(
        "range-of-another-incarnation-counts",
        """Count range acks for every consumer sequence of the range, whichever incarnation gave it out.""",
        (
            Change(
                "overlay.consumer.machine",
                "            own = state.lineage.clip(event.incarnation, known)\n",
                "            own = known\n",
            ),
        ),
        mend="00aedb8",
        history="test_incarnations.py::test_an_ack_settles_what_its_incarnation_gave_out",
    ),
    Mutant(
        "late-commit-starts-the-timer-of-a-redelivery",
        """Have a commit of the reader group past the first delivery of a message start the timer of its redelivery, which the
        group has not read: it comes again, or is given up, while it lies unread behind others.""",
        (
            Change(
                "overlay.consumer.window",
                "leave_out(sequences, distinct(again[consumer_seqs > consumer_seq]))",
                "sequences",
            ),
        ),
        mend="867253c",
    ),
    Mutant(
        "incarnation-without-a-secret",
        """Name incarnations by the owner of the shard alone. All consumers of the shard have the same name then, so the
        reader of one can write acks that settle messages of the others.""",
        (Change("overlay.worker.dispatch_setup", 'f"{owner}-{draw_secret()}"', "owner"),),
        history="test_strangers.py::test_an_acker_of_one_consumer_moves_no_other",
    ),
    Mutant(
        "any-token-pulls",
        """Take in the pull request of a `+NXT` whatever its token names. A client that may write acks gets messages of
        every pull consumer, and with them the tokens that settle them.""",
        (
            Change(
                "overlay.consumer.machine",
                "        if event.ack is not None and not self._ack_before_pull(event.ack, now):\n            return\n",
                "        if event.ack is not None:\n            self._ack(event.ack, now)\n",
            ),
        ),
        history="test_strangers.py::test_an_acker_of_one_consumer_moves_no_other",
    ),
    Mutant(
        "partly-lost-range-answered",
        """Answer a range ack of which a part was refused, though the messages of that part come again.""",
        (
            Change(
                "overlay.consumer.machine",
                "            if is_whole:\n                self._answer_if_settled(event.reply, named)\n",
                "            self._answer_if_settled(event.reply, named)\n",
            ),
        ),
        history="test_incarnations.py::test_a_range_of_which_a_part_was_lost_gets_no_answer",
    ),
    Mutant(
        "ack-below-the-floor-answered",
        """With `ack_policy: all` answer an ack that does nothing, since it lies below the floor, though its message was
        redelivered meanwhile and comes again.""",
        (
            Change(
                "overlay.consumer.machine",
                "        if reply and self.state.window.is_settled(sequences):\n",
                "        if reply:\n",
            ),
        ),
        history="test_incarnations.py::test_an_ack_of_all_that_was_overtaken_gets_no_answer",
    ),
    Mutant(
        "few-incarnations-kept",
        """Keep only the newest of the former incarnations, where the cap that was taken away was 256: more than a history
        has. Acks in time of deliveries that an earlier one committed are refused, and the messages are delivered again.""",
        (
            Change("overlay.consumer.lineage", "    kept[-RECENT:] = True\n", "    kept[:] = True\n"),
            Change("overlay.consumer.lineage", "np.flatnonzero(kept)[-MOST:]", "np.flatnonzero(kept)[-1:]"),
        ),
        mend="1569ac3",
    ),
    Mutant(
        "lost-delivery-covers-nothing",
        """With `ack_policy: all` refuse an ack of a delivery that was not committed, though it covers what its
        incarnation committed before.""",
        (
            Change(
                "overlay.consumer.settling",
                "    if not end or not lost.any():\n",
                "    if True:\n",
            ),
        ),
        mend="db479a7",
        history="test_incarnations.py::test_an_ack_of_all_covers_what_its_incarnation_has_committed",
    ),
    Mutant(
        "overtaken-ack-takes-others-along",
        """With `ack_policy: all` hear the highest of several acks alone. If a redelivery has overtaken it, it is not
        counted, and the others go with it.""",
        (
            Change(
                "overlay.dispatch.served_consumer",
                "    for at in order[np.diff(latest, prepend=0) > 0].tolist():\n",
                "    for at in order[:1].tolist():\n",
            ),
        ),
        mend="2156b06",
        history="test_incarnations.py::test_an_ack_of_all_for_a_former_delivery_takes_no_other_along",
    ),
    Mutant(
        "dead-letters-put-off",
        """When a step has enough to give, put off the dead letters and answers of the consumers that come later, while
        their state and the place in the acks are committed. After a kill they are lost.""",
        (
            Change(
                "overlay.dispatch.dispatcher",
                "            # of this step\n            size += self._print(consumer, work, now)\n",
                "            # of this step\n                size += self._print(consumer, work, now)\n",
            ),
        ),
        mend="daa429f",
        history="test_machines.py::test_dead_letters_of_one_step_are_committed_together",
    ),
    Mutant(
        "machine-restored-after-it-was-given-up",
        """Restore a machine from records that end below the last consumer sequence: the consumer was served without a
        machine since, and sequences are given out twice.""",
        (
            Change(
                "overlay.dispatch.served_consumer",
                '    if records and records[-1].head["delivered"].consumer < beginning.sequence:\n        records = []\n',
                "",
            ),
        ),
        mend="4d75ec5",
        history="test_machines.py::test_a_machine_that_was_given_up_is_not_restored",
    ),
    Mutant(
        "absent-machines-trimmed",
        """Trim a shard's state at a checkpoint without writing the machines again that no consumer runs now. Their
        messages without an ack are forgotten.""",
        (
            Change(
                "overlay.worker.commit.commits",
                "            machines = [*machines, *self.state.list_machines()]\n",
                "            pass\n",
            ),
        ),
        mend="54548cf",
        history="test_machines.py::test_a_checkpoint_keeps_the_machines_of_consumers_that_are_away",
    ),
    Mutant(
        "quiet-machines-never-trimmed",
        """Trim a shard's state only when its machines have something to say. The log of a shard with quiet ones only
        grows.""",
        (
            Change(
                "overlay.worker.commit.commits",
                "        return self.has_machines and self.since_all >= TELL_ALL_EVERY\n",
                "        return False\n",
            ),
        ),
        mend="e5016df",
        history="test_machines.py::test_a_machine_with_nothing_to_say_does_not_keep_the_log_of_states",
    ),
    Mutant(
        "range-that-goes-too-far-counts-for-nothing",
        """Refuse all ranges of an ack of which one goes beyond the last delivery.""",
        (
            Change(
                "overlay.consumer.machine",
                "        known = tuple((first, min(last, newest)) for first, last in event.ranges if first <= newest)\n",
                "        known = () if any(last > newest for _, last in event.ranges) else event.ranges\n",
            ),
        ),
        mend="c9eb265",
    ),
    Mutant(
        "offers-of-what-was-delivered-are-held",
        """Count what a consumer was offered as undelivered until its machine has something to say. One that is offered only
        what it has delivered before leaves its cursor for good.""",
        (
            Change(
                "overlay.worker.dispatch_loop",
                "        self._let_go({*work.records, *(offer.consumer for offer in offers)})\n",
                "        self._let_go(work.records)\n",
            ),
        ),
        history="test_parked.py::test_a_consumer_that_is_offered_what_it_has_delivered_does_not_stay_parked",
    ),
    Mutant(
        "parked-consumer-reads-the-wrong-place",
        """Have a consumer that comes back from a full machine to a cursor of others skip what those do not want, without a
        new plan of what to skip.""",
        (
            Change(
                "overlay.worker.cursors.cursors",
                "            if cursor.members & set(consumers):\n                self._plan(partition, cursor, now)\n",
                "            if cursor.members == set(consumers):\n                self._plan(partition, cursor, now)\n",
            ),
        ),
        mend="54548cf",
        history="test_parked.py::test_a_consumer_that_comes_back_to_a_cursor_is_given_what_the_others_there_skip",
    ),
    Mutant(
        "acks-for-an-absent-consumer-passed-over",
        """Give a consumer that is left out no position of its own in the ack topic. What its readers say of its deliveries
        until it is back is passed over, and they are delivered again.""",
        (
            Change(
                "overlay.dispatch.ack_starts",
                "        elif consumer in state.machines:\n            heard = {**offsets, **heard}\n",
                "",
            ),
        ),
        mend="5950f96",
        history="test_acks_passed_over.py::test_acks_for_a_consumer_that_is_away_count_when_it_is_back",
    ),
    Mutant(
        "added-ack-partition-read-from-its-end",
        """Read a partition that the ack topic was given from its end. Acks that came before the session noticed it are passed
        over.""",
        (
            Change(
                "overlay.worker.dispatch_setup",
                "        if is_new(state, stream, topic):\n",
                "        if True:\n",
            ),
            Change(
                "overlay.dispatch.ack_starts",
                "state.acks.get((stream, source), LogPosition(0))",
                "state.acks.get((stream, source), LogPosition(ends[source]))",
            ),
        ),
        mend="5950f96",
        history="test_acks_passed_over.py::test_acks_in_a_partition_that_was_added_are_read_from_its_start",
    ),
    Mutant(
        "acks-for-another-stream-passed-over",
        """Forget from where the consumers of other streams of the shard have still to read their ack topics, when a session
        settles those of one stream. Acks that came while such a consumer was away are passed over.""",
        (
            Change(
                "overlay.dispatch.ack_starts",
                "        if consumer[0] != stream:\n"
                "            continue\n"
                "        heard = {} if is_void else _clip(known, offsets)\n",
                "        heard = {} if is_void or consumer[0] != stream else _clip(known, offsets)\n",
            ),
            Change(
                "overlay.dispatch.ack_starts",
                "        elif consumer in state.machines:\n",
                "        elif consumer[0] == stream and consumer in state.machines:\n",
            ),
        ),
        mend="e9cbdb8",
        history="test_acks_passed_over.py::test_consumers_of_two_streams_in_one_shard_keep_the_acks_that_they_have_to_hear",
    ),
    Mutant(
        "given-up-messages-kept",
        """Do not tell machines where their log begins. Messages that have used up their deliveries stay in the state, and
        in every checkpoint, for as long as the consumer lives.""",
        (
            Change(
                "overlay.dispatch.dispatcher",
                "            if slot.machine.state.window.has_given_up(low):\n",
                "            if False:\n",
            ),
        ),
        mend="6818f8c",
        history="test_given_up.py::test_messages_that_were_given_up_are_forgotten_once_the_log_has_lost_them",
    ),
    Mutant(
        "replay-ends-anew-in-each-session",
        """Fix the end of a replay when a session begins instead of when the consumer is created. What came since is
        replayed with its gaps.""",
        (
            Change(
                "overlay.worker.assignment",
                "    if is_replayed(config) and known.replay_until is None:\n",
                "    if is_replayed(config):\n",
            ),
        ),
        mend="19c1433",
        history="test_replay.py::test_what_came_after_the_creation_is_not_replayed",
    ),
    Mutant(
        "pulls-replay-without-gaps",
        """Answer a pull at once, whatever `replay_policy` says: messages come without the gaps between them.""",
        (
            Change(
                "overlay.consumer.machine",
                "        if (ready_at := pace.ready_at(now, time, size)) > now:\n"
                "            state.ready_at = ready_at\n"
                "            return False\n"
                "        waiter, ended = ",
                "        waiter, ended = ",
            ),
        ),
        mend="19c1433",
        history="test_replay.py::test_a_pull_consumer_gets_messages_with_their_gaps",
    ),
)
