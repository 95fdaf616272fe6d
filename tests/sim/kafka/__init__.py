"""A Kafka cluster in memory, at the layer of request and response objects.

`cluster.Cluster` is the whole of it for its users. It is pure: no event loop, no clock, no randomness. Time is an argument,
and what a broker does later is done by `Cluster.advance`.
"""

from .cluster import Cluster
from .session import Answer, Session
from .settings import Settings

__all__ = ["Answer", "Cluster", "Session", "Settings"]
