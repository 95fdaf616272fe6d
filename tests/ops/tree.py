"""The files of the tree that these tests hold against each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
DASHBOARDS = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))


def read_yaml(path: Path) -> Any:
    """A YAML file of the tree as plain dicts and lists."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def read_compose() -> Any:
    return read_yaml(ROOT / "docker-compose.yml")


def read_dashboard(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Mount:
    """`source` is a path of the tree, or the name of a volume; `target` a path in the container."""

    source: str
    target: str

    @property
    def is_bind(self) -> bool:
        return self.source.startswith((".", "/"))


def list_mounts(service: Any) -> list[Mount]:
    return [Mount(*volume.split(":")[:2]) for volume in service.get("volumes", ())]


def find_in_tree(service: Any, path: str) -> Path:
    """Where the tree holds what a container sees at `path`."""
    for mount in list_mounts(service):
        if mount.is_bind and (path == mount.target or path.startswith(mount.target + "/")):
            return ROOT / mount.source / path[len(mount.target) :].lstrip("/")
    raise AssertionError(f"nothing of the tree is mounted at {path}")


def list_ports(service: Any) -> list[tuple[str, int, int]]:
    """Address, port on the host and port in the container of each published port."""
    found = []
    for port in service.get("ports", ()):
        address, host, container = port.split(":")
        found.append((address, int(host), int(container)))
    return found


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, with where it stands and the legends or texts that are filled from its labels."""

    place: str
    expression: str
    texts: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Labels that the texts name: `{{consumer}}` in legends, `$labels.consumer` in alerts."""
        found = re.findall(r"\{\{\s*(\w+)\s*\}\}|\$labels\.(\w+)", " ".join(self.texts))
        return frozenset(legend or alert for legend, alert in found)


def fill_variables(expression: str) -> str:
    """What Grafana fills in, filled in."""
    return expression.replace("$__rate_interval", "1m").replace("$stream", ".*").replace("$consumer", ".*")


def list_panels(board: Any) -> Iterator[Any]:
    """Panels of a dashboard that show data, those of collapsed rows included."""
    for panel in board["panels"]:
        yield from list_panels(panel) if panel.get("panels") else ()
        if panel["type"] not in ("row", "text"):
            yield panel


def list_queries() -> list[Query]:
    """Every expression of the dashboards and the alerts."""
    found = []
    for path in DASHBOARDS:
        board = read_dashboard(path)
        for panel in list_panels(board):
            for target in panel["targets"]:
                place = f"{path.name}: {panel['title']} {target['refId']}"
                found.append(Query(place, fill_variables(target["expr"]), (target["legendFormat"],)))
        for variable in board["templating"]["list"]:
            query = re.fullmatch(r"label_values\((.*), *(\w+)\)", variable["query"]["query"])
            assert query, variable
            texts = ("{{" + query[2] + "}}",)
            found.append(Query(f"{path.name}: variable {variable['name']}", fill_variables(query[1]), texts))
    for group in read_yaml(ROOT / "grafana" / "alerts.yml")["groups"]:
        for rule in group["rules"]:
            texts = tuple(rule["annotations"].values())
            found.append(Query(f"alerts.yml: {rule['alert']}", rule["expr"], texts))
    return found
