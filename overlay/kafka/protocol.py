"""Kafka requests that aiokafka lacks, or has only in versions that tell too little. They are
written in aiokafka's style.

A caller sends an object of a `Request` class; aiokafka then picks the newest version that both the
broker and the class know. Every Kafka from 2.8 on knows a version of each. Two exceptions raise
`Unsupported`: Kafka before 4.0 does not know ConsumerGroupDescribe, and before 3.0 ListOffsets
cannot find the newest record.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from enum import IntEnum
from io import BytesIO
from typing import ClassVar

from aiokafka.errors import IncompatibleBrokerVersion, for_code
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

Unsupported = (IncompatibleBrokerVersion, NotImplementedError)
"""Errors that aiokafka raises for a request that the broker does not know."""
ANY_REPLICA = -1
NO_EPOCH = -1
NO_TAGS: Mapping[int, bytes] = {}


class Code(IntEnum):
    """Kafka's error codes that the overlay distinguishes."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    NOT_CONTROLLER = 41
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    TRANSACTIONAL_ID_NOT_FOUND = 105


def describe_code(code: int) -> str:
    """Return the meaning of an error code in Kafka's words, or its name or number if aiokafka does
    not know it.
    """
    known = for_code(code)
    if known.errno != code:
        return Code(code).name if code in Code.__members__.values() else f"error {code}"
    return str(known.description).rstrip(".")


OPERATIONS = {
    3: "Read",
    4: "Write",
    5: "Create",
    6: "Delete",
    7: "Alter",
    8: "Describe",
    9: "ClusterAction",
    10: "DescribeConfigs",
    11: "AlterConfigs",
    12: "IdempotentWrite",
    13: "CreateTokens",
    14: "DescribeTokens",
}
"""ACL operations by their bit number in the field `authorized_operations`."""


def name_operations(bits: int) -> frozenset[str]:
    """Return the ACL operations whose bits are set in a field `authorized_operations`."""
    return frozenset(name for bit, name in OPERATIONS.items() if bits >> bit & 1)


class Uuid(AbstractType[str]):
    """A topic id as text: 22 characters of Base64."""

    @classmethod
    def encode(cls, value: str) -> bytes:
        return base64.b64decode(value + "==")

    @classmethod
    def decode(cls, data: BytesIO) -> str:
        return base64.b64encode(data.read(16)).decode()[:22]


NO_TOPIC_ID = Uuid.decode(BytesIO(bytes(16)))
"""Placeholder for the topic id in a request that names the topic."""


class MetadataResponse_v10(Response):
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class MetadataRequest_v10(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = MetadataResponse_v10
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[MetadataRequest_v10]):
    """A request for the metadata of the cluster and of the named topics, or of all for None, with
    topic ids. It never creates a topic. `operations`: also ask what this user may do with each.
    """

    API_KEY = 3

    def __init__(self, topics: Iterable[str] | None, *, operations: bool = False) -> None:
        self.topics = None if topics is None else list(topics)
        self.operations = operations

    def build(self, request_struct_class: type[MetadataRequest_v10]) -> MetadataRequest_v10:
        named = None if self.topics is None else [(NO_TOPIC_ID, topic, NO_TAGS) for topic in self.topics]
        return request_struct_class(named, False, False, self.operations, NO_TAGS)


class ListOffsetsResponse_v6(Response):
    API_KEY = 2
    API_VERSION = 6
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
                        ("timestamp", Int64),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ListOffsetsResponse_v7(Response):
    API_KEY = 2
    API_VERSION = 7
    SCHEMA = ListOffsetsResponse_v6.SCHEMA


class ListOffsetsRequest_v6(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 2
    API_VERSION = 6
    RESPONSE_TYPE = ListOffsetsResponse_v6
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("timestamp", Int64),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ListOffsetsRequest_v7(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 2
    API_VERSION = 7
    RESPONSE_TYPE = ListOffsetsResponse_v7
    SCHEMA = ListOffsetsRequest_v6.SCHEMA


class ListOffsetsRequest(Request[ListOffsetsRequest_v6 | ListOffsetsRequest_v7]):
    """A request for offsets of partitions that one broker leads, by a timestamp in ms since 1970 or
    a special negative one.

    The special ones: -1 for the end, -2 for the start, `NEWEST` for the newest record (Kafka 3.0
    and later). `topics`: partition numbers by topic. `committed`: the end is the last stable
    offset, not the high watermark.
    """

    API_KEY = 2
    NEWEST: ClassVar[int] = -3

    def __init__(self, topics: Mapping[str, Iterable[int]], timestamp: int, *, committed: bool) -> None:
        self.topics, self.timestamp, self.committed = topics, timestamp, committed

    def build(
        self, request_struct_class: type[ListOffsetsRequest_v6 | ListOffsetsRequest_v7]
    ) -> ListOffsetsRequest_v6 | ListOffsetsRequest_v7:
        if self.timestamp == self.NEWEST and request_struct_class.API_VERSION < 7:
            raise IncompatibleBrokerVersion("the newest record requires ListOffsetsRequest >= v7")
        topics = [
            (topic, [(partition, NO_EPOCH, self.timestamp, NO_TAGS) for partition in partitions], NO_TAGS)
            for topic, partitions in self.topics.items()
        ]
        return request_struct_class(ANY_REPLICA, int(self.committed), topics, NO_TAGS)


class DescribeGroupsResponse_v5(Response):
    API_KEY = 15
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("group", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("protocol_type", CompactString("utf-8")),
                ("protocol", CompactString("utf-8")),
                (
                    "members",
                    CompactArray(
                        ("member_id", CompactString("utf-8")),
                        ("group_instance_id", CompactString("utf-8")),
                        ("client_id", CompactString("utf-8")),
                        ("client_host", CompactString("utf-8")),
                        ("member_metadata", CompactBytes),
                        ("member_assignment", CompactBytes),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeGroupsRequest_v5(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 15
    API_VERSION = 5
    RESPONSE_TYPE = DescribeGroupsResponse_v5
    SCHEMA = Schema(
        ("groups", CompactArray(CompactString("utf-8"))),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class DescribeGroupsRequest(Request[DescribeGroupsRequest_v5]):
    """A request for classic groups of one coordinator. A group that does not exist, or is not
    classic, has state `DEAD`.

    aiokafka 0.14 decodes the response to its own version 3 as if it were version 2, and fails at
    the second group.
    """

    API_KEY = 15
    DEAD: ClassVar[str] = "Dead"

    def __init__(self, groups: Iterable[str], *, operations: bool = False) -> None:
        self.groups, self.operations = list(groups), operations

    def build(self, request_struct_class: type[DescribeGroupsRequest_v5]) -> DescribeGroupsRequest_v5:
        return request_struct_class(self.groups, self.operations, NO_TAGS)


def _make_assignment() -> Schema:
    return Schema(
        (
            "topic_partitions",
            CompactArray(
                ("topic_id", Uuid),
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ConsumerGroupDescribeResponse_v0(Response):
    API_KEY = 69
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("group", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("group_epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", CompactString("utf-8")),
                (
                    "members",
                    CompactArray(
                        ("member_id", CompactString("utf-8")),
                        ("group_instance_id", CompactString("utf-8")),
                        ("rack", CompactString("utf-8")),
                        ("member_epoch", Int32),
                        ("client_id", CompactString("utf-8")),
                        ("client_host", CompactString("utf-8")),
                        ("subscribed_topics", CompactArray(CompactString("utf-8"))),
                        ("subscribed_pattern", CompactString("utf-8")),
                        ("assignment", _make_assignment()),
                        ("target_assignment", _make_assignment()),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ConsumerGroupDescribeRequest_v0(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 69
    API_VERSION = 0
    RESPONSE_TYPE = ConsumerGroupDescribeResponse_v0
    SCHEMA = Schema(
        ("groups", CompactArray(CompactString("utf-8"))),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class ConsumerGroupDescribeRequest(Request[ConsumerGroupDescribeRequest_v0]):
    """A request for groups of one coordinator whose members use `group.protocol=consumer`."""

    API_KEY = 69

    def __init__(self, groups: Iterable[str], *, operations: bool = False) -> None:
        self.groups, self.operations = list(groups), operations

    def build(self, request_struct_class: type[ConsumerGroupDescribeRequest_v0]) -> ConsumerGroupDescribeRequest_v0:
        return request_struct_class(self.groups, self.operations, NO_TAGS)


class IncrementalAlterConfigsResponse_v0(Response):
    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "resources",
            Array(
                ("error_code", Int16),
                ("error_message", String("utf-8")),
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
            ),
        ),
    )


class IncrementalAlterConfigsRequest_v0(RequestStruct):
    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = IncrementalAlterConfigsResponse_v0
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
                ("configs", Array(("name", String("utf-8")), ("operation", Int8), ("value", String("utf-8")))),
            ),
        ),
        ("validate_only", Boolean),
    )


class IncrementalAlterConfigsRequest(Request[IncrementalAlterConfigsRequest_v0]):
    """A request that sets properties of a topic. The other properties keep their values;
    AlterConfigs would reset them.
    """

    API_KEY = 44
    TOPIC: ClassVar[int] = 2
    SET: ClassVar[int] = 0

    def __init__(self, topic: str, config: Mapping[str, str]) -> None:
        self.topic, self.config = topic, dict(config)

    def build(self, request_struct_class: type[IncrementalAlterConfigsRequest_v0]) -> IncrementalAlterConfigsRequest_v0:
        entries = [(name, self.SET, value) for name, value in self.config.items()]
        return request_struct_class([(self.TOPIC, self.topic, entries)], False)
