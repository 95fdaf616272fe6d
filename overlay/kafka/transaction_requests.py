"""Requests about transactions that aiokafka lacks: what a coordinator knows of a transactional id, and
which producers have a transaction open in a partition. Written as in protocol.py.

Kafka before 3.0 does not know the first one, and before 2.8 not the second one; then `Unsupported` is
raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from .protocol import NO_TAGS


class DescribeTransactionsResponse_v0(Response):
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transactions",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("timeout_ms", Int32),
                ("start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeTransactionsRequest_v0(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = DescribeTransactionsResponse_v0
    SCHEMA = Schema(("transactional_ids", CompactArray(CompactString("utf-8"))), ("tags", TaggedFields))


class DescribeTransactionsRequest(Request[DescribeTransactionsRequest_v0]):
    """A request for the last transaction of a transactional id, to its coordinator.

    The state is Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort,
    PrepareEpochFence or Dead. The topics are the partitions whose markers are not written yet.
    """

    API_KEY = 65

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id

    def build(self, request_struct_class: type[DescribeTransactionsRequest_v0]) -> DescribeTransactionsRequest_v0:
        return request_struct_class([self.transactional_id], NO_TAGS)


class DescribeProducersResponse_v0(Response):
    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", CompactString("utf-8")),
                        (
                            "producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("open_since", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequest_v0(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = DescribeProducersResponse_v0
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequest(Request[DescribeProducersRequest_v0]):
    """A request for the producers of partitions that one broker leads.

    `open_since` of a producer is the first offset of its open transaction in the partition, -1 if it
    has none. Kafka answers a client that may read the topic.
    """

    API_KEY = 61

    def __init__(self, topics: Mapping[str, Iterable[int]]) -> None:
        self.topics = topics

    def build(self, request_struct_class: type[DescribeProducersRequest_v0]) -> DescribeProducersRequest_v0:
        topics = [(topic, list(partitions), NO_TAGS) for topic, partitions in self.topics.items()]
        return request_struct_class(topics, NO_TAGS)
