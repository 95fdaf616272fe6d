from __future__ import annotations

from pathlib import Path

import pytest

from overlay.errors import BrokerError
from overlay.local.node import BrokerNode
from overlay.local.settings import address_listener, build_properties, check_extra, format_properties


def build(listeners: list[str], extra: dict[str, str]) -> dict[str, str]:
    return build_properties(port=1001, controller_port=1002, data=Path("/d"), listeners=listeners, extra=extra)


def test_added_listeners_stand_beside_ours() -> None:
    built = build(
        ["SASL_SSL://127.0.0.1:1003", "INNER://127.0.0.1:1004"], {"listener.security.protocol.map": "INNER:SSL"}
    )
    assert built["listeners"] == (
        "PLAINTEXT://127.0.0.1:1001,CONTROLLER://127.0.0.1:1002,SASL_SSL://127.0.0.1:1003,INNER://127.0.0.1:1004"
    )
    assert built["listener.security.protocol.map"] == (
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,INNER:SSL"
    )


def test_extra_properties_win_over_our_defaults() -> None:
    assert build([], {"auto.create.topics.enable": "true"})["auto.create.topics.enable"] == "true"


def test_a_node_of_several_names_all_controllers() -> None:
    node = BrokerNode(2, (1001, 1002, 1003))
    built = build_properties(port=9001, controller_port=1002, data=Path("/d"), listeners=[], extra={}, node=node)
    assert built["node.id"] == "2"
    assert built["controller.quorum.voters"] == "1@127.0.0.1:1001,2@127.0.0.1:1002,3@127.0.0.1:1003"
    assert "CONTROLLER://127.0.0.1:1002" in built["listeners"]
    assert build([], {})["controller.quorum.voters"] == "1@127.0.0.1:1002"


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"node.id": "7"}, "node.id"),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, "uses itself"),
    ],
)
def test_what_the_broker_sets_itself_is_refused(extra: dict[str, str], says: str) -> None:
    with pytest.raises(BrokerError, match=says):
        check_extra(extra)


def test_listener_without_port_is_refused() -> None:
    with pytest.raises(BrokerError, match="NAME://host:port"):
        address_listener("SSL://127.0.0.1")


def test_properties_are_escaped_as_java_reads_them() -> None:
    assert format_properties({"a": " x\\y\n\u00e9\U0001f600", "b": "k=v:w"}) == (
        "a=\\ x\\\\y\\n\\u00e9\\ud83d\\ude00\nb=k\\=v\\:w\n"
    )
