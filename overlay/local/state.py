"""The state of a broker that is kept between processes, such as ports and pid: `state.json`."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from overlay.errors import BrokerError

from .node import ALONE, BrokerNode


class Condition(enum.Enum):
    """Conditions of a folder's broker."""

    ABSENT = "absent"  # never started here
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The remembered state of a broker.

    Ports outlive a stop, so that the address stays. `pid` is 0 before the process exists.
    """

    port: int
    controller_port: int
    pid: int = 0
    ready: bool = False
    """Whether the broker has answered since its start."""
    started_at: float = 0.0
    """Seconds since 1970."""
    java: str = ""
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Address of each added listener, by its name."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The caller's properties, to check whether a running broker has the wanted ones."""
    node: BrokerNode = ALONE


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The status that `overlay local status` prints. `bootstrap`, `pid`, `started_at` (seconds
    since 1970) and `java` are "" or 0 unless the broker runs. `log`: None if none was ever started.
    """

    condition: Condition
    home: Path
    bootstrap: str = ""
    pid: int = 0
    started_at: float = 0.0
    java: str = ""
    log: Path | None = None

    def to_json(self) -> dict[str, object]:
        """Return the status as a JSON object."""
        return {
            "condition": self.condition.value,
            "home": str(self.home),
            "bootstrap": self.bootstrap,
            "pid": self.pid,
            "started_at": self.started_at,
            "java": self.java,
            "log": str(self.log) if self.log else "",
        }


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one broker and the paths in it."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def log(self) -> Path:
        return self.root / "logs" / "broker.log"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def server_properties(self) -> Path:
        return self.root / "server.properties"

    @property
    def logging(self) -> Path:
        return self.root / "log4j2.properties"

    @property
    def class_list(self) -> Path:
        return self.root / "classes.lst"

    @property
    def change_lock(self) -> Path:
        """Held by the process that starts or stops the broker, while it does so."""
        return self.root / "change.lock"

    @property
    def life_lock(self) -> Path:
        """Held by the broker's process for as long as it lives."""
        return self.root / "broker.lock"


def read_state(home: Home) -> BrokerState | None:
    """Return the remembered state.

    Returns None if there is none. Raises BrokerError if its file cannot be read or parsed.
    """
    try:
        return _parse_state(json.loads(home.state.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise BrokerError(
            f"{home.state}: this file cannot be read ({error})."
            " Delete it: the broker's data is kept, its port may change"
        ) from error


def _parse_state(fields: dict[str, Any]) -> BrokerState:
    node = fields.pop("node", {})
    ports = tuple(node.pop("controller_ports", ()))
    return BrokerState(**fields, node=BrokerNode(**node, controller_ports=ports))


def write_state(home: Home, state: BrokerState) -> None:
    """Replace the state file atomically, so that a reader never sees half of it."""
    part = home.state.with_suffix(f".{os.getpid()}")
    # the properties may contain passwords of listeners
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(state), file, indent=1)
    part.replace(home.state)
