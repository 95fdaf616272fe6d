"""A real Apache Kafka node (KRaft, broker and controller in one process) for demos and tests.

The hard part is to know whether the broker of a folder runs, from any process and after any
accident. A pid in a file does not tell: pids are reused, and files outlive crashes. So the broker's
process inherits the descriptor of a locked file, `broker.lock`. The kernel releases a flock when
the last process that has the file open ends, however it ended. The rules:

- If the lock is held, the broker lives, and the pid in state.json is its pid, or 0 if its start was
  cut off.
- If the lock is free, there is no broker, whatever state.json says. No signal is ever sent to the
  remembered pid.
- A process that starts or stops a broker holds `change.lock` meanwhile. So of two starts of one
  folder the second finds the running broker, and no process reads a pid that is about to change.

Free ports are chosen and remembered, so that an address survives a stop and start. If another
program has taken the port since, a new one is chosen. A free port can be taken between the check
and Kafka's bind. So a start that fails because of its port is repeated with other ports.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from overlay.errors import BrokerError
from overlay.waits import comes_true

from . import launch, ports, settings
from .folders import find_home, make_folder
from .guard import Guard
from .jars import fetch_jars
from .java import Java, find_java
from .locks import hold_lock, is_locked, take_lock
from .node import ALONE, HOST, BrokerNode, generate_cluster_id
from .state import BrokerState, BrokerStatus, Condition, Home, read_state, write_state

STOP_S = 60.0
_PAUSE_S = 0.02
_PORT_TRIES = 3
_PORT_LOST = "Address already in use"
_LOST = (
    "{home.root}: a broker runs there whose process is not known (its start was cut off)."
    " End the process that holds {home.life_lock} and try again"
)
_CLEAR = (
    "import shutil, sys, pathlib, overlay.local as l; l.stop(pathlib.Path(sys.argv[1])); shutil.rmtree(sys.argv[1])"
)

# Brokers that this process started. They are its children, so it must wait for them when they end.
_children: dict[int, subprocess.Popen[bytes]] = {}


class Broker:
    """A running broker. As a context manager, it stops the broker at the end of the block. `stop`,
    `kill` and `restart` raise BrokerError, for example if the process does not end or start in time.
    """

    def __init__(self, home: Home, state: BrokerState, *, moved_from: str = "", ephemeral: bool = False) -> None:
        self._home, self._state = home, state
        self._guard = Guard([sys.executable, "-c", _CLEAR, str(home.root)]) if ephemeral else None
        self.moved_from = moved_from
        """The address before this start, when another program has taken it since; else empty."""

    @property
    def bootstrap(self) -> str:
        return _address(self._state)

    @property
    def pid(self) -> int:
        return self._state.pid

    @property
    def home(self) -> Path:
        return self._home.root

    @property
    def log(self) -> Path:
        return self._home.log

    @property
    def listeners(self) -> Mapping[str, str]:
        """Address (`host:port`) of each listener that was added by `properties`, by its name."""
        return self._state.listeners

    def stop(self) -> None:
        """Stop the broker, if it runs, and wait for its end. An ephemeral home is removed."""
        _end_process(self._home, signal.SIGTERM)
        if self._guard is not None:
            atexit.unregister(self.stop)
            shutil.rmtree(self._home.root, ignore_errors=True)
            self._guard.release()

    def kill(self) -> None:
        """Kill the process, if it runs, as in a crash, and wait for its end.

        The home stays, even an ephemeral one.
        """
        _end_process(self._home, signal.SIGKILL)

    def restart(self) -> None:
        """Stop the broker if it runs, and start it again with the same data and properties.

        It keeps its port if the port is still free.
        """
        _end_process(self._home, signal.SIGTERM)
        self._state, self.moved_from = _start(self._home, self._state.properties, self._state.node)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def start(
    home: Path | None = None,
    *,
    properties: Mapping[str, str] | None = None,
    node: BrokerNode = ALONE,
    ephemeral: bool = False,
) -> Broker:
    """Start the broker of a folder and wait until it answers.

    A running broker is returned as it is.

    home: by default $OVERLAY_HOME/local or the platform's data folder; with `ephemeral` a temporary
    folder.

    properties: Kafka's server properties, in addition to the overlay's. `listeners`
    (`NAME://host:port`, port 0 for any free one) are added, and Broker.listeners has their
    addresses. If given, a running broker must have the same properties.

    node: the broker's place in a cluster of several, see `plan_cluster`. A running broker must be
    that node.

    ephemeral: the broker is stopped and its folder removed by stop(), and when this Python process
    ends for any reason.

    Raises BrokerError if jars, Java, the folder or the start fail. The message says what to do.
    """
    settings.check_extra(properties or {})
    if home is None:
        home = Path(tempfile.mkdtemp(prefix="kafka-overlay-")) if ephemeral else find_home()
    where = Home(home.absolute())
    state, moved_from = _start(where, properties, node)
    broker = Broker(where, state, moved_from=moved_from, ephemeral=ephemeral)
    if ephemeral:
        atexit.register(broker.stop)
    return broker


def status(home: Path | None = None) -> BrokerStatus:
    """Return the state of a folder's broker, without changing anything.

    Raises BrokerError if its state file cannot be read.
    """
    where = Home((home or find_home()).absolute())
    state = read_state(where)
    if state is None:
        return BrokerStatus(Condition.ABSENT, where.root)
    if not is_locked(where.life_lock):
        return BrokerStatus(Condition.STOPPED, where.root, log=where.log)
    if not state.ready:
        return BrokerStatus(Condition.STARTING, where.root, log=where.log)
    running = BrokerStatus(Condition.RUNNING, where.root, _address(state), state.pid, log=where.log)
    return replace(running, started_at=state.started_at, java=state.java)


def stop(home: Path | None = None) -> bool:
    """Stop the broker of a folder and wait for its end. Return False if none was running. Raises BrokerError if it
    does not end in time, or if its process is not known.
    """
    where = Home((home or find_home()).absolute())
    return _end_process(where, signal.SIGTERM)


def _start(home: Home, extra: Mapping[str, str] | None, node: BrokerNode) -> tuple[BrokerState, str]:
    """Start the broker of a folder and wait until it answers, unless it runs already. Return its state, and its
    former address if it now has another port, else "". `extra`: properties; if None, those of a running broker are
    not checked. Raises BrokerError.
    """
    make_folder(home.root, "Name another folder with --home or $OVERLAY_HOME")
    if not is_locked(home.life_lock):
        # a first fetch may take minutes, so it happens before the folder is locked
        fetch_jars("broker")
    with hold_lock(home.change_lock, wait_s=launch.START_S, what="starting or stopping this broker"):
        before = read_state(home)
        if is_locked(home.life_lock):
            return _adopt(home, before, extra, node), ""
        java, jars = find_java(), fetch_jars("broker")
        for attempt in range(_PORT_TRIES):
            state = _choose_ports(before if attempt == 0 else None, java, extra or {}, node)
            try:
                state = _launch(home, state, java, jars)
                break
            except BrokerError:
                if attempt + 1 == _PORT_TRIES or _PORT_LOST not in launch.read_tail(home.log, 200):
                    raise
    moved = before is not None and before.port != state.port
    return state, _address(before) if before and moved else ""


def _adopt(home: Home, state: BrokerState | None, extra: Mapping[str, str] | None, node: BrokerNode) -> BrokerState:
    """Return the state of the broker that runs already, after it has answered.

    Raises BrokerError if it has other properties (unless `extra` is None) or is another node, or if
    its process is not known.
    """
    if state is None or state.pid == 0:
        raise BrokerError(_LOST.format(home=home))
    if extra is not None and dict(extra) != dict(state.properties):
        raise BrokerError(f"{home.root}: a broker runs there with other properties. Stop it first: overlay local down")
    if node != state.node:
        raise BrokerError(f"{home.root}: a broker runs there as another node. Stop it first: overlay local down")
    if not state.ready:
        # the process that started the broker was killed while it waited
        launch.wait_ready(home, HOST, state.port)
        state = replace(state, ready=True)
        write_state(home, state)
    return state


def _choose_ports(before: BrokerState | None, java: Java, extra: Mapping[str, str], node: BrokerNode) -> BrokerState:
    """Return the state for a start, without a process. Each port is that of `before` if it is free now, else a new
    one; a node of a cluster has the controller port that was planned for it. A listener of `extra` with a port of its
    own keeps that.
    """
    added = settings.split_listeners(extra)
    fresh = ports.find_free(HOST, 2 + len(added))
    port, controller_port = fresh[:2]
    if before is not None:
        if ports.is_free(HOST, before.port):
            port = before.port
        if ports.is_free(HOST, before.controller_port):
            controller_port = before.controller_port
    controller_port = node.controller_port or controller_port
    listeners: dict[str, str] = {}
    for listener, free in zip(added, fresh[2:], strict=True):
        host, wanted = settings.address_listener(listener)
        name = settings.name_listener(listener)
        remembered = before.listeners.get(name, "") if before else ""
        if wanted == 0 and remembered and ports.is_free(host, int(remembered.rpartition(":")[2])):
            listeners[name] = remembered
        else:
            listeners[name] = f"{host}:{wanted or free}"
    return BrokerState(
        port, controller_port, java=str(java.program), listeners=listeners, properties=dict(extra), node=node
    )


def _launch(home: Home, state: BrokerState, java: Java, jars: list[Path]) -> BrokerState:
    _write_settings(home, state)
    write_state(home, state)
    if not (home.data / "meta.properties").exists():
        # an interrupted format leaves files on which the next one fails; meta.properties comes last
        shutil.rmtree(home.data, ignore_errors=True)
        launch.format_storage(home, java, jars, state.node.cluster_id or generate_cluster_id())
    process = _spawn(home, state, java, jars)
    state = replace(state, pid=process.pid, started_at=time.time())
    try:
        write_state(home, state)
        launch.wait_ready(home, HOST, state.port)
        launch.keep_class_data(home, java, jars)
    except BaseException:
        # also on Ctrl-C: otherwise a half-started broker would keep running unknown
        process.kill()
        process.wait()
        del _children[process.pid]
        raise
    state = replace(state, ready=True)
    write_state(home, state)
    return state


def _spawn(home: Home, state: BrokerState, java: Java, jars: list[Path]) -> subprocess.Popen[bytes]:
    life_lock = take_lock(home.life_lock)
    if life_lock is None:
        raise BrokerError(f"{home.life_lock}: another process has locked this file. End it and try again")
    try:
        process = launch.spawn_broker(home, java, jars, state.node.heap_mib, life_lock)
    finally:
        # from now on only the broker's own descriptor holds the lock
        os.close(life_lock)
    _children[process.pid] = process
    return process


def _write_settings(home: Home, state: BrokerState) -> None:
    properties = settings.build_properties(
        port=state.port,
        controller_port=state.controller_port,
        data=home.data,
        listeners=[f"{name}://{address}" for name, address in state.listeners.items()],
        extra=state.properties,
        node=state.node,
    )
    # the file may contain passwords of listeners
    with open(os.open(home.server_properties, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(settings.format_properties(properties))
    home.logging.write_text(settings.LOGGING)


def _end_process(home: Home, how: signal.Signals) -> bool:
    """Send the signal to the broker and wait until its process has ended. Return False if none was running. Raises
    BrokerError if it does not end in time, or if its process is not known.
    """
    if not is_locked(home.life_lock):
        return False
    with hold_lock(home.change_lock, wait_s=launch.START_S, what="starting or stopping this broker"):
        state = read_state(home)
        if state is None or not is_locked(home.life_lock):
            return False
        if state.pid == 0:
            raise BrokerError(_LOST.format(home=home))
        os.kill(state.pid, how)
        _wait_end(home, state.pid, how)
        return True


def _wait_end(home: Home, pid: int, how: signal.Signals) -> None:
    if not comes_true(lambda: not is_locked(home.life_lock), STOP_S, pause_s=_PAUSE_S):
        raise BrokerError(
            f"the broker (process {pid}) did not end within {STOP_S:.0f} s of {how.name}. See {home.log};"
            f" `kill -9 {pid}` ends it, and the next start recovers its data"
        )
    if child := _children.pop(pid, None):
        child.wait()


def _address(state: BrokerState) -> str:
    return f"{HOST}:{state.port}"
