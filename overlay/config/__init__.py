"""Config files: the models of their three kinds, JetStream's rules for consumers, the loader.

A name is imported when it is first used: a command that needs one model does not wait until the others are made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from .loader import Loaded, load
    from .service import HttpConfig, ServiceConfig, TopicsConfig
    from .service_file import load_service
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

_HOMES = {
    "AckPolicy": ".consumer",
    "ApiError": ".codes",
    "ConsumerConfig": ".consumer",
    "DeliverPolicy": ".consumer",
    "Delivery": ".consumer",
    "ERRORS": ".codes",
    "HeaderStyle": ".consumer",
    "HttpConfig": ".service",
    "IndexConfig": ".stream",
    "Loaded": ".loader",
    "LogEnds": ".ends",
    "OnCorrupt": ".stream",
    "OnUndeliverable": ".consumer",
    "OutputConfig": ".consumer",
    "PartitionBy": ".consumer",
    "Profile": ".checks",
    "Property": ".stream",
    "PropertyType": ".stream",
    "ServiceConfig": ".service",
    "StreamConfig": ".stream",
    "Timestamps": ".consumer",
    "TopicSource": ".stream",
    "TopicsConfig": ".service",
    "Violation": ".checks",
    "check_consumer": ".checks",
    "check_update": ".update",
    "fill_defaults": ".defaults",
    "find_cycle": ".cycle",
    "load": ".loader",
    "load_service": ".service_file",
    "to_wire": ".wire",
}
"""By name, the module that has it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
