from __future__ import annotations

from pathlib import Path

import pytest

from overlay.config import load
from overlay.config.consumer import AckPolicy, Timestamps
from overlay.errors import ConfigError, FilePosition
from overlay.field import Field, FieldKind
from tests.config.folders import CONSUMER, SERVICE, STREAM, load_files, write_folder


def test_nine_of_ten_files_load_and_the_tenth_is_reported(tmp_path: Path) -> None:
    files = {f"streams/s{n}.yaml": f"name: S{n}\ntopics: [t{n}]\n" for n in range(4)}
    files |= {f"consumers/c{n}.yaml": CONSUMER.replace("late", f"c{n}") for n in range(5)}
    loaded = load_files(tmp_path, files | {"consumers/bad.yaml": CONSUMER + "  zork: [\n"})
    assert len(loaded.streams) == 5
    assert len(loaded.consumers) == 5
    assert [problem.place for problem in loaded.problems] == [FilePosition(f"{tmp_path}/consumers/bad.yaml", 5, 7)]


@pytest.mark.parametrize(
    "text", ["a: !!int abc", "a: 0x_", 'a: "\\UFFFFFFFF"', "%YAML 1.1\n---\na: 12:30", "%YAML 1.9\n---\na: 1"]
)
def test_yaml_that_cannot_be_read_stops_no_other_file(tmp_path: Path, text: str) -> None:
    loaded = load_files(tmp_path, {"streams/bad.yaml": text})
    assert list(loaded.streams) == ["FLIGHTS"]
    assert [problem.place.file for problem in loaded.problems] == [f"{tmp_path}/streams/bad.yaml"]


def test_files_are_named_as_the_folder_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, {"consumers/bad.yaml": CONSUMER + "zork: 1\n", "consumers/good.yaml": CONSUMER})
    monkeypatch.chdir(tmp_path.parent)
    loaded = load(Path(tmp_path.name), environment={})
    assert str(loaded.problems[0]).startswith(f"{tmp_path.name}/consumers/bad.yaml:5:1: zork: ")
    assert loaded.files["FLIGHTS"] == FilePosition(f"{tmp_path.name}/streams/flights.yaml")
    assert loaded.files["FLIGHTS", "late"] == FilePosition(f"{tmp_path.name}/consumers/good.yaml")


def test_a_consumer_has_its_defaults(tmp_path: Path) -> None:
    config = load_files(tmp_path, {"consumers/late.yaml": CONSUMER}).consumers["FLIGHTS", "late"]
    assert (config.name, config.max_deliver, config.ack_policy) == ("late", -1, AckPolicy.NONE)
    assert config.output.timestamps is Timestamps.APPEND


def test_a_stream_has_its_defaults(tmp_path: Path) -> None:
    text = "name: S\ntopics: [a, {topic: b, partitions: [0, 2]}]\n"
    text += "properties: {p: long, q: {type: string, from: '{value:x.y}'}}\n"
    stream = load_files(tmp_path, {"streams/s.yaml": text}).streams["S"]
    assert [(source.topic, source.partitions) for source in stream.topics] == [("a", None), ("b", (0, 2))]
    assert stream.properties["p"].source == Field(FieldKind.HEADER, "p")
    assert stream.properties["q"].source == Field(FieldKind.VALUE, "x.y")
    assert [str(pattern) for pattern in stream.patterns] == [">"]
    assert stream.subject.rule.build([], "a", 0) == "a"


def test_fields_of_sections_keep_their_source_unless_it_is_written(tmp_path: Path) -> None:
    text = "name: S\ntopics: [a]\nproperties: {p.message_id: long, p.to: {type: string, from: '{key}'}, p: long}\n"
    stream = load_files(tmp_path, {"streams/s.yaml": text}).streams["S"]
    assert stream.properties["p.message_id"].source is None
    assert stream.properties["p.to"].source == Field(FieldKind.KEY)
    assert stream.properties["p"].source == Field(FieldKind.HEADER, "p")


def test_the_second_of_two_equal_names_is_refused(tmp_path: Path) -> None:
    files = {"streams/z.yaml": STREAM, "consumers/a.yaml": CONSUMER, "consumers/b.yaml": CONSUMER}
    first, second = load_files(tmp_path, files).problems
    assert str(first).startswith(
        f"{tmp_path}/consumers/b.yaml:2:15: durable_name: 'late' of stream 'FLIGHTS' is already"
    )
    assert f"already in {tmp_path}/streams/flights.yaml" in str(second)


def test_a_consumer_of_a_bad_stream_points_to_its_file(tmp_path: Path) -> None:
    files = {"streams/bad.yaml": "name: BAD\n", "consumers/a.yaml": CONSUMER.replace("FLIGHTS", "BAD")}
    messages = [str(problem) for problem in load_files(tmp_path, files).problems]
    assert f"because of problems in {tmp_path}/streams/bad.yaml" in messages[0]


def test_files_that_are_not_read_are_reported(tmp_path: Path) -> None:
    files = {"streams/a.yml": STREAM, "flights.yaml": STREAM}
    assert [str(problem) for problem in load_files(tmp_path, files).problems] == [
        f"{tmp_path}/flights.yaml: is not read. Move it to streams/ or consumers/",
        f"{tmp_path}/streams/a.yml: is not read: files end in .yaml. Rename it",
    ]


def test_kafka_settings_keep_librdkafkas_names_and_hide_secrets(tmp_path: Path) -> None:
    text = """kafka:
  bootstrap.servers: "a:9092, b:9093"
  security.protocol: sasl_ssl
  sasl.mechanisms: SCRAM-SHA-256
  sasl.username: me
  sasl.password: ${SECRET}
  enable.ssl.certificate.verification: false
shards: 4
"""
    service = load_files(tmp_path, {"overlay.yaml": text}, {"SECRET": "s3cret"}).service
    assert service.kafka == {
        "bootstrap.servers": "a:9092, b:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "me",
        "sasl.password": "s3cret",
        "enable.ssl.certificate.verification": "false",
    }
    assert service.shards == 4
    assert service.http.address == ("127.0.0.1", 8222)
    assert "s3cret" not in repr(service) + repr(service.kafka_properties) + repr(service.kafka)


def test_references_stay_references(tmp_path: Path) -> None:
    """They are read when a client is made: a file may be replaced meanwhile."""
    sasl = (
        "kafka: {bootstrap.servers: 'a:1', security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: env:ME,"
    )
    text = sasl + " sasl.password: 'file:/run/secrets/kafka', ssl.key.password: env:KEY}\n"
    kafka = load_files(tmp_path, {"overlay.yaml": text}).service.kafka
    named = {"sasl.username": "env:ME", "sasl.password": "file:/run/secrets/kafka", "ssl.key.password": "env:KEY"}
    assert kafka.items() >= named.items()


OAUTH = """kafka:
  bootstrap.servers: a:1
  security.protocol: SASL_SSL
  sasl.mechanism: oauthbearer
  sasl.oauthbearer.client.id: me
  sasl.oauthbearer.client.secret: env:SECRET
  sasl.oauthbearer.token.endpoint.url: https://login.example/token
"""


def test_tokens_of_a_token_endpoint(tmp_path: Path) -> None:
    more = '  sasl.oauthbearer.extensions: "logicalCluster=lkc-1, identityPoolId=p"\n  https.ca.location: ca.pem\n'
    kafka = load_files(tmp_path, {"overlay.yaml": OAUTH + more}).service.kafka
    assert kafka["sasl.mechanism"] == "OAUTHBEARER"
    assert kafka["sasl.oauthbearer.extensions"] == "logicalCluster=lkc-1,identityPoolId=p"
    assert kafka["https.ca.location"] == "ca.pem"


KAFKA = "kafka:\n  bootstrap.servers: a:1\n"


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("topics: {}\n", "1:1: kafka: ", "is missing"),
        ("kafka: {}\n", "1:8: kafka.bootstrap.servers: ", "is missing"),
        ("kafka: {bootstrap.servers: localhost}\n", "1:28: kafka.bootstrap.servers: ", "'localhost' is not host:port"),
        ("kafka: {bootstrap.servers: 'a..b:1'}\n", "1:28: kafka.bootstrap.servers: ", "'a..b' is not a host name"),
        (KAFKA + "  bootstrap.server: a\n", "3:3: kafka.bootstrap.server: ", "Did you mean bootstrap.servers?"),
        (KAFKA + "  fetch.min.bytes: 1\n", "3:3: kafka.fetch.min.bytes: ", "only properties that reach every client"),
        (KAFKA + "  security.protocol: TLS\n", "3:22: kafka.security.protocol: ", "PLAINTEXT, SSL, SASL_PLAINTEXT"),
        (KAFKA + "  security.protocol: SASL_SSL\n", "3:22: kafka.security.protocol: ", "needs sasl.mechanism"),
        (KAFKA + "  sasl.username: me\n", "2:3: kafka.security.protocol: ", "would ignore sasl"),
        (KAFKA + "  ssl.ca.location: ca.pem\n", "3:20: kafka.ssl.ca.location: ", "has no effect with PLAINTEXT"),
        (KAFKA + "  client.id: ${NOPE}\n", "3:14: kafka.client.id: ", "variable NOPE is not set"),
        (KAFKA + "  client.id: ${a b}\n", "3:14: kafka.client.id: ", "names no environment variable"),
        (KAFKA + "  sasl.password: 0123\n", "3:18: kafka.sasl.password: ", "Put it in quotes"),
        (
            KAFKA + "  sasl.password: 'env:a b'\n",
            "3:18: kafka.sasl.password: ",
            "shown here: env: names no environment",
        ),
        (KAFKA + "  sasl.username: 'file:'\n", "3:18: kafka.sasl.username: ", "file: names no file"),
        (KAFKA + "  sasl.mechanism: gssapi\n", "3:19: kafka.sasl.mechanism: ", "Kerberos needs libraries"),
        (KAFKA + "  https.ca.location: ca.pem\n", "2:3: kafka.security.protocol: ", "would ignore sasl"),
        (OAUTH.replace("client.secret: env:SECRET", "scope: s"), "3:22: ", "needs sasl.oauthbearer.client.secret too"),
        (OAUTH + "  sasl.username: me\n", "8:18: kafka.sasl.username: ", "no effect with sasl.mechanism OAUTHBEARER"),
        (OAUTH + "  sasl.oauthbearer.method: default\n", "8:28: kafka.sasl.oauthbearer.method: ", "allowed are oidc"),
        (OAUTH + "  sasl.oauthbearer.extensions: a\n", "8:32: kafka.sasl.oauthbearer.extensions: ", "NAME=VALUE"),
        (OAUTH.replace("https:", "file:"), "7:40: kafka.sasl.oauthbearer.token.endpoint.url: ", "is a URL"),
        (KAFKA + "shards: 0\n", "3:9: shards: ", "found 0"),
        (KAFKA + "topics: {replicas: 3}\n", "3:10: topics.replicas: ", "Did you mean replication?"),
        (KAFKA + "http: {listen: 8222}\n", "3:16: http.listen: ", "found 8222"),
        (KAFKA + "http: {listen: 'a:70000'}\n", "3:16: http.listen: ", "not host:port"),
        (KAFKA + "http: {metrics_listen: here}\n", "3:24: http.metrics_listen: ", "not host:port"),
        (
            KAFKA + "http: {metrics_listen: '127.0.0.1:8222'}\n",
            "3:24: http.metrics_listen: ",
            "is the address of http.listen",
        ),
        (KAFKA + "http: {hosts: ['a:1']}\n", "3:16: http.hosts[0]: ", "and no port"),
        (KAFKA + "http: {token: short}\n", "3:15: http.token: ", "at least 16"),
        (KAFKA + "http: {token: 'file:'}\n", "3:15: http.token: ", "file: names no file"),
        (KAFKA + "http: {admin_token: 'env:a-b'}\n", "3:21: http.admin_token: ", "env: names no environment variable"),
        (KAFKA + "http: {tls_key: a.pem}\n", "3:17: http.tls_key: ", "needs tls_certificate too"),
        (KAFKA + "http: {tls_certificate: a.pem}\n", "3:25: http.tls_certificate: ", "needs tls_key too"),
    ],
)
def test_a_bad_service_file_stops_the_load(tmp_path: Path, text: str, where: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_files(tmp_path, {"overlay.yaml": text})
    line = str(caught.value)
    assert line.startswith(f"{tmp_path}/overlay.yaml:{where}"), line
    assert words in line


def test_several_problems_of_the_service_file_come_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_files(tmp_path, {"overlay.yaml": SERVICE + "zork: 1\nshards: x\n"})
    assert "zork" in str(caught.value)
    assert "shards" in str(caught.value)


def test_a_secret_of_the_wrong_type_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_files(tmp_path, {"overlay.yaml": KAFKA + "  sasl.password: [hunter2]\n"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load_files(tmp_path, {"overlay.yaml": KAFKA + "http:\n  token: [hunter2]\n"})
    assert "hunter2" not in str(caught.value)


def test_a_folder_without_service_file_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"overlay\.yaml: no such file\. A config folder holds"):
        load(tmp_path)


def test_outputs_that_lead_back_through_other_streams_are_refused(tmp_path: Path) -> None:
    files = {
        "streams/more.yaml": "name: MORE\ntopics: [late]\n",
        "consumers/a.yaml": CONSUMER,
        "consumers/b.yaml": "stream: MORE\ndurable_name: back\ndeliver_subject: flights\nack_policy: none\n",
        "consumers/c.yaml": "stream: MORE\ndurable_name: on\ndeliver_subject: elsewhere\nack_policy: none\n",
    }
    loaded = load_files(tmp_path, files)
    assert list(loaded.consumers) == [("MORE", "on")]
    first, second = loaded.problems
    assert (first.code, second.code) == (10081, 10081)
    assert "late -> MORE/back -> flights" in str(first)
    assert "flights -> FLIGHTS/late -> late" in str(second)


def test_a_misspelt_field_is_not_called_missing_as_well(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"overlay.yaml": "kafka: {bootstrap.server: 'a:1'}\n"})
    with pytest.raises(ConfigError) as caught:
        load(folder)
    assert str(caught.value).endswith("Did you mean bootstrap.servers?")
    assert "is missing" not in str(caught.value)
