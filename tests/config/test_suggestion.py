"""Names that other systems have for something lead to those of the overlay, where these are known."""

from __future__ import annotations

import pytest

from overlay.config.consumer import ConsumerConfig
from overlay.config.service import ServiceConfig
from overlay.config.stream import StreamConfig
from overlay.config.suggestion import suggest, suggest_name

FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(info.alias or name for name, info in kind.model_fields.items())
    for kind in (ConsumerConfig, ServiceConfig, StreamConfig)
}


@pytest.mark.parametrize(
    ("kind", "word", "meant"),
    [
        (ConsumerConfig, "sql", "filter.sql"),
        (ConsumerConfig, "where", "filter.sql"),
        (ConsumerConfig, "ack", "ack_policy"),
        (ConsumerConfig, "max_retries", "max_deliver"),
        (ConsumerConfig, "dlq", "dead_letter"),
        (ConsumerConfig, "deliver", "deliver_policy"),
        (ConsumerConfig, "topic", "deliver_subject"),
        (ConsumerConfig, "group", "deliver_group"),
        (ConsumerConfig, "partitions", "output.partitions"),
        (ConsumerConfig, "subjects", "filter_subjects"),
        (StreamConfig, "topic", "topics"),
        (StreamConfig, "subject_template", "subject.template"),
        (StreamConfig, "fields", "properties"),
        (ServiceConfig, "prefix", "topics.prefix"),
        (ServiceConfig, "port", "http.listen"),
        (ServiceConfig, "workers", "shards"),
    ],
)
def test_fields_of_the_files(kind: type, word: str, meant: str) -> None:
    assert suggest_name(word, FIELDS[kind]) == f" Did you mean {meant}?"


def test_a_name_that_is_known_is_said_as_it_is_written_there() -> None:
    assert suggest_name("--bootstrap-server", ["--topic", "--bootstrap"]) == " Did you mean --bootstrap?"
    assert suggest_name("brokers", ["client.id", "bootstrap.servers"]) == " Did you mean bootstrap.servers?"
    assert suggest_name("user", ["sasl.username"]) == " Did you mean sasl.username?"


def test_other_words_lead_to_similar_ones_or_nowhere() -> None:
    assert suggest_name("filter_subjets", FIELDS[ConsumerConfig]) == " Did you mean filter_subjects?"
    assert suggest_name("zork", FIELDS[ConsumerConfig]) == suggest("zork", FIELDS[ConsumerConfig]) == ""
    # of data, such as streams and columns, nothing is called otherwise
    assert suggest("where", ["sql"]) == ""
