"""Control records that mean harm: the service passes them over, counts them, and answers the requests behind them."""

from __future__ import annotations

import contextlib
import time

import pytest

from overlay.client.control.control import Control
from overlay.control.records import Misfit
from overlay.control.tail import MOST_BYTES, MOST_RECORDS
from tests.oracle.batches import Header, Record
from tests.support.batches import build
from tests.support.kafka import NewTopicFixture
from tests.support.raw import send_batch
from tests.support.tiny_records import build_tiny
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, Served, serve
from tests.worker.scenes import scene as scene

BAD_NAME: list[Header] = [(b"\xff\xfe", b"x"), (b"Overlay-Reply-Topic", b"\xff")]
DEEP = b'{"op":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
HUGE_NUMBER = b'{"op":"stream.list","timeout":' + b"9" * 100_000 + b"}"
HUGE_TEXT = b'{"op":"stream.list","timeout":"' + b"9" * 800_000 + b's"}'
DEFINITION = b'{"v":1,"origin":"request","created":"2026-01-01T00:00:00Z","config":%s}'

PASSED_OVER: list[tuple[bytes, bytes, list[Header]]] = [
    (b"request \xff", b"{}", []),
    (b"request " + b"i" * 100_000, b'{"op":"stream.list"}', []),
    (b"zork", b"1", BAD_NAME),
    (b"consumer S x", b"\xff\x00", BAD_NAME),
    (b"consumer S x", b'{"v":1,"config":"\\ud800"}', []),
    (b"consumer S x", DEEP, []),
    (b"consumer S x", DEFINITION % b'{"durable_name":"x","ack_wait":"%s"}' % (b"9" * 500_000 + b"s"), []),
    (b"pause S x", b'{"pause_until":' + b"9" * 5_000 + b"}", []),
]
ANSWERED: list[tuple[bytes, bytes, list[Header]]] = [
    (b"request bad-header", b'{"op":"stream.list"}', BAD_NAME),
    (b"request deep", DEEP, []),
    (b"request number", HUGE_NUMBER, []),
    (b"request text", HUGE_TEXT, []),
    (b"request surrogate", b'{"op":"consumer.info","stream":"\\udc00"}', []),
]


def write(scene: Scene, *records: Record, codec: int = 0) -> None:
    batch = build([*records], base_offset=0, codec=codec)
    assert send_batch(scene.bootstrap, f"{scene.prefix}.control", batch) == 0


def make_record(at: int, key: bytes, value: bytes | None, headers: list[Header]) -> Record:
    return Record(at, int(time.time() * 1000), key, value, headers)


def count_by_reason(served: Served) -> dict[str, float]:
    """The reasons for which anything was passed over; each is there with 0 from the start."""
    registry = served.service.metrics.registry
    found = {
        misfit.value: registry.get_sample_value(
            "overlay_control_records_unreadable_total", {"topic": "control", "reason": misfit.value}
        )
        for misfit in Misfit
    }
    assert None not in found.values(), found
    return {reason: count for reason, count in found.items() if count}


def count_passed_over(served: Served) -> float:
    return sum(count_by_reason(served).values())


@pytest.fixture
def control(scene: Scene) -> Control:
    return Control({"bootstrap.servers": scene.bootstrap}, scene.prefix, timeout=DEADLINE_S, name="test")


def test_requests_behind_hostile_records_are_answered(
    scene: Scene, control: Control, new_topic: NewTopicFixture
) -> None:
    """Also after a restart, which reads the hostile records again."""
    scene.add_stream("S", new_topic())
    with contextlib.closing(control), serve(scene) as served:
        for key, value, headers in [*PASSED_OVER, *ANSWERED]:
            write(scene, make_record(0, key, value, headers))
        bomb = make_record(0, b"zork", bytes(MOST_BYTES), [])
        write(scene, bomb, codec=4)
        assert send_batch(scene.bootstrap, f"{scene.prefix}.control", build_tiny(MOST_RECORDS + 1)) == 0
        assert [stream["config"]["name"] for stream in control.streams()] == ["S"]
        # the client's inbox is open by now, and meets the bad record before its answer
        bad = build([make_record(0, b"x", b"{}", BAD_NAME)])
        assert send_batch(scene.bootstrap, f"{scene.prefix}.replies", bad) == 0
        assert [stream["config"]["name"] for stream in control.streams()] == ["S"]
        wait_until(lambda: count_passed_over(served) == len(PASSED_OVER) + 2, DEADLINE_S, "hostile records are counted")
        assert count_by_reason(served) == {"key": 3, "json": 4, "form": 1, "batch": 1, "records": 1}
    with contextlib.closing(control), serve(scene) as served:
        assert [stream["config"]["name"] for stream in control.streams()] == ["S"]
        assert count_passed_over(served) >= len(PASSED_OVER)
