"""An embedded Apache Kafka: `with overlay.local.start() as broker: ... broker.bootstrap`."""

from .broker import Broker, start, status, stop
from .node import BrokerNode, plan_cluster
from .state import BrokerStatus, Condition

__all__ = ["Broker", "BrokerNode", "BrokerStatus", "Condition", "plan_cluster", "start", "status", "stop"]
