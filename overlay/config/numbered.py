"""The settings of one of several workers that `overlay run --workers N` starts from one folder. Pure."""

from __future__ import annotations

from .service import ServiceConfig


def number_worker(service: ServiceConfig, number: int) -> ServiceConfig:
    """Return the settings of worker `number`, counted from 0.

    Worker 0 listens at `http.listen`, each further one at the next port, which skips the port of `fleet.listen`; the
    same for `http.metrics_listen`. Port 0 stays 0. If `fleet.worker` gives a name, a dash and `number` + 1 are added.
    """
    http = service.http
    listen = {"listen": _choose_address(http.address, service, number)}
    if http.metrics_address is not None:
        listen["metrics_listen"] = _choose_address(http.metrics_address, service, number)
    name = f"{service.fleet.worker}-{number + 1}" if service.fleet.worker else ""
    return service.model_copy(
        update={
            "http": http.model_copy(update=listen),
            "fleet": service.fleet.model_copy(update={"worker": name}),
        }
    )


def _choose_address(first: tuple[str, int], service: ServiceConfig, number: int) -> str:
    host, port = first[0], _choose_port(first[1], service.fleet.address[1], number)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _choose_port(first: int, avoided: int, number: int) -> int:
    if first == 0:
        return 0
    port = first + number
    return port + 1 if first < avoided <= port else port


def find_fault(service: ServiceConfig, count: int) -> str:
    """Return why `count` workers cannot be started with these settings, and what to do; "" if neither their ports nor
    their names are in the way.
    """
    last = number_worker(service, count - 1)
    http, avoided = service.http, service.fleet.address[1]
    taken: set[int] = set()
    for name, first in (("http.listen", http.address), ("http.metrics_listen", http.metrics_address)):
        ports = [_choose_port(first[1], avoided, number) for number in range(count)] if first and first[1] else []
        if ports and ports[-1] > 65_535:
            return f"{name}: {count} workers need ports up to {ports[-1]}. Choose a lower one"
        if taken.intersection(ports):
            wanted = f"the ports {ports[0]} to {ports[-1]}"
            return f"{name}: {count} workers need {wanted}, and http.listen has some of them. Choose others"
        taken.update(ports)
    if len(last.fleet.worker) > 100:
        return f"fleet.worker: {last.fleet.worker} is longer than 100 characters. Choose a shorter one"
    return ""
