from __future__ import annotations

import re

from overlay.local.node import ALONE, plan_cluster


def test_nodes_of_a_cluster_know_each_other() -> None:
    nodes = plan_cluster(3, heap_mib=256)
    assert [node.id for node in nodes] == [1, 2, 3]
    assert len({node.cluster_id for node in nodes}) == 1
    assert re.fullmatch(r"[\w][\w-]{21}", nodes[0].cluster_id)
    assert [node.controller_port for node in nodes] == list(nodes[0].controller_ports)
    assert len(set(nodes[0].controller_ports)) == 3
    assert len({node.list_voters(node.controller_port) for node in nodes}) == 1
    assert not any(node.is_alone for node in nodes)


def test_a_node_alone_takes_any_port() -> None:
    assert (ALONE.is_alone, ALONE.controller_port) == (True, 0)
    assert ALONE.list_voters(9) == "1@127.0.0.1:9"
