"""Checks for records that an output topic can never take, made before anything is sent.

A transaction ends on all of its batches or on none, so a record that its topic refuses would hold
up the whole shard. Kafka refuses a record because of the record itself for one of three reasons
(UnifiedLog and LogValidator; seen with 4.3):

- its batch is larger than max.message.bytes or segment.bytes, even with this record alone;
- it has no key, and the topic is compacted;
- the topic keeps the records' times, and its time is too far from now
  (message.timestamp.before.max.ms, .after.max.ms).

Refusals for lack of rights or replicas apply to any record, and are not checked here.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Flags, Ints

from .assemble import Body, Numbers, assemble
from .batch_builder import OutputTopic, Slice, measure
from .encoded_batch import EncodedBatch

SLACK = 256
"""Bytes by which a record has to stay below the limit. The numbers in its token are not known yet
and grow from delivery to delivery, and what the topic took once it should take again.
"""
_NO_KEY = 1  # a length of -1, as a varint
_NO_TIME = -1


def find_refused(output_topic: OutputTopic, slice_: Slice, rows: Ints, now: int, slack: int = SLACK) -> Ints:
    """Return which of the records `rows` (indices) of a slice the topic would refuse as deliveries because of the
    records themselves: rising indices into `rows`, int64.

    `now`: ms since 1970. `slack`: bytes by which a batch has to stay below the topic's limit. With 0 a record that is
    refused cannot be delivered, whatever numbers its token gets.
    """
    records = slice_.records
    refused = np.zeros(rows.size, np.bool_)
    if output_topic.needs_key:
        refused |= records.buf[records.body[rows]] == _NO_KEY
    if output_topic.envelope.source_time:
        refused |= _find_untimely(output_topic, records.timestamp[rows], now)
    for at in np.flatnonzero(measure(slice_, rows, output_topic.envelope) > output_topic.body_limit).tolist():
        refused[at] |= _is_too_large(output_topic, slice_, rows[at : at + 1], now, slack)
    return np.flatnonzero(refused)


def _find_untimely(output_topic: OutputTopic, time: Ints, now: int) -> Flags:
    """Return which of these times (ms since 1970, int64) are too far from `now` for the topic (bool, one per time). A
    record without a time (-1) never is.
    """
    too_far: Flags = (now - time > output_topic.oldest_ms) | (time - now > output_topic.newest_ms)
    too_far &= time != _NO_TIME
    return too_far


def explain_refusal(output_topic: OutputTopic, slice_: Slice, row: int, now: int) -> str:
    """Return why the topic refuses the record `row` (an index) of `slice_`, which `find_refused` has found: the first
    reason of key, time and size. `now`: ms since 1970.
    """
    records = slice_.records
    if output_topic.needs_key and records.buf[records.body[row]] == _NO_KEY:
        return "it has no key, and the topic is compacted"
    time = records.timestamp[row : row + 1]
    if output_topic.envelope.source_time and _find_untimely(output_topic, time, now)[0]:
        return (
            f"its time, {time[0]} ms since 1970, is further from now than the topic accepts"
            " (message.timestamp.before.max.ms, .after.max.ms)"
        )
    return (
        f"alone it makes a batch of more than {output_topic.max_message_bytes} bytes (max.message.bytes, segment.bytes)"
    )


def _is_too_large(output_topic: OutputTopic, slice_: Slice, row: Ints, now: int, slack: int) -> bool:
    """Return whether a record (`row` has one entry) is too large for its topic even as the only one
    of a batch. Only compressing it can tell.

    `now`: ms since 1970. `slack`: bytes by which the batch has to stay below the topic's limit.
    """
    body = Body(np.empty(int(measure(slice_, row, output_topic.envelope)[0]), np.uint8))
    one = np.ones(1, np.int64)
    assemble(
        body, slice_.records, row, slice_.codes, slice_.texts, output_topic.envelope, Numbers(one, one).complete(), now
    )  # fmt: skip
    size = EncodedBatch(body, output_topic.codec, transactional=output_topic.transactional).size
    return size + slack > output_topic.max_message_bytes
