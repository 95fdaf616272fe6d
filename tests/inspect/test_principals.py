"""docs/security.md against the code: roles, their rights, and the limits of what strangers may write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from overlay import credentials
from overlay.config import checks, document, load, schema_book
from overlay.consumer import acks, pulls
from overlay.control import changes, open_requests, records, requests, tail
from overlay.control import decide as rules
from overlay.dispatch import ack_decoder
from overlay.filter.limits import DEFAULT
from overlay.fleet import actions, memory, read, status
from overlay.inspect.needs import Need, ResourceKind
from overlay.inspect.principals import Role, find_role_needs, name_principal, write_commands
from overlay.inspect.verdict import Finding, NeedState
from overlay.kafka import oauth
from overlay.replies import reply_address
from overlay.scan import decode
from overlay.scan.codec import Arena
from overlay.schemas import registry_client
from overlay.units import MAX_TEXT
from tests.config.folders import write_folder

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
NAMES = {
    "source topics": "orders",
    "`deliver_subject` of its consumers": "out",
    "group: `deliver_group`, or the consumer's name": "readers",
    "outputs and dead-letter topics of its consumers": "job-out",
    "groups `<prefix>.spark.<stream>.<consumer>`": "overlay.spark.ORDERS.j",
    "group `<prefix>.workers`": "overlay.workers",
}
"""What the page calls a resource, and its name in the folder of `find`."""


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


@pytest.fixture
def find(tmp_path: Path) -> Any:
    """The operations of a role by resource."""
    consumer = "stream: ORDERS\ndurable_name: {}\ndeliver_subject: {}\nack_policy: {}\n"
    folder = write_folder(
        tmp_path,
        {
            "overlay.yaml": "kafka: {bootstrap.servers: 'h:1'}\n",
            "streams/flights.yaml": "name: ORDERS\ntopics: [orders]\n",
            "consumers/c.yaml": consumer.format("c", "out", "explicit") + "deliver_group: readers\n",
            "consumers/j.yaml": consumer.format("j", "job-out", "none") + "engine: spark\n",
        },
    )
    loaded = load(folder)
    assert not loaded.problems

    def find_operations(role: Role) -> dict[str, list[tuple[str, ...]]]:
        found: dict[str, list[tuple[str, ...]]] = {}
        for need in find_role_needs(loaded, role):
            found.setdefault(need.name, []).append(need.operations)
        return found

    return find_operations


def test_the_table_lists_what_each_role_needs(find: Any) -> None:
    role = ""
    told: dict[str, set[str]] = {}
    for name, _, resource, operations in rows("Roles"):
        role = name.strip("`") or role
        told.setdefault(role, set())
        if not operations or operations == "as the service":
            continue
        quoted = re.findall(r"`(<prefix>[^`]*)`", resource) if resource not in NAMES else []
        filled = {"<prefix>": "overlay", "<stream>": "ORDERS", "<job>": "ORDERS", "<n>": "0", "<consumer>": "j"}
        for text in quoted or [NAMES[resource]]:
            for hole, value in filled.items():
                text = text.replace(hole, value)
            text += "*" if text.endswith(".") else ""
            assert tuple(operations.split(", ")) in find(Role(role)).get(text, []), f"{role}: {resource}"
            told[role].add(text)
    assert list(told) == list(Role)
    for each in Role:
        if each is not Role.SERVICE:
            assert find(each).keys() - told[each] <= {"overlay.ORDERS.index", "job-out", "j"}, each


def test_a_puller_with_a_topic_for_requests_may_not_write_to_the_control_topic(tmp_path: Path) -> None:
    text = "kafka: {bootstrap.servers: 'h:1'}\ntopics: {requests: true}\n"
    loaded = load(write_folder(tmp_path, {"overlay.yaml": text}))
    found = {role: {need.name: need.operations for need in find_role_needs(loaded, role)} for role in Role}
    assert found[Role.PULLER] == {
        "overlay.requests": ("Describe", "Write"),
        "overlay.replies": ("Describe", "Read"),
    }
    assert found[Role.ADMIN]["overlay.control"] == ("Describe", "Write")
    assert found[Role.SERVICE]["overlay.requests"] == ("Describe", "Read", "Create")


LIMITS = {
    "body of an ack": f"{acks.MAX_BODY >> 10} KiB",
    "ranges in one ack": f"{acks.MAX_RANGES:,};",
    "text of a nak or a pull": f"{acks.MAX_TEXT >> 10} KiB",
    "reason of a term": f"{acks.MAX_REASON:,} characters",
    "an open request": f"{open_requests.MOST_BYTES >> 10} KiB",
    "key": f"{records.MAX_KEY:,} bytes",
    "value": f"{records.MAX_VALUE >> 20} MiB, {records.DEEPEST} levels",
    "a config in a request": f"{changes.MAX_FIELDS} fields, {changes.MAX_ITEMS:,} items",
    "correlation": f"{reply_address.MAX_CORRELATION} bytes",
    "client's name": f"{requests.MAX_CLIENT:,} bytes",
    "nesting": f"{document._MAX_DEPTH} levels",
    "values in a file": f"{document._MAX_NODES:,},",
    "time that an open request may wait": f"{requests.OPEN_WAIT_MS // 60_000} minutes;",
    "a status": f"{status.MOST_BYTES >> 10} KiB",
    "consumers, deleted consumers and streams of a status": f"{status.MOST_CONSUMERS}, {status.MOST_GONE} and"
    f" {status.MOST_STREAMS}",
    "a batch, for commands that read it": f"{read.MOST_BATCH_BYTES >> 20} MiB when decompressed,"
    f" {read.MOST_BATCH_RECORDS:,} records",
    "workers, consumers and streams that are kept of all statuses": f"{memory.MOST_WORKERS:,},"
    f" {memory.MOST_CONSUMERS:,} and {memory.MOST_STREAMS:,}",
    "consumers in an answer to `consumer.list`": f"{requests.MOST_LISTED};",
    "number of a shard": f"below {requests.MOST_SHARDS:,}",
    "start of a worker that is drained (`boot`)": f"{rules.MOST_BOOT} characters",
    "name": f"{checks.MAX_NAME} characters",
    "description": f"{checks.MAX_DESCRIPTION:,} bytes",
    "metadata": f"{checks.MAX_METADATA >> 10} KiB",
    "an action": f"{actions.MAX_BODY:,} bytes",
    "a pause": f"{actions.MAX_PAUSE_S // 86_400} days",
    "references of a schema": f"{registry_client._MOST_REFERENCES:,}",
    "schemas of a stream, unknown ids that are remembered": f"{schema_book.MOST_SCHEMAS:,} and"
    f" {schema_book.MOST_UNKNOWN:,}",
    "bytes": f"{credentials.MAX_BYTES >> 10} KiB",
}


def test_the_limits_are_those_of_the_code() -> None:
    table = rows("What is limited")
    by_what = {what: limit for _, what, limit, _ in table}
    by_place = {where: limit for where, _, limit, _ in table}
    for what, limit in LIMITS.items():
        assert by_what[what].startswith(limit), what
    assert acks.MAX_TEXT == pulls.MAX_BODY
    batches = [limit for _, what, limit, _ in table if what == "a compressed batch"]
    answers = {where: limit for where, what, limit, _ in table if what == "an answer"}
    assert answers == {
        "the schema registry": f"{registry_client._MOST_BYTES >> 20} MiB",
        "the token endpoint": f"{oauth.MAX_BYTES >> 20} MiB",
    }
    sizes = (ack_decoder.MOST_BYTES, tail.MOST_BYTES, tail.MOST_BYTES, Arena(1).limit)
    assert [int(limit.split(" ")[0]) << 20 for limit in batches] == list(sizes)
    counts = (ack_decoder.MOST_RECORDS, tail.MOST_RECORDS, tail.MOST_RECORDS)
    *limited, source = (limit for _, what, limit, _ in table if what == "records of a batch")
    assert limited == [f"{count:,}" for count in counts]
    assert source == f"no limit; {decode.SLICE_ROWS:,} are read at a time"
    assert by_place["SQL filters"].startswith(f"{DEFAULT.length:,} characters, {DEFAULT.tokens} words")
    assert by_place["durations, sizes, times"] == f"{MAX_TEXT} characters"
    assert checks.MAX_NAME < records.MAX_KEY / 3


def need(kind: ResourceKind, name: str) -> Need:
    return Need(kind, name, ("Describe", "Read", "Create"), ("the service",))


@pytest.mark.parametrize(
    ("finding", "missing", "unknown"),
    [
        (Finding(need(ResourceKind.STATE, "t"), NeedState.OK), "", ""),
        (
            Finding(need(ResourceKind.STATE, "t"), NeedState.MISSING, ("Read",), ("why",)),
            "--operation Read --topic t",
            "",
        ),
        (
            Finding(need(ResourceKind.STATE, "t"), NeedState.MISSING, ("Create",), ("why",)),
            "--operation Describe --operation Read --operation Create --topic t",
            "",
        ),
        (
            Finding(need(ResourceKind.TRANSACTION, "ov.spark.*"), NeedState.UNKNOWN, (), ("why",)),
            "",
            "--operation Describe --operation Read --operation Create --transactional-id ov.spark."
            " --resource-pattern-type prefixed",
        ),
        (
            Finding(need(ResourceKind.GROUP, "a b"), NeedState.UNKNOWN, (), ("why",)),
            "",
            "--operation Describe --operation Read --operation Create --group 'a b'",
        ),
        (Finding(need(ResourceKind.STATE, "t"), NeedState.CREATED), "", ""),
        (
            Finding(need(ResourceKind.STATE, "t"), NeedState.CREATED, (), ("later",)),
            "",
            "--operation Describe --operation Read --topic t",
        ),
    ],
)
def test_commands_for_what_is_missing_and_what_is_not_known(finding: Finding, missing: str, unknown: str) -> None:
    kafka = {"bootstrap.servers": "h:1", "sasl.username": "me"}
    head = "kafka-acls.sh --bootstrap-server h:1 --add --allow-principal User:me "
    for is_certain, wanted in ((True, missing), (False, unknown)):
        found = list(write_commands([finding], kafka, is_certain=is_certain))
        assert found == ([head + wanted] if wanted else [])


def test_the_name_of_a_principal() -> None:
    assert name_principal({}) == "User:ANONYMOUS"
    assert name_principal({"sasl.username": "u", "ssl.certificate.location": "c"}) == "User:u"
    assert "certificate" in name_principal({"ssl.certificate.location": "c"})
    assert "token" in name_principal({"sasl.oauthbearer.client.id": "c"})
