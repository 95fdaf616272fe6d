"""Config files: models of the three kinds of file, JetStream's rules for consumers, and the loader of a folder."""

from __future__ import annotations

from overlay.config.checks import Profile, Violation, check_consumer
from overlay.config.codes import ERRORS, ApiError
from overlay.config.consumer import (
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
from overlay.config.cycle import find_cycles
from overlay.config.defaults import fill_defaults
from overlay.config.ends import LogEnds
from overlay.config.load import Loaded, load, load_service
from overlay.config.service import HttpConfig, ServiceConfig, TopicsConfig
from overlay.config.stream import IndexConfig, OnCorrupt, Property, PropertyType, StreamConfig, TopicSource
from overlay.config.update import check_update
from overlay.config.wire import from_wire, to_wire

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
    "find_cycles",
    "from_wire",
    "load",
    "load_service",
    "to_wire",
]
