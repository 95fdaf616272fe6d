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


def test_no_secret_is_shown(tmp_path: Path) -> None:
    service = (
        "kafka: {bootstrap.servers: 'h:1', security.protocol: SASL_SSL, sasl.mechanism: PLAIN, sasl.username: u,"
        " sasl.password: wonderland}\n"
    )
    assert "wonderland" not in str(digest_of(tmp_path, overlay=service))
