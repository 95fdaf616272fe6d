"""An embedded Apache Kafka: `with overlay.local.start() as broker: ... broker.bootstrap`."""

from .broker import Broker, start, status, stop
from .node import Node, plan_cluster
from .state import Condition, Status

__all__ = ["Broker", "Condition", "Node", "Status", "plan_cluster", "start", "status", "stop"]
