"""Our own requests and answers as bytes: what is written is read back, and each broker gets a version that it knows."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.kafka.protocol import (
    NO_TAGS,
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    TopicsRequest,
    Unsupported,
)

REQUESTS = [
    TopicsRequest(["a", "b"]),
    ListOffsetsRequest({"a": [0, 1], "b": [2]}, -1, committed=True),
    DescribeGroupsRequest(["g", "h"], operations=True),
    ConsumerGroupDescribeRequest(["g"]),
    IncrementalAlterConfigsRequest("t", {"retention.ms": "-1", "cleanup.policy": "compact"}),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_survive_their_bytes(request_: Any) -> None:
    for version in {kind.API_VERSION for kind in request_._CLASSES}:
        built = request_.prepare({request_.API_KEY: (version, version)})
        assert version == built.API_VERSION
        assert type(built).decode(built.encode()).encode() == built.encode()
        assert (built.API_KEY, version) == (built.RESPONSE_TYPE.API_KEY, built.RESPONSE_TYPE.API_VERSION)


def test_an_answer_survives_its_bytes() -> None:
    kind = ListOffsetsRequest({}, -1, committed=True).prepare({2: (1, 11)}).RESPONSE_TYPE
    answer = kind(0, [("t", [(3, 0, -1, 42, 7, NO_TAGS)], NO_TAGS)], NO_TAGS)
    assert kind.decode(answer.encode()) == kind(0, [("t", [(3, 0, -1, 42, 7, {})], {})], {})


def test_an_older_broker_is_told_what_it_knows() -> None:
    assert ListOffsetsRequest({"t": [0]}, 5, committed=True).prepare({2: (0, 6)}).API_VERSION == 6
    for request, known in (
        (ListOffsetsRequest({"t": [0]}, ListOffsetsRequest.NEWEST, committed=True), {2: (0, 6)}),
        (ConsumerGroupDescribeRequest(["g"]), {15: (0, 5)}),
        (TopicsRequest(["t"]), {3: (0, 9)}),
    ):
        with pytest.raises(Unsupported):
            request.prepare(known)
