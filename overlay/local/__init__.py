"""An embedded Apache Kafka: `with overlay.local.start() as broker: ... broker.bootstrap`."""

from overlay.local.broker import Broker, start, status, stop
from overlay.local.node import Node, plan_cluster
from overlay.local.state import Condition, Status

__all__ = ["Broker", "Condition", "Node", "Status", "plan_cluster", "start", "status", "stop"]
