"""Ports and names of several workers of one folder."""

from __future__ import annotations

import pytest

from overlay.config import ServiceConfig
from overlay.config.numbered import find_fault, number_worker


def make(
    http: str = "127.0.0.1:8222", fleet: str = "127.0.0.1:8223", worker: str = "", metrics: str = ""
) -> ServiceConfig:
    kafka = {"bootstrap.servers": "localhost:9092"}
    return ServiceConfig.model_validate(
        {
            "kafka": kafka,
            "http": {"listen": http, "metrics_listen": metrics},
            "fleet": {"listen": fleet, "worker": worker},
        }
    )


@pytest.mark.parametrize(
    ("http", "fleet", "listens"),
    [
        ("127.0.0.1:8222", "127.0.0.1:8223", ["127.0.0.1:8222", "127.0.0.1:8224", "127.0.0.1:8225"]),
        ("0.0.0.0:9000", "127.0.0.1:9002", ["0.0.0.0:9000", "0.0.0.0:9001", "0.0.0.0:9003"]),
        ("[::1]:9000", "127.0.0.1:8000", ["[::1]:9000", "[::1]:9001", "[::1]:9002"]),
        ("127.0.0.1:0", "127.0.0.1:0", ["127.0.0.1:0"] * 3),
    ],
)
def test_each_worker_has_a_port_of_its_own(http: str, fleet: str, listens: list[str]) -> None:
    numbered = [number_worker(make(http, fleet), number) for number in range(3)]
    assert [each.http.listen for each in numbered] == listens
    assert [each.http.address for each in numbered]
    assert {each.fleet.listen for each in numbered} == {fleet}


def test_a_name_is_numbered_and_a_default_name_follows_the_port() -> None:
    assert [number_worker(make(worker="east"), number).fleet.worker for number in (0, 1)] == ["east-1", "east-2"]
    assert number_worker(make(), 1).fleet.worker == ""


def test_ports_and_names_that_there_are_not() -> None:
    assert find_fault(make(), 64) == ""
    assert "need ports up to 65537" in find_fault(make("127.0.0.1:65530"), 8)
    assert "is longer than 100 characters" in find_fault(make(worker="x" * 99), 2)


def test_an_address_for_metrics_is_numbered_too() -> None:
    service = make("127.0.0.1:8222", "127.0.0.1:9101", metrics="0.0.0.0:9100")
    assert [number_worker(service, number).http.metrics_listen for number in range(3)] == [
        "0.0.0.0:9100",
        "0.0.0.0:9102",
        "0.0.0.0:9103",
    ]
    assert find_fault(service, 64) == ""
    assert "http.metrics_listen: 900 workers need the ports 9100 to 10000" in find_fault(service, 900)
    assert "http.metrics_listen: 2 workers need ports up to 65536" in find_fault(make(metrics="127.0.0.1:65535"), 2)
    assert number_worker(make(metrics="127.0.0.1:0"), 3).http.metrics_listen == "127.0.0.1:0"
    assert number_worker(make(), 3).http.metrics_listen == ""
