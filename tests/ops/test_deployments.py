"""examples/systemd and examples/kubernetes against the code: commands, pages, ports, paths, and times to stop."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from overlay.cli import overlay
from overlay.config import Loaded, load
from overlay.credentials import list_files
from overlay.metrics import Metrics
from overlay.worker.http import make_app
from overlay.worker.shard_manager import RELEASE_S
from overlay.worker.supervisor import STOP_S

from .test_operations_page import PAGE, NoReports
from .tree import ROOT, read_yaml

UNIT = ROOT / "examples" / "systemd" / "kafka-overlay.service"
KUBERNETES = ROOT / "examples" / "kubernetes"
KUSTOMIZATION = read_yaml(KUBERNETES / "kustomization.yaml")
MANIFESTS = {
    each["kind"]: each
    for name in KUSTOMIZATION["resources"]
    for each in YAML(typ="safe", pure=True).load_all((KUBERNETES / name).read_text(encoding="utf-8"))
}
WORKERS = MANIFESTS["StatefulSet"]["spec"]
POD = WORKERS["template"]["spec"]
(CONTAINER,) = POD["containers"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def parse_command(words: list[str]) -> dict[str, Any]:
    """The parameters of a call of `overlay run`, as click reads them."""
    name, *arguments = words
    command = overlay.get_command(click.Context(overlay), name)
    assert name == "run" and command is not None
    known = {option: parameter for parameter in command.params for option in parameter.opts}
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert pairs.keys() <= known.keys()
    return {
        option: known[option].type.convert(value, known[option], None)
        for option, value in pairs.items()
        if option != "--config"
    } | {"--config": pairs["--config"]}


class Unit(configparser.ConfigParser):
    """A unit of systemd, in which the names of settings have capitals."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def read_unit() -> Unit:
    unit = Unit(interpolation=None, delimiters=("=",))
    unit.read(UNIT)
    return unit


def test_the_unit_starts_a_command_that_there_is() -> None:
    program, *words = shlex.split(read_unit()["Service"]["ExecStart"])
    assert Path(program).is_absolute() and Path(program).name == "overlay"
    assert parse_command(words)["--config"] == "/etc/kafka-overlay"


def test_the_unit_gives_the_time_that_a_stop_takes() -> None:
    service = read_unit()["Service"]
    assert int(service["TimeoutStopSec"]) > max(STOP_S, RELEASE_S)
    # the parent passes SIGTERM on to its workers
    assert service["KillMode"] == "mixed"
    assert "KillSignal" not in service


def test_the_unit_keeps_kernels_and_passwords_where_they_are_looked_for() -> None:
    service = read_unit()["Service"]
    assert service["Environment"] == f"NUMBA_CACHE_DIR=%C/{service['CacheDirectory']}"
    name, _, path = service["LoadCredential"].partition(":")
    assert f"file:${{CREDENTIALS_DIRECTORY}}/{name}" in PAGE
    assert path in PAGE
    # ProtectSystem leaves no other folder to write to; kernels are machine code that the process makes
    assert service["ProtectSystem"] == "strict"
    assert service["MemoryDenyWriteExecute"] == "no"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_is_sound(tmp_path: Path) -> None:
    """And a setting that systemd does not know is told, so that this could fail."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/kafka-overlay/bin/overlay", sys.executable)
    for more, complaint in (("", None), ("Zork=1\n", "Zork")):
        unit = tmp_path / "kafka-overlay.service"
        unit.write_text(text.replace("[Install]", f"{more}[Install]"))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(unit)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        told = "\n".join(line for line in done.stderr.splitlines() if "kafka-overlay" in line)
        if complaint is None:
            assert (done.returncode, told) == (0, "")
        else:
            assert complaint in told


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The config folder as a pod sees it: files of the ConfigMap where the volume puts them."""
    folder = tmp_path_factory.mktemp("config")
    (generator,) = KUSTOMIZATION["configMapGenerator"]
    keys = dict(line.split("=", 1) for line in generator["files"])
    volume = find_volume("config")["configMap"]
    assert volume["name"] == generator["name"]
    for item in volume["items"]:
        (folder / item["path"]).parent.mkdir(exist_ok=True)
        shutil.copy(KUBERNETES / keys[item["key"]], folder / item["path"])
    assert {item["key"] for item in volume["items"]} == {*keys}
    return load(folder, environment={variable["name"]: "overlay-0" for variable in CONTAINER["env"]})


def find_volume(name: str) -> Any:
    (found,) = [volume for volume in POD["volumes"] if volume["name"] == name]
    return found


def find_mount(name: str) -> str:
    (found,) = [mount["mountPath"] for mount in CONTAINER["volumeMounts"] if mount["name"] == name]
    return str(found)


def test_the_config_of_the_pods_is_sound(loaded: Loaded) -> None:
    assert (loaded.problems, loaded.warnings) == ((), ())
    assert loaded.streams and loaded.consumers
    assert loaded.service.shards >= WORKERS["replicas"] > 1, "each pod has something to do"
    assert loaded.service.fleet.worker == "overlay-0"
    text = (KUBERNETES / "config" / "overlay.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)\}", text)) == {variable["name"] for variable in CONTAINER["env"]}
    # every file of the folder is mounted
    files = {str(path.relative_to(KUBERNETES)) for path in (KUBERNETES / "config").rglob("*.yaml")}
    assert files == {line.partition("=")[2] for line in KUSTOMIZATION["configMapGenerator"][0]["files"]}


def test_the_secrets_of_the_pods_are_mounted(loaded: Loaded) -> None:
    paths = [f"{find_mount('kafka')}/{item['path']}" for item in find_volume("kafka")["secret"]["items"]]
    assert sorted(list_files(loaded.service.kafka)) == sorted(paths)
    secret = find_volume("kafka")["secret"]
    made = f"kubectl create secret generic {secret['secretName']}"
    for item in secret["items"]:
        assert re.search(rf"{made}.*--from-file={re.escape(item['key'])}=", PAGE)
    assert secret["defaultMode"] & 0o007 == 0
    assert POD["securityContext"]["fsGroup"] == POD["securityContext"]["runAsGroup"]


def test_the_pods_start_a_command_that_there_is() -> None:
    assert "command" not in CONTAINER, "the image has an entry point"
    assert parse_command(CONTAINER["args"])["--config"] == find_mount("config")


def test_probes_ask_pages_that_there_are(loaded: Loaded) -> None:
    routes = {route.resource.canonical for route in make_app(Metrics(), NoReports()).router.routes() if route.resource}
    (port,) = CONTAINER["ports"]
    assert loaded.service.http.address == ("0.0.0.0", port["containerPort"])
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {probe["path"] for probe in probes.values()} <= routes
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    # a probe brings neither a token nor a certificate
    assert (loaded.service.http.token, loaded.service.http.scheme) == ("", "http")
    (public,) = MANIFESTS["Service"]["spec"]["ports"]
    assert (public["port"], public["targetPort"]) == (port["containerPort"], port["name"])


def test_the_pods_run_as_the_image_is_made() -> None:
    user = re.search(r"useradd .*--uid (\d+)", DOCKERFILE)
    assert user is not None
    assert POD["securityContext"]["runAsUser"] == int(user[1])
    assert POD["securityContext"]["runAsNonRoot"] is True
    cache = re.search(r"NUMBA_CACHE_DIR=(\S+)", DOCKERFILE)
    assert cache is not None
    assert find_mount("kernels") == cache[1]
    # all else that is written to
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert find_mount("scratch") == "/tmp"
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == {volume["name"] for volume in POD["volumes"]}
    assert POD["terminationGracePeriodSeconds"] > RELEASE_S


def test_the_manifests_belong_together() -> None:
    labels = WORKERS["template"]["metadata"]["labels"]
    for selector in (
        WORKERS["selector"]["matchLabels"],
        MANIFESTS["Service"]["spec"]["selector"],
        MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert WORKERS["serviceName"] == MANIFESTS["Service"]["metadata"]["name"]
    assert MANIFESTS["Service"]["spec"]["clusterIP"] == "None", "each worker has other shards"
    assert {kind: each["apiVersion"] for kind, each in MANIFESTS.items()} == {
        "Service": "v1",
        "PodDisruptionBudget": "policy/v1",
        "StatefulSet": "apps/v1",
    }


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kustomize_takes_the_folder() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, check=True, timeout=60
    )
    made = [*YAML(typ="safe", pure=True).load_all(done.stdout)]
    (config,) = [each for each in made if each["kind"] == "ConfigMap"]
    assert config["metadata"]["name"] == find_volume("config")["configMap"]["name"]
    assert {each["kind"] for each in made} == {*MANIFESTS, "ConfigMap"}
