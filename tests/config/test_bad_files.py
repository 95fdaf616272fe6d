"""Hand-written bad files: each with the place, the field and the words that its author must see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.folders import CONSUMER, STREAM, load_files

PUSH = "stream: FLIGHTS\ndurable_name: late\ndeliver_subject: late\nack_policy: none\n"
PULL = "stream: FLIGHTS\ndurable_name: late\nack_policy: explicit\n"

CONSUMERS: list[tuple[str, str, str, int | None]] = [
    # what the file says, line:column and field, words, code
    (PUSH + "filter_subjcts: []\n", "5:1: filter_subjcts", "Did you mean filter_subjects?", 10025),
    (PUSH + "filter: {sq: x}\n", "5:10: filter.sq", "Did you mean sql?", None),
    (PUSH + "ack_wait: 30\nmax_deliver: many\n", "6:14: max_deliver", 'found "many", wants a whole number', 10025),
    (PUSH + "description: 12\n", "5:14: description", "found 12, wants a text. Put it in quotes", 10025),
    (PUSH + "filter_subjects: [flights.>, 12]\n", "5:30: filter_subjects[1]", "found 12, wants a text", 10025),
    (PUSH + "filter_subjects: flights.>\n", "5:18: filter_subjects", "wants a list", 10025),
    (PUSH + "headers_only: yes\n", "5:15: headers_only", 'found "yes", wants true or false', 10025),
    (PUSH + "deliver_policy: lst\n", "5:17: deliver_policy", "Did you mean last?", 10025),
    (PUSH + "ack_wait: 30 s\n", "5:11: ack_wait", 'found "30 s": units are h, m, s', 10025),
    (PUSH + "opt_start_time: yesterday\n", "5:17: opt_start_time", "RFC 3339", 10025),
    (PUSH + "opt_start_seq: -1\n", "5:16: opt_start_seq", "greater than or equal to 0", 10025),
    (PUSH + f"max_deliver: {1 << 63}\n", "5:14: max_deliver", "less than or equal to 9223372036854775807", 10025),
    (PULL + f"max_batch: {-(1 << 64)}\n", "4:12: max_batch", "greater than or equal to -9223372036854775808", 10025),
    (PUSH + "output: {partition_by: subjct}\n", "5:24: output.partition_by", "Did you mean subject?", None),
    (PUSH + "output: {config: {a: 1.5}}\n", "5:22: output.config.a", "found 1.5, wants a text", None),
    (PUSH + "delivery:\n", "5:1: delivery", "found nothing", None),
    (PUSH + "metadata: {a: 1}\n", "5:15: metadata.a", "found 1, wants a text. Put it in quotes", 10025),
    (PUSH + "dead_letter: a/b\n", "5:14: dead_letter", "Kafka topic name", None),
    ("durable_name: late\n", "1:1: stream", "is missing", None),
    ("stream: FLIGHTS\nack_policy: none\n", "1:1: durable_name", "is missing", None),
    (PUSH.replace("FLIGHTS", "FLIHGTS"), "1:9: stream", "Did you mean FLIGHTS?", 10059),
    # JetStream's rules, in table b's order
    (PULL + "num_replicas: 3\n", "4:15: num_replicas", "replicas > 1", 10074),
    (PULL.replace("late", "a/b"), "2:15: durable_name", "path separators", 10127),
    (PULL.replace("late", "a.b"), "2:15: durable_name", "can not contain", 10052),
    (PULL.replace("late", "x" * 256), "2:15: durable_name", "too long", 10102),
    (PULL + "num_replicas: -1\n", "4:15: num_replicas", "negative", 10133),
    (PULL + "backoff: [1s, -1s]\n", "4:15: backoff[1]", "positive", 10184),
    (PULL + "ack_wait: -1s\n", "4:11: ack_wait", "positive", 10183),
    (PULL.replace("explicit", "flow_control"), "3:13: ack_policy", "push based", 10218),
    (PULL.replace("explicit", "flow_control"), "3:13: ack_policy", "requires flow control", 10219),
    (PUSH.replace("none", "flow_control\nmax_ack_pending: -1"), "5:18: max_ack_pending", "max ack pending", 10220),
    (PUSH.replace("none", "flow_control\nack_wait: 1s"), "5:11: ack_wait", "unset ack wait", 10221),
    (PUSH.replace("none", "flow_control\nmax_deliver: 2"), "5:14: max_deliver", "unset max deliver", 10222),
    (PULL + "max_deliver: 1\nbackoff: [1s, 2s]\n", "4:14: max_deliver", "backoff has 2 entries", 10116),
    (PULL + f"description: {'x' * 4097}\n", "4:14: description", "found 4097 bytes", 10107),
    (PUSH.replace("subject: late", 'subject: "late.*"'), "3:18: deliver_subject", "wildcards", 10079),
    (PUSH.replace("subject: late", "subject: la..te"), "3:18: deliver_subject", "invalid push", 10112),
    (PUSH.replace("subject: late", "subject: späť"), "3:18: deliver_subject", "Kafka topic name", 10112),
    (PUSH.replace("subject: late", "subject: flights"), "3:18: deliver_subject", "leads back", 10081),
    (PUSH + "max_waiting: 3\n", "5:14: max_waiting", "push mode", 10080),
    (PUSH + "max_ack_pending: 3\n", "5:18: max_ack_pending", "requires ack policy", 10082),
    (PUSH + "idle_heartbeat: 99ms\n", "5:17: idle_heartbeat", ">= 100ms", 10083),
    (PULL.replace("explicit", "none"), "3:13: ack_policy", "requires explicit ack policy", 10084),
    (PULL + "rate_limit_bps: 9\n", "4:17: rate_limit_bps", "pull mode", 10086),
    (PULL + "idle_heartbeat: 1s\n", "4:17: idle_heartbeat", "requires a push", 10088),
    (PULL + "flow_control: true\n", "4:15: flow_control", "requires a push", 10089),
    (PULL + "max_expires: 1us\n", "4:14: max_expires", ">= 1ms", 10115),
    (PULL + "direct: true\n", "4:9: direct", "requires a push", 10090),
    (PUSH + "direct: true\n", "5:9: direct", "ephemeral", 10091),
    (
        PUSH + "filter_subject: flights.a\nfilter_subjects: [flights.b]\n",
        "6:18: filter_subjects",
        "ADR-34 10134",
        10136,
    ),
    (PUSH + 'filter_subjects: [flights.a, ""]\n', "5:30: filter_subjects[1]", "cannot be empty", 10139),
    (PUSH + "filter_subjects: [flights..a]\n", "5:19: filter_subjects[0]", "empty token", 10052),
    (PUSH + 'filter_subjects: ["flights.*", flights.a]\n', "5:32: filter_subjects[1]", "10138, in ADR-34 10136", 10138),
    (PUSH + "filter_subjects: [flights.a, flights.a]\n", "5:30: filter_subjects[1]", "stands here twice", 10138),
    (PUSH + "filter_subject: ships.>\n", "5:17: filter_subject", "can match nothing", 10093),
    (
        PUSH + "filter_subject: flights.JFK.LAX\n",
        "5:17: filter_subject",
        "the stream's subject rule builds flights.*",
        10093,
    ),
    (PUSH + "opt_start_seq: 1\n", "5:16: opt_start_seq", "also set", 10094),
    (PUSH + "deliver_policy: by_start_time\n", "1:1: opt_start_time", "not set", 10094),
    (PUSH + "deliver_policy: last_per_subject\n", "1:1: filter_subject", "not set", 10094),
    (PUSH + "sample_freq: lots\n", "5:14: sample_freq", "Atoi", 10095),
    (PUSH + "flow_control: true\n", "5:15: flow_control", "heartbeats", 10108),
    (PUSH + "name: other\n", "5:7: name", "have to be equal", 10132),
    (PUSH + f"metadata: {{a: {'x' * 131072}}}\n", "5:11: metadata", "128KB", 10135),
    (PUSH + "priority_policy: overflow\npriority_groups: [g]\n", "5:18: priority_policy", "push consumers", 10178),
    (PULL + "priority_policy: overflow\n", "1:1: priority_groups", "at least one", 10159),
    (PULL + 'priority_policy: overflow\npriority_groups: [""]\n', "5:19: priority_groups[0]", "empty string", 10161),
    (PULL + "priority_policy: overflow\npriority_groups: [a b]\n", "5:19: priority_groups[0]", "16 characters", 10162),
    (PULL + "priority_groups: [g]\n", "4:18: priority_groups", "policy is none", 10196),
    (PULL + "priority_timeout: 1s\n", "4:19: priority_timeout", "PinnedTTL", 10197),
    # the overlay's own rules
    (
        PUSH.replace("subject: late", "subject: overlay.state"),
        "3:18: deliver_subject",
        "the overlay's own topics",
        None,
    ),
    (PULL + 'sample_freq: "101%"\n', "4:14: sample_freq", "more than 100%, which is every ack", None),
    (PUSH + 'sample_freq: "10%"\n', "5:14: sample_freq", "ack_policy none has none of", None),
    (PUSH.replace("none", 'all\nsample_freq: "10"'), "5:14: sample_freq", "ack_policy all has none of", None),
    (PULL + "deliver_group: g\n", "4:16: deliver_group", "which a pull consumer has none of", None),
    (PUSH + "dead_letter: late\n", "5:14: dead_letter", "is the output topic itself", None),
    (PUSH + "on_undeliverable: dead_letter\n", "5:19: on_undeliverable", "no `dead_letter` topic", None),
    (PUSH + "filter: {sql: a, properties: {}}\n", "5:30: filter.properties", "stands beside filter.sql", None),
    (PULL + "max_batch: -3\n", "4:12: max_batch", "found -3, which would become 0", None),
    (PULL + "ack_wait: 1s\nbackoff: [2s]\n", "4:11: ack_wait", "would become 2000000000", None),
]

STREAMS: list[tuple[str, str, str]] = [
    (
        "name: S\ntopics: [t]\nproperties: {p.mesage_id: long}\n",
        "3:27: properties.p.mesage_id",
        "Did you mean message_id?",
    ),
    (
        "name: S\ntopics: [t]\nproperties:\n  p.to: string\n  properties.to: binary\n",
        "5:18: properties.properties.to",
        "'p.to' is already about",
    ),
    ("name: S\ntopics: [t]\nproperties: {h.ttl: long}\n", "3:21: properties.h.ttl", "Fields are priority"),
    ("name: S\n", "1:1: topics", "is missing. Add it: Kafka topics to read"),
    ("topics: [t]\n", "1:1: name", "is missing"),
    ("name: S.T\ntopics: [t]\n", "1:7: name", "a stream name has"),
    ("name: S\ntopics: []\n", "2:9: topics", "at least 1 item"),
    ("name: S\ntopics: [a b]\n", "2:10: topics[0]", "Kafka topic name"),
    ("name: S\ntopics: [12]\n", "2:10: topics[0]", "wants a mapping"),
    ("name: S\ntopics: [{topc: a}]\n", "2:11: topics[0].topc", "Did you mean topic?"),
    ("name: S\ntopics: [{topic: a, partitions: [-1]}]\n", "2:34: topics[0].partitions[0]", "greater than or equal"),
    ("name: S\ntopics: [{topic: a, partitions: [1, 1]}]\n", "2:33: topics[0].partitions", "stands here twice"),
    ("name: S\ntopics: [a, a]\n", "2:13: topics[1]", "stands here twice"),
    ("name: S\ntopics: [t]\nsubjects: [a..b]\n", "3:12: subjects[0]", "empty token"),
    ("name: S\ntopics: [t]\nsubjects: [$JS.x]\n", "3:12: subjects[0]", "keeps for itself"),
    ("name: S\ntopics: [t]\nsubject: {template: 'a.{hader:b}'}\n", "3:21: subject.template", "unknown field {hader:b}"),
    ("name: S\ntopics: [t]\nsubject: {topic: true, key: true}\n", "3:10: subject", "exactly one of"),
    ("name: S\ntopics: [t]\nsubject: {topic: false}\n", "3:18: subject.topic", "allowed are true"),
    ("name: S\ntopics: [t]\nsubject: {}\n", "3:10: subject", "exactly one of"),
    (
        "name: S\ntopics: [t]\nsubjects: [b.>]\nsubject: {template: 'a.{key}'}\n",
        "3:11: subjects",
        "no message can belong",
    ),
    ("name: S\ntopics: [t]\nproperties: {a: strng}\n", "3:17: properties.a", "Did you mean string?"),
    ("name: S\ntopics: [t]\nproperties: {a: {typ: long}}\n", "3:18: properties.a.typ", "Did you mean type?"),
    (
        "name: S\ntopics: [t]\nproperties: {a: {type: long, from: 'x:y'}}\n",
        "3:36: properties.a.from",
        "unknown field {x:y}",
    ),
    (
        "name: S\ntopics: [t]\nproperties: {abc: long}\nindex: {terms: [acb]}\n",
        "4:17: index.terms[0]",
        "Did you mean abc?",
    ),
    ("name: S\ntopics: [t]\nproperties: {b: binary}\nindex: {zones: [b]}\n", "4:17: index.zones[0]", "has no ranges"),
    ("name: S\ntopics: [t]\nindex: {bloom_bytes: 8B}\n", "3:22: index.bloom_bytes", "from 16 to 64KiB"),
    ("name: S\ntopics: [t]\nindex: {chunk_bytes: 1MB}\n", "3:22: index.chunk_bytes", "1KiB is 1024 bytes"),
    ("name: S\ntopics: [t]\nfilter_value: subjct\n", "3:15: filter_value", "wants a mapping"),
    ("name: S\ntopics: [t]\non_corrupt: ignore\n", "3:13: on_corrupt", "allowed are stop, skip"),
]


@pytest.mark.parametrize(("text", "where", "words", "code"), CONSUMERS)
def test_bad_consumer_files(tmp_path: Path, text: str, where: str, words: str, code: int | None) -> None:
    loaded = load_files(tmp_path, {"consumers/bad.yaml": text})
    assert ("FLIGHTS", "late") not in loaded.consumers
    shown = [(str(problem), problem.code) for problem in loaded.problems]
    fitting = [
        found for line, found in shown if line.startswith(f"{tmp_path}/consumers/bad.yaml:{where}: ") and words in line
    ]
    assert fitting, shown
    if code is not None:
        assert code in fitting, shown


@pytest.mark.parametrize(("text", "where", "words"), STREAMS)
def test_bad_stream_files(tmp_path: Path, text: str, where: str, words: str) -> None:
    loaded = load_files(tmp_path, {"streams/bad.yaml": text})
    assert list(loaded.streams) == ["FLIGHTS"]
    shown = [str(problem) for problem in loaded.problems]
    assert [line for line in shown if line.startswith(f"{tmp_path}/streams/bad.yaml:{where}: ") and words in line], (
        shown
    )


def test_the_sound_files_are_sound(tmp_path: Path) -> None:
    loaded = load_files(
        tmp_path, {"consumers/late.yaml": CONSUMER, "streams/more.yaml": STREAM.replace("FLIGHTS", "MORE")}
    )
    assert loaded.problems == ()
    assert list(loaded.consumers) == [("FLIGHTS", "late")]
