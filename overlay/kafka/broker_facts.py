"""What brokers say of themselves: the requests and features that they know, and their settings.

Every broker answers ApiVersions, whatever rights a user has. Brokers with KRaft also name the levels of
the feature `metadata.version`, of which each release of Kafka adds some; that tells their release. A
broker's settings need DescribeConfigs on the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from .brokers import BrokerLost, Brokers, run_all
from .protocol import NO_TAGS, Code

BROKER = 4
"""Resource type "broker" in requests about configurations."""
REACH_S = 5.0
"""Seconds that one broker has for its answers."""
SOFTWARE = "kafka-overlay", "1"
"""Name and version of the client, which brokers show in their metrics and do not use."""
_SUPPORTED = 0
_FINALIZED = 2
"""Tags of the response: the levels that the broker's software knows, and those that the cluster uses."""


class ApiVersionsResponse_v3(Response):
    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "requests",
            CompactArray(("api_key", Int16), ("oldest", Int16), ("newest", Int16), ("tags", TaggedFields)),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )


class ApiVersionsRequest_v3(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 18
    API_VERSION = 3
    RESPONSE_TYPE = ApiVersionsResponse_v3
    SCHEMA = Schema(
        ("client_software_name", CompactString("utf-8")),
        ("client_software_version", CompactString("utf-8")),
        ("tags", TaggedFields),
    )

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> ResponseHeader_v0:
        # a broker that does not know the version has to be understood too: so this header never has tags
        return ResponseHeader_v0.decode(read_buffer)


class ApiVersionsRequest(Request[ApiVersionsRequest_v3]):
    """A request for the requests and features that a broker knows."""

    API_KEY = 18

    def build(self, request_struct_class: type[ApiVersionsRequest_v3]) -> ApiVersionsRequest_v3:
        return request_struct_class(*SOFTWARE, NO_TAGS)


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker of the cluster, and what it says of itself: features, requests and settings, which
    are empty or None if it did not answer. `failure`: why it could not be asked, "" if it answered.
    """

    node: int
    address: str
    failure: str = ""
    newest: Mapping[str, int] = field(default_factory=dict)
    """The highest level of each feature that its software knows. Empty without KRaft."""
    levels: Mapping[str, int] = field(default_factory=dict)
    """The levels that the cluster uses."""
    requests: Mapping[int, int] = field(default_factory=dict)
    """The newest version of each request that it knows, by the request's API key."""
    settings: Mapping[str, str] | None = None
    """Its settings, None if this user may not read them."""


async def describe_brokers(brokers: Brokers) -> list[BrokerFacts]:
    """Return the facts about every broker that the cluster names, in the order of node ids. A broker has REACH_S for
    its answers; the caller sets the deadline for naming the brokers.
    """
    nodes = (await brokers.find_topics(())).brokers
    return await run_all(_describe(brokers, node, host, port) for node, host, port, *_ in sorted(nodes))


async def _describe(brokers: Brokers, node: int, host: str, port: int) -> BrokerFacts:
    questions = [ApiVersionsRequest(), DescribeConfigsRequest([(BROKER, str(node), None)])]
    try:
        async with asyncio.timeout(REACH_S):
            known, configs = await brokers.send((host, port), questions)
    except TimeoutError:
        return BrokerFacts(node, f"{host}:{port}", f"no answer within {REACH_S:g} s")
    except BrokerLost as error:
        return BrokerFacts(node, f"{host}:{port}", str(error))
    (found,) = configs.resources
    code, _, _, _, entries, *_ = found
    return BrokerFacts(
        node,
        f"{host}:{port}",
        newest={name: highest for name, _, highest in _read_features(known.tags, _SUPPORTED)},
        levels={name: level for name, level, _ in _read_features(known.tags, _FINALIZED)},
        requests={key: newest for key, _, newest, *_ in known.requests},
        settings={name: value for name, value, *_ in entries if value is not None} if code == Code.NONE else None,
    )


def _read_features(tags: Mapping[int, bytes], tag: int) -> list[tuple[str, int, int]]:
    """Return name and two levels of each feature in a tag; empty if the broker has not sent the tag.

    The levels are lowest and highest for the tag _SUPPORTED, highest and lowest for _FINALIZED.
    """
    if tag not in tags:
        return []
    form = CompactArray(("name", CompactString("utf-8")), ("first", Int16), ("second", Int16), ("tags", TaggedFields))
    features: list[tuple[Any, ...]] = form.decode(BytesIO(tags[tag]))
    return [(name, first, second) for name, first, second, _ in features]
