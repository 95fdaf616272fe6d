"""examples/spark-cluster against the code and against Spark: options, settings, ports, times to stop. There is no cluster."""

from __future__ import annotations

import importlib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
from ruamel.yaml import YAML

from overlay.examples import PLACES
from spark.job.start import FINISH_S
from spark.pipeline import main

FOLDER = PLACES[-1] / "spark-cluster"
CONFIGS = ("kubernetes.conf", "yarn.conf")
JARS = {
    "spark-core": "org/apache/spark/internal/config/",
    "spark-kubernetes": "org/apache/spark/deploy/k8s/Config",
    "spark-yarn": "org/apache/spark/deploy/yarn/config/",
}


def read_settings(name: str) -> dict[str, str]:
    """The settings of a file like spark-defaults.conf."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return {setting: value.strip() for setting, value in pairs}


@cache
def read_manifests() -> dict[str, Any]:
    text = (FOLDER / "driver.yaml").read_text(encoding="utf-8")
    return {each["kind"]: each for each in YAML(typ="safe", pure=True).load_all(text)}


def find_constants() -> bytes:
    """The classes of Spark in which its settings are declared, by their names."""
    found = list[bytes]()
    for jar, prefix in JARS.items():
        (file,) = Path(pyspark.__path__[0], "jars").glob(f"{jar}_*.jar")
        with zipfile.ZipFile(file) as archive:
            found += [archive.read(name) for name in archive.namelist() if name.startswith(prefix)]
    return b"".join(found)


def test_spark_knows_every_setting() -> None:
    """Each name is a constant of its classes; executorEnv is a prefix."""
    constants = find_constants()
    for name in CONFIGS:
        settings = read_settings(name).keys() - {"spark.executorEnv.NUMBA_CACHE_DIR"}
        assert not {each for each in settings if each.encode() not in constants}, name


@pytest.mark.parametrize("name", CONFIGS)
def test_workers_are_forked_from_a_module_that_there_is(name: str) -> None:
    assert importlib.util.find_spec(read_settings(name)["spark.python.daemon.module"]) is not None


def test_the_driver_is_a_command_that_there_is() -> None:
    pod = read_manifests()["Deployment"]["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    assert driver["command"] == ["python3", "-m", main.callback.__module__]
    given = main.make_context("pipeline", list(driver["args"])).params
    assert not given["once"] and given["master"].startswith("k8s://")
    assert {"mountPath": str(given["folder"]), "name": "config"} in driver["volumeMounts"]
    assert {"name": "SPARK_CONF_DIR", "value": "/etc/spark"} in driver["env"]
    assert pod["terminationGracePeriodSeconds"] > FINISH_S
    with pytest.raises(click.NoSuchOption):
        main.make_context("pipeline", [*driver["args"], "--no-such"])


def test_executors_and_prometheus_reach_the_driver() -> None:
    manifests, settings = read_manifests(), read_settings("kubernetes.conf")
    service, spec = manifests["Service"], manifests["Deployment"]["spec"]
    (driver,) = spec["template"]["spec"]["containers"]
    _, port = main.make_context("pipeline", list(driver["args"])).params["metrics_address"]
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    assert ports == {
        "driver": int(settings["spark.driver.port"]),
        "blocks": int(settings["spark.driver.blockManager.port"]),
        "metrics": port,
    }
    assert {each["containerPort"] for each in driver["ports"]} == set(ports.values())
    assert settings["spark.driver.host"] == service["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == spec["selector"]["matchLabels"] == labels
    assert spec["replicas"] == 1
    assert spec["template"]["spec"]["serviceAccountName"] == manifests["ServiceAccount"]["metadata"]["name"]
    assert settings["spark.kubernetes.container.image"] == driver["image"]
