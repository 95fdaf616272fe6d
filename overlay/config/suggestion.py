"""The name that a user may have meant.

It is apart from the rules that say it: nearly every command has it, and few check a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches

_MEANINGS: Mapping[str, str] = {
    "sql filter.sql": "filter where query condition expression predicate selector sql filter_sql sql_filter",
    "subjects subject filter_subject": "pattern patterns subject_pattern routing_key",
    "ack_policy ack": "ack acks ack_mode auto_ack",
    "ack_wait": "ack_timeout ack_deadline visibility_timeout redelivery_timeout",
    "max_deliver": "max_deliveries max_retries retries max_attempts attempts max_redeliveries delivery_limit",
    "max_ack_pending": "prefetch prefetch_count max_inflight max_in_flight",
    "backoff": "retry_delay retry_delays retry_backoff",
    "dead_letter": "dlq dlq_topic dead_letters dead_letter_queue dead_letter_topic dead_letter_exchange",
    "deliver_policy deliver since": "deliver start start_at start_from begin from_beginning earliest latest offset_reset"
    " auto_offset_reset",
    "from_seq opt_start_seq": "offset from_offset start_offset seq start_seq from_sequence",
    "deliver_group": "group group_id queue queue_group consumer_group",
    "topics deliver_subject output": "topic",
    "deliver_subject output": "output_topic out_topic target_topic destination target sink to",
    "topics": "source source_topic sources",
    "output.partitions": "partitions num_partitions",
    "durable_name": "durable consumer_name",
    "consumer": "name durable durable_name consumer_name subscription",
    "name": "consumer consumer_name durable durable_name",
    "format": "output o json",
    "limit": "count n c max max_messages max_records num head",
    "batch": "count n size batch_size limit max_messages max_records max_poll_records num",
    "count": "batch n size batch_size limit max_messages max_records num num_messages",
    "prefetch": "prefetch_count max_inflight max_in_flight queued_max_messages pending_msgs_limit",
    "idle": "timeout timeout_s timeout_ms idle_timeout consumer_timeout consumer_timeout_ms",
    "expires": "timeout timeout_s timeout_ms max_wait wait",
    "timeout": "expires max_wait wait",
    "wait": "timeout expires max_wait",
    "until": "pause_until duration",
    "delay": "seconds duration",
    "config": "folder dir directory config_dir config_folder",
    "kafka": "settings conf security_protocol sasl_mechanism sasl_username sasl_password",
    "last": "tail",
    "follow": "f watch stream_on",
    "bootstrap bootstrap_servers": "b s server servers bootstrap_server bootstrap_servers broker brokers broker_list hosts",
    "topics.prefix": "prefix",
    "topics.replication": "replication replication_factor",
    "listen http.listen": "port http_port address",
    "shards": "workers threads parallelism concurrency",
    "properties": "fields attributes",
    "from": "path field column",
    "subject.template": "template subject_template",
    "security_protocol": "ssl tls",
    "sasl_username": "user username",
    "sasl_password": "password",
    # commands
    "add": "create new make",
    "rm": "delete del remove drop",
    "ls": "list all",
    "info": "get show describe inspect status",
    "update": "edit set change alter modify",
    "next": "pull fetch take consume get",
    "run": "start serve up service",
    "validate": "check lint verify",
    "read": "consume cat tail query select peek subscribe dump",
    "doctor": "status health diagnose",
    "local topic": "topic topics",
    "export": "dump save",
    "resume": "unpause continue",
}
"""What other systems call something: by the names here, the first of which counts that is known at the place; of one with a
dot or a blank the first part has to be."""


def _list_words() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for names, words in _MEANINGS.items():
        ours = names.split(" ") if names != "local topic" else [names]
        for word in words.split():
            found.setdefault(word, []).extend(ours)
    return found


def suggest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ` Did you mean x?` with the most similar known word, or "" if none is similar. `cutoff`: the least similarity
    that counts, 0 to 1.
    """
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {by_lower[near[0]]}?" if near else ""


def rank_similar(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words, those first that are most similar to `word`; equally similar ones by name."""
    return sorted(known, key=lambda name: (-SequenceMatcher(None, word.lower(), name.lower()).ratio(), name))


def suggest_name(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean x?` with the known name of a field, an argument, an option or a command that other systems call
    `word`, or else with the most similar one; "" if there is neither.
    """
    names = list(known)
    plain = {_flatten(name): name for name in names}
    for ours in _list_words().get(_flatten(word), ()):
        first, *rest = ours.replace(" ", ".").split(".")
        if _flatten(ours) in plain or (rest and first in plain and _flatten(word) not in plain):
            return f" Did you mean {plain.get(_flatten(ours), ours)}?"
    return suggest(word, names)


def _flatten(name: str) -> str:
    """Return a name without the marks in which options, settings and arguments differ."""
    return name.lstrip("-").lower().replace("-", "_").replace(".", "_")
