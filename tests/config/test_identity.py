"""Whether two folders mean the same."""

from __future__ import annotations

from pathlib import Path

from overlay.config.identity import Identity, identify
from tests.config.folders import CONSUMER, SERVICE, STREAM, load_files


def digest_of(folder: Path, **files: str) -> Identity:
    texts = {"overlay.yaml": SERVICE, "streams/flights.yaml": STREAM, "consumers/late.yaml": CONSUMER}
    return identify(
        load_files(folder, texts | {f"{name.replace('_', '/')}.yaml": text for name, text in files.items()})
    )


def test_addresses_comments_and_places_do_not_matter(tmp_path: Path) -> None:
    one = digest_of(tmp_path / "one")
    service = "kafka: {bootstrap.servers: 'other:1'}\nhttp: {listen: '127.0.0.1:9'}\nshards: 3\n"
    two = digest_of(tmp_path / "two", overlay=service, streams_flights="# a comment\n" + STREAM)
    assert one.digest == two.digest
    assert two.bootstrap == "other:1"
    assert (one.folder, two.folder) == (str(tmp_path / "one"), str(tmp_path / "two"))


def test_streams_and_consumers_matter(tmp_path: Path) -> None:
    texts: tuple[dict[str, str], ...] = (
        {},
        {"consumers_late": CONSUMER + "filter_subject: flights.x\n"},
        {"streams_flights": STREAM + "on_corrupt: skip\n"},
        {"consumers_other": CONSUMER.replace("late", "other")},
    )
    digests = [digest_of(tmp_path / str(number), **files).digest for number, files in enumerate(texts)]
    assert len(set(digests)) == len(digests)


def test_the_parts_of_overlay_yaml_that_must_agree(tmp_path: Path) -> None:
    parts = (
        "",
        "requests: {consumers: 7}\n",
        "requests: {consumers_per_stream: 7}\n",
        "requests: {output_partitions: 7}\n",
        "requests: {max_waiting: 7}\n",
        "requests: {pending: 7}\n",
        "topics: {reply_to: [a]}\n",
        "topics: {reply_to: [a, b]}\n",
        "topics: {requests: true}\n",
        "topics: {replication: 3}\n",
        "shards: 3\n",
    )
    found = [digest_of(tmp_path / str(number), overlay=SERVICE + part) for number, part in enumerate(parts)]
    assert len({each.settings for each in found}) == len(parts)
    assert len({each.digest for each in found}) == 1


def test_the_parts_of_overlay_yaml_that_may_differ(tmp_path: Path) -> None:
    one = digest_of(tmp_path / "one", overlay=SERVICE + "topics: {reply_to: [a, b]}\n")
    service = (
        "kafka: {bootstrap.servers: 'other:1'}\nhttp: {listen: '127.0.0.1:9'}\nfleet: {worker: w}\n"
        "metrics: {latency_by: consumer}\ntopics: {reply_to: [b, a, b]}\n"
    )
    assert digest_of(tmp_path / "two", overlay=service).settings == one.settings


def test_no_secret_is_shown(tmp_path: Path) -> None:
    service = (
        "kafka: {bootstrap.servers: 'h:1', security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: u,"
        " sasl.password: wonderland}\n"
    )
    assert "wonderland" not in str(digest_of(tmp_path, overlay=service))
