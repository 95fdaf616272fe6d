"""Mends of the project's history about logs: those that expire, lose their end, are damaged, compacted or created again."""

from __future__ import annotations

from .mutant import Change, Mutant

LOGS = (
    Mutant(
        "loss-told-once",
        """Tell once that a log does not have a position. A reader that cannot ask then how far the log goes, since Kafka does
        not answer, reads nothing any more.""",
        (
            Change(
                "overlay.kafka.partition_fetch",
                "        if taken is not None:\n",
                "        if isinstance(taken, Fetched):\n",
            ),
        ),
        history="test_unclean.py::test_a_loss_that_was_taken_and_not_acted_upon_is_told_again",
    ),
    Mutant(
        "lost-deliveries-wait-for-readers",
        """Have the ack_wait of deliveries that an output has lost begin when the reader group has passed their offsets. If the
        output does not grow again, that is never, and the messages do not come again.""",
        (
            Change(
                "overlay.dispatch.interest",
                "                if offsets.has_lost(partition, end, given[consumer]):\n",
                "                if False:\n",
            ),
        ),
        history="test_output_cut.py::test_messages_of_lost_deliveries_come_again",
    ),
    Mutant(
        "index-expires-like-its-sources",
        """Give the index topic the `retention.ms` of its sources, whatever their `cleanup.policy` and their segments say. It
        expires the sequences of records that are still there, and new consumers with acks are not given these.""",
        (
            Change(
                "overlay.index.retention",
                "    kept = [_find_longest(facts.config) for facts in sources]\n"
                "    if not kept or FOR_EVER in kept:\n"
                "        return FOR_EVER\n"
                "    return max(max(kept) + SLACK_MS, LEAST_RETENTION_MS)\n",
                '    kept = [int(facts.config.get("retention.ms", FOR_EVER)) for facts in sources]\n'
                "    return max(*kept, LEAST_RETENTION_MS) if kept and min(kept) >= 0 else FOR_EVER\n",
            ),
        ),
        mend="15683ae",
        history="test_ledger_retention.py::test_a_new_consumer_is_given_all_that_a_topic_still_has",
    ),
    Mutant(
        "records-without-sequence-never-read",
        """Read of a partition only what the ledger has a run for. If retention has taken the runs of a partition that nothing
        is written to, its records are not delivered.""",
        (
            Change(
                "overlay.worker.cursors.order",
                "        yield from _find_ends(at, ledger, goal).items()\n",
                "",
            ),
        ),
        mend="15683ae",
        history="test_ledger_retention.py::test_records_whose_sequences_are_lost_are_delivered_without_waiting_for_more",
    ),
    Mutant(
        "lost-sequence-taken-for-the-newest",
        """Take a record whose sequence the index has lost for one that has none yet. With `deliver_policy: last` it counts as
        the last of all partitions, and the last message of the others is not delivered.""",
        (
            Change(
                "overlay.index.start_positions",
                "    return known or ledger.sequence_from(source, offset) - 1\n",
                "    return known or _NONE_YET\n",
            ),
        ),
        mend="ee7ff0f",
        history="test_ledger_retention.py::test_a_record_whose_sequence_is_lost_is_not_the_last_of_all_partitions",
    ),
    Mutant(
        "last-of-a-subject-in-each-partition",
        """Search each partition by itself for the last record of a subject. A last_per_subject consumer is then given one of
        each partition instead of one of the stream.""",
        (
            Change(
                "overlay.worker.last_messages",
                "        return merge_lasts(found, ledger)\n",
                "        return {source: merge_lasts({source: lasts}, ledger)[source] for source, lasts in found.items()}\n",
            ),
        ),
        mend="8d9d874",
        history="test_last_per_subject.py::test_a_subject_of_several_partitions_is_delivered_once",
    ),
    Mutant(
        "chunks-of-another-topic-believed",
        """Believe the chunk headers of a compacted topic whose id the state does not know. If it is another topic than the one
        they were made from, records are left out that consumers want.""",
        (
            Change(
                "overlay.worker.kept.indexes",
                "        if compacted and source[0] not in bound and len(chunks):\n",
                "        if False:\n",
            ),
        ),
        mend="0955348",
        history="test_recreated.py::test_the_index_of_a_compacted_topic_that_was_created_again_is_made_anew",
    ),
    Mutant(
        "log-that-was-cut-is-read-on",
        """Do not compare leader epochs of what is fetched. A log that lost its end, and has grown past the position by the next
        fetch, is read on: what came in the place of the lost records is passed over.""",
        (
            Change(
                "overlay.kafka.fetcher",
                "        if code or partition_fetch.position != position or epoch < 0"
                " or find_epoch(data) in (NO_EPOCH, epoch):\n",
                "        if True:\n",
            ),
        ),
        mend="c1ca8be",
        history="test_unclean.py::test_a_log_that_was_cut_and_grew_past_the_position_is_noticed",
    ),
    Mutant(
        "length-of-a-damaged-batch-believed",
        """Believe how many offsets a batch covers whose checksum is wrong. With `on_corrupt: skip` all records of this
        range are passed over.""",
        (
            Change(
                "overlay.scan.header",
                "        is_bounded = _bound(buf, found)\n",
                "        is_bounded = False\n",
            ),
        ),
        mend="0b3c74a",
        history="test_corruption.py::test_a_batch_whose_length_in_offsets_is_damaged_is_skipped_alone",
    ),
    Mutant(
        "answers-from-before-the-log-was-compared",
        """Give a shard what other shards of the worker have fetched before it began. It has compared the log with its state
        since, and what they fetched may not be in the log any more.""",
        (
            Change(
                "overlay.kafka.shared_fetches",
                "first.asked <= since or not",
                "not",
            ),
        ),
        history="test_shared_fetches.py::test_no_answer_is_used_that_was_asked_for_before_the_reader_began",
    ),
    Mutant(
        "answers-of-another-log",
        """Give a shard what another one has fetched, whatever leader epoch it knows of the batch before its position.""",
        (
            Change(
                "overlay.kafka.shared_fetches",
                " or not first.fits(position, epoch):\n",
                ":\n",
            ),
        ),
        history="test_shared_fetches.py::test_answers_of_another_epoch_are_not_used",
    ),
    Mutant(
        "stalled-fetches-waited-for",
        """Have shards wait for a shared fetch that is not answered until it times out, though their own connections are
        well.""",
        (
            Change(
                "overlay.kafka.shared_fetches",
                "        if front.is_stalled():\n            return False\n",
                "",
            ),
        ),
        history="test_shared_fetches.py::test_a_connection_that_answers_nothing_holds_up_no_fetcher_for_long",
    ),
)
