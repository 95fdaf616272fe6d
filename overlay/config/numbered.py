"""The settings of one of several workers that `overlay run --workers N` starts from one folder. Pure."""

from __future__ import annotations

from .service import ServiceConfig


def number_worker(service: ServiceConfig, number: int) -> ServiceConfig:
    """Return the settings of worker `number`, counted from 0.

    The first listens at `http.listen`, each further one at the next port, without that of `fleet.listen`. Port 0 stays 0.
    If `fleet.worker` gives a name, a dash and the number from 1 are added to it.
    """
    host, first = service.http.address
    port = _choose_port(first, service.fleet.address[1], number)
    listen = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    name = f"{service.fleet.worker}-{number + 1}" if service.fleet.worker else ""
    return service.model_copy(
        update={
            "http": service.http.model_copy(update={"listen": listen}),
            "fleet": service.fleet.model_copy(update={"worker": name}),
        }
    )


def _choose_port(first: int, avoided: int, number: int) -> int:
    if first == 0:
        return 0
    port = first + number
    return port + 1 if first < avoided <= port else port


def find_fault(service: ServiceConfig, count: int) -> str:
    """Return why so many workers cannot be started with these settings, and what to do; "" if they can."""
    last = number_worker(service, count - 1)
    port = _choose_port(service.http.address[1], service.fleet.address[1], count - 1)
    if port > 65_535:
        return f"http.listen: {count} workers need ports up to {port}. Choose a lower one"
    if len(last.fleet.worker) > 100:
        return f"fleet.worker: {last.fleet.worker} is longer than 100 characters. Choose a shorter one"
    return ""
