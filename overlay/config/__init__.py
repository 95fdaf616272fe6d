"""Config files: the models of their three kinds, JetStream's rules for consumers, the loader."""

from __future__ import annotations

from .checks import Profile, Violation, check_consumer
from .codes import ERRORS, ApiError
from .consumer import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    Delivery,
    HeaderStyle,
    OnUndeliverable,
    OutputConfig,
    PartitionBy,
    Timestamps,
)
from .cycle import find_cycle
from .defaults import fill_defaults
from .ends import LogEnds
from .load import Loaded, load, load_service
from .service import HttpConfig, ServiceConfig, TopicsConfig
from .stream import IndexConfig, OnCorrupt, Property, PropertyType, StreamConfig, TopicSource
from .update import check_update
from .wire import to_wire

__all__ = [
    "ERRORS",
    "AckPolicy",
    "ApiError",
    "ConsumerConfig",
    "DeliverPolicy",
    "Delivery",
    "HeaderStyle",
    "HttpConfig",
    "IndexConfig",
    "Loaded",
    "LogEnds",
    "OnCorrupt",
    "OnUndeliverable",
    "OutputConfig",
    "PartitionBy",
    "Profile",
    "Property",
    "PropertyType",
    "ServiceConfig",
    "StreamConfig",
    "Timestamps",
    "TopicSource",
    "TopicsConfig",
    "Violation",
    "check_consumer",
    "check_update",
    "fill_defaults",
    "find_cycle",
    "load",
    "load_service",
    "to_wire",
]
