"""server.properties of the embedded broker: Kafka's defaults, reduced for nodes on one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from overlay.errors import BrokerError

from .node import ALONE, HOST, BrokerNode

MAIN_LISTENER = "PLAINTEXT"
CONTROLLER_LISTENER = "CONTROLLER"

# Properties that the caller may not set, because start, status and stop depend on them.
_OURS = frozenset({"process.roles", "node.id", "controller.quorum.voters", "controller.listener.names", "log.dirs"})

_SINGLE_NODE = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    # created on first use, one folder a partition: the default of 50 would delay the first consumer
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # by default a group waits three seconds for more members
    "group.initial.rebalance.delay.ms": "0",
    # after a crash the node cannot register again before its old session expires (default 9 s)
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    # a misspelt topic should be an error
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "268435456",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "2",
}


def build_properties(
    *,
    port: int,
    controller_port: int,
    data: Path,
    listeners: Sequence[str],
    extra: Mapping[str, str],
    node: BrokerNode = ALONE,
) -> dict[str, str]:
    """Return all server properties. Raises BrokerError as `check_extra`.

    `extra`: the caller's properties, which replace the overlay's defaults; `listener.security.protocol.map` is added
    to the broker's own. `listeners`: the caller's own (`NAME://host:port`), in addition to the broker's. They are
    used in place of `listeners` in `extra`, whose ports may be 0.
    """
    check_extra(extra)
    protocols = {MAIN_LISTENER: "PLAINTEXT", CONTROLLER_LISTENER: "PLAINTEXT"}
    protocols |= {name: name for name in map(name_listener, listeners) if "." not in name and name in _PROTOCOLS}
    for pair in filter(None, extra.get("listener.security.protocol.map", "").split(",")):
        name, _, protocol = pair.strip().partition(":")
        protocols[name] = protocol
    ours = [f"{MAIN_LISTENER}://{HOST}:{port}", f"{CONTROLLER_LISTENER}://{HOST}:{controller_port}"]
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": node.list_voters(controller_port),
        "controller.listener.names": CONTROLLER_LISTENER,
        "inter.broker.listener.name": MAIN_LISTENER,
        "log.dirs": str(data),
        **_SINGLE_NODE,
        **extra,
        "listeners": ",".join([*ours, *listeners]),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
    }


_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def check_extra(extra: Mapping[str, str]) -> None:
    """Raise BrokerError for properties that the embedded broker has to set itself, and for a listener with the name
    of one of its own.
    """
    if refused := sorted(_OURS & set(extra)):
        raise BrokerError(f"broker property {', '.join(refused)}: the embedded broker sets this itself. Leave it out")
    for listener in split_listeners(extra):
        if name_listener(listener) in (MAIN_LISTENER, CONTROLLER_LISTENER):
            raise BrokerError(
                f"broker property listeners: {listener} takes a name that the embedded broker uses itself."
                " Give only the listeners to add, under other names"
            )


def split_listeners(extra: Mapping[str, str]) -> list[str]:
    """Return the listeners that the caller adds by the property `listeners` of `extra`: `NAME://host:port`, port 0
    for any free one. Empty if there is no such property.
    """
    return [listener.strip() for listener in extra.get("listeners", "").split(",") if listener.strip()]


def name_listener(listener: str) -> str:
    """Return the name of a listener: `SSL` of `SSL://127.0.0.1:0`."""
    return listener.partition("://")[0]


def address_listener(listener: str) -> tuple[str, int]:
    """Return host and port of a listener like `SSL://127.0.0.1:0`. Raises BrokerError otherwise."""
    host, _, port = listener.partition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise BrokerError(f"broker property listeners: {listener!r} is not of the form NAME://host:port")
    return host, int(port)


def format_properties(properties: Mapping[str, str]) -> str:
    """Return the text of a Java properties file, which is Latin-1 with backslash escapes."""
    return "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in properties.items())


def _escape(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("=", "\\=").replace(":", "\\:")
    if text.startswith(" "):
        text = "\\" + text
    return "".join(c if ord(c) < 128 else "".join(f"\\u{u:04x}" for u in _utf16_units(c)) for c in text)


def _utf16_units(character: str) -> list[int]:
    raw = character.encode("utf-16-be")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


LOGGING = """\
# Quiet: what an operator would want to read, to the process's output, which start() sends to logs/broker.log.
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{yyyy-MM-dd HH:mm:ss,SSS} %p %m (%c{1})%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
logger.server.name=kafka.server.KafkaRaftServer
logger.server.level=info
"""
