"""Producers in tests and benches whose records are counted, or have an order, are idempotent."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from tests.support.kafka import NewTopicFixture, SureProducer

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "bench", "examples", "overlay", "spark")
SURE = {"transactional.id", "enable.idempotence", "transactional_id", "enable_idempotence"}
ALLOWED = {
    "tests/cli/test_principals.py": "acks of three messages in any order; idempotence would ask for a right",
    "overlay/client/control/inbox.py": "one request, awaited and never repeated (retries=0)",
    "overlay/control/journal.py": "two tombstones, each awaited; a copy changes nothing",
    "overlay/fleet/publisher.py": "statuses, each awaited and numbered; the fleet passes over copies and older ones",
    "tests/sim/kafka/producers.py": "what a simulated broker knows of a producer",
}


def find_plain_producers(path: Path) -> Iterator[int]:
    """The lines that make a producer of confluent-kafka or aiokafka without a word of idempotence in the call."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and _name(node.func) in ("Producer", "AIOKafkaProducer"):
            words = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            words |= {each.arg for each in node.keywords}
            # a dictionary that is named right above the call counts as well
            if not words & SURE and not _settings(path, node) & SURE:
                yield node.lineno


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _settings(path: Path, call: ast.Call) -> set[object]:
    """The keys of dictionaries that the call uses by name, as they are assigned in the same file."""
    used = {each.id for argument in call.args for each in ast.walk(argument) if isinstance(each, ast.Name)}
    found: set[object] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign | ast.AnnAssign) and used & {_name(target) for target in _targets(node)}:
            found |= {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
    return found


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def test_no_producer_may_reorder_or_repeat_what_a_test_relies_on() -> None:
    plain = {
        f"{path.relative_to(ROOT)}": list(find_plain_producers(path))
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    found = {name: lines for name, lines in plain.items() if lines and name not in ALLOWED}
    assert not found, "make it a SureProducer (tests/support/kafka.py), or set enable.idempotence"
    assert {name for name in ALLOWED if not plain.get(name)} == set(), "no exception is needed any more"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("p = Producer({'bootstrap.servers': b})", [1]),
        ("s = {'linger.ms': 5}\np = confluent_kafka.Producer({**s})", [2]),
        ("s = {'enable.idempotence': True}\np = Producer({**s, 'linger.ms': 5})", []),
        ("p = Producer({**s, 'transactional.id': 't'})", []),
        ("p = AIOKafkaProducer(bootstrap_servers=b)", [1]),
        ("p = AIOKafkaProducer(bootstrap_servers=b, enable_idempotence=True)", []),
        ("p = SureProducer(b)", []),
    ],
)
def test_what_counts_as_plain(text: str, lines: list[int], tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text(text)
    assert list(find_plain_producers(path)) == lines


def test_a_refused_record_is_told_by_flush(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic(max_message_bytes=1_000)
    producer = SureProducer(bootstrap)
    producer.produce(topic, b"small")
    assert producer.flush() == 0
    producer.produce(topic, b"x" * 5_000)
    with pytest.raises(AssertionError, match=f"1 refused: .*{topic}"):
        producer.flush()


def test_a_record_with_a_callback_of_its_own_is_the_callers_matter(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic(max_message_bytes=1_000)
    producer, told = SureProducer(bootstrap), list[KafkaError | None]()
    producer.produce(topic, b"x" * 5_000, on_delivery=lambda error, _: told.append(error))
    assert producer.flush() == 0
    assert [error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE for error in told] == [True]
