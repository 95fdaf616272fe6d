"""docker-compose.yml against the tree: files, ports, variables and names, since no engine runs in these tests."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from overlay.config import load
from overlay.worker.shard_manager import RELEASE_S

from .tree import ROOT, find_in_tree, list_mounts, list_ports, read_compose, read_yaml

COMPOSE = read_compose()
SERVICES = COMPOSE["services"]
OVERLAY = SERVICES["overlay"]
KAFKA = SERVICES["kafka"]
EACH = pytest.mark.parametrize("name", SERVICES)


def _assemble_config(folder: Path) -> Path:
    """What the overlay's container sees at /etc/overlay."""
    for mount in list_mounts(OVERLAY):
        if mount.is_bind:
            source, target = ROOT / mount.source, folder / mount.target.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return folder / "etc/overlay"


@EACH
def test_what_is_mounted_exists_and_is_not_written_to(name: str) -> None:
    for volume, mount in zip(SERVICES[name].get("volumes", ()), list_mounts(SERVICES[name]), strict=True):
        if mount.is_bind:
            assert (ROOT / mount.source).exists(), f"{name} mounts {mount.source}, which is not in the tree"
            assert volume.endswith(":ro"), volume
        else:
            assert mount.source in COMPOSE["volumes"], f"{name} uses the volume {mount.source}, which is not declared"


def test_every_declared_volume_is_used() -> None:
    used = {mount.source for service in SERVICES.values() for mount in list_mounts(service) if not mount.is_bind}
    assert used == set(COMPOSE["volumes"])


def test_ports_are_published_on_loopback_only_and_once() -> None:
    ports = [port for service in SERVICES.values() for port in list_ports(service)]
    assert {address for address, _, _ in ports} == {"127.0.0.1"}
    hosts = [host for _, host, _ in ports]
    assert len(hosts) == len(set(hosts))


@EACH
def test_images_have_a_version(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].partition(":")
    assert "build" in SERVICES[name] or re.fullmatch(r"v?\d+\.\d+\.\d+", tag), f"{image} has no fixed version"


@EACH
def test_a_service_waits_only_for_what_can_be_waited_for(name: str) -> None:
    waits = SERVICES[name].get("depends_on", {})
    for other in waits:
        condition = waits[other]["condition"] if isinstance(waits, dict) else "service_started"
        assert other in SERVICES
        assert condition != "service_healthy" or "healthcheck" in SERVICES[other]


def test_it_starts_without_any_variable_set() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert [found for found in re.findall(r"\$\{?\w+[^}\n]*\}?", text) if ":-" not in found] == []


def test_the_overlays_config_folder_loads_with_the_variables_that_compose_gives(tmp_path: Path) -> None:
    loaded = load(_assemble_config(tmp_path), environment=OVERLAY["environment"])
    assert loaded.problems == ()
    assert loaded.consumers
    assert loaded.service.kafka["bootstrap.servers"] == OVERLAY["environment"]["KAFKA_BOOTSTRAP_SERVERS"]
    host, port = loaded.service.http.address
    assert host == "0.0.0.0", "the container's loopback address cannot be published"
    assert [(container, published) for _, published, container in list_ports(OVERLAY)] == [(port, port)]


def test_every_variable_is_used_by_the_overlays_config() -> None:
    text = find_in_tree(OVERLAY, "/etc/overlay/overlay.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)\}", text)) == set(OVERLAY["environment"])


def test_the_topic_that_is_made_is_the_one_that_the_stream_reads(tmp_path: Path) -> None:
    loaded = load(_assemble_config(tmp_path), environment=OVERLAY["environment"])
    command = SERVICES["flights-topic"]["command"]
    made = command[command.index("--topic") + 1]
    assert {topic for stream in loaded.streams.values() for topic in stream.topic_names} == {made}


def test_the_overlay_stops_within_the_time_that_compose_gives() -> None:
    assert int(OVERLAY["stop_grace_period"].rstrip("s")) > RELEASE_S


def _listeners(variable: str) -> dict[str, str]:
    return dict(pair.split(":", 1) for pair in KAFKA["environment"][variable].split(","))


def test_kafkas_listeners_agree() -> None:
    environment = KAFKA["environment"]
    listen, advertised = _listeners("KAFKA_LISTENERS"), _listeners("KAFKA_ADVERTISED_LISTENERS")
    controller = environment["KAFKA_CONTROLLER_LISTENER_NAMES"]
    assert set(listen) == set(_listeners("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"))
    assert set(advertised) == set(listen) - {controller}
    assert environment["KAFKA_INTER_BROKER_LISTENER_NAME"] in advertised
    ports = {name: address.rpartition(":")[2] for name, address in listen.items()}
    assert {name: address.rpartition(":")[2] for name, address in advertised.items()}.items() <= ports.items()
    assert environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] == f"1@{KAFKA['hostname']}:{ports[controller]}"
    assert [(host, container) for _, host, container in list_ports(KAFKA)] == [(int(ports["HOST"]),) * 2]


def test_containers_reach_kafka_where_it_says_it_is() -> None:
    inside = _listeners("KAFKA_ADVERTISED_LISTENERS")["CONTAINERS"].removeprefix("//")
    assert inside.partition(":")[0] == KAFKA["hostname"] == "kafka"
    assert OVERLAY["environment"]["KAFKA_BOOTSTRAP_SERVERS"] == inside
    commands: list[Any] = [KAFKA["healthcheck"]["test"], SERVICES["flights-topic"]["command"]]
    assert [command[command.index("--bootstrap-server") + 1] for command in commands] == [inside, inside]


def test_kafkas_data_is_on_its_volume() -> None:
    assert KAFKA["environment"]["KAFKA_LOG_DIRS"] in [mount.target for mount in list_mounts(KAFKA)]


def test_kafkas_variables_name_settings_of_kafka(bootstrap: str) -> None:
    """The image makes `a.b.c` out of KAFKA_A_B_C and does not mind a misspelt one; a real broker knows its settings."""
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    known = admin.describe_configs([resource])[resource].result(30)
    asked = {name.removeprefix("KAFKA_").lower().replace("_", ".") for name in KAFKA["environment"]}
    assert asked - set(known) == set()


def test_prometheus_scrapes_the_overlay_where_it_listens(tmp_path: Path) -> None:
    prometheus = SERVICES["prometheus"]
    path = next(a.partition("=")[2] for a in prometheus["command"] if a.startswith("--config.file="))
    config = read_yaml(find_in_tree(prometheus, path))
    port = load(_assemble_config(tmp_path), environment=OVERLAY["environment"]).service.http.address[1]
    job, spark = config["scrape_configs"]
    assert job["job_name"] == "overlay", "dashboards and alerts ask for job overlay"
    assert job["static_configs"] == [{"targets": [f"overlay:{port}"]}]
    assert spark["job_name"] == "overlay-spark", "dashboards and alerts ask for job overlay-spark"
    assert spark["static_configs"] == [{"targets": []}], "a target that is not there would page"
    for rules in config["rule_files"]:
        assert find_in_tree(prometheus, str(Path(path).parent / rules)).is_file()


def test_grafana_finds_prometheus_and_its_dashboards() -> None:
    grafana = SERVICES["grafana"]
    provisioning = "/etc/grafana/provisioning"
    (source,) = read_yaml(find_in_tree(grafana, f"{provisioning}/datasources/prometheus.yaml"))["datasources"]
    address = urlsplit(source["url"])
    assert address.hostname in SERVICES
    assert address.port in [container for _, _, container in list_ports(SERVICES[str(address.hostname)])]
    (provider,) = read_yaml(find_in_tree(grafana, f"{provisioning}/dashboards/overlay.yaml"))["providers"]
    folder = find_in_tree(grafana, provider["options"]["path"])
    home = find_in_tree(grafana, grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home in list(folder.glob("*.json"))


def test_grafanas_step_is_prometheus_scrape_interval() -> None:
    (source,) = read_yaml(ROOT / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    scraped = read_yaml(ROOT / "grafana/prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
