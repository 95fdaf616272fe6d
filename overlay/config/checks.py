"""JetStream's rules for a ConsumerConfig (docs/jetstream.md#errors), checked in the server's order.

A rule looks at one config whose defaults are filled in (see defaults.py). For each breach it yields
the error number, the text and the field concerned. A server answers with the first breach; a config
file reports all of them. Two profiles cover the differences between servers and files:

- FILE refuses two things that servers accept, because in a file they are mistakes. One is a
  filter that fits none of the stream's subjects (10093). The other is a pull consumer whose ack
  policy is not explicit (10084). In a file deliver_subject has to be the name of a Kafka topic
  (10112), and cycle.py decides by topics whether it leads back to the stream.
- GATEWAY accepts what servers accept. There deliver_subject is a subject, and it must not match a
  subject of the stream (10081).

The stream has limits retention, so the work queue errors 10098 to 10101 and 10134 cannot occur.
Errors about the request instead of the config (10016 to 10020, 10056, 10131, 10137, 10185 ...) are
raised by the code that parses requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from overlay.errors import SubjectError
from overlay.subject import Pattern, intersects, is_subset, overlapping
from overlay.units import INT64_MAX

from .codes import ERRORS, ApiError
from .consumer import AckPolicy, ConsumerConfig, DeliverPolicy, PriorityPolicy
from .document import Path, show_path
from .model import check_topic

MAX_NAME = 255
MAX_DIGITS = 100
MAX_DESCRIPTION = 4096
MAX_METADATA = 128 * 1024
MIN_HEARTBEAT = 100_000_000
MIN_EXPIRES = 1_000_000


class Profile(Enum):
    """The origin of a config, which decides how strict the rules are."""

    FILE = "file"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule.

    `description` is the server's text. `path` leads to the field in the config. `hint` is the
    overlay's own advice for authors of config files, "" for none.
    """

    error: ApiError
    description: str
    path: Path
    hint: str = ""

    @property
    def field(self) -> str:
        return show_path(self.path)


def violate(err_code: int, field: str | Path, hint: str = "", **parts: str) -> Violation:
    """Return a Violation with the error `err_code`; `parts` fill the braces of its description."""
    error = ERRORS[err_code]
    path = (field,) if isinstance(field, str) else field
    return Violation(error, error.description.format(**parts), path, hint)


def check_consumer(
    config: ConsumerConfig,
    subjects: Sequence[Pattern],
    profile: Profile = Profile.GATEWAY,
    *,
    built: Sequence[Pattern] = (),
) -> Iterator[Violation]:
    """Yield a Violation for each rule that `config` breaks, in the server's order; none if it is valid. Some rules
    are checked only if an earlier one about the same fields holds.

    `config`: with its defaults filled in. `subjects`: the subjects of its stream. `built`: patterns of all subjects
    that the stream's rule can build, for the profile FILE; empty if that is not to be checked.
    """
    yield from _check_names(config)
    yield from _check_numbers(config)
    yield from _check_flow_control_acks(config)
    yield from _check_limits(config)
    if config.is_push:
        yield from _check_push(config, subjects, profile)
    else:
        yield from _check_pull(config, profile)
    yield from _check_direct(config)
    yield from _check_filters(config, subjects, profile, built)
    yield from _check_start(config)
    yield from _check_rest(config)
    yield from _check_priority(config)


def _check_names(config: ConsumerConfig) -> Iterator[Violation]:
    if config.num_replicas > 1:
        yield violate(10074, "num_replicas", f"found {config.num_replicas}; Kafka replicates the overlay's state")
    for field in ("durable_name", "name"):
        name: str = getattr(config, field)
        if field == "name" and name == config.durable_name:
            continue
        if "/" in name or "\\" in name:
            yield violate(10127, field, f"found {name!r}")
        elif re.search(r"[ \t\r\n\f.*>]", name):
            what = "durable name" if field == "durable_name" else "name"
            err = f"consumer {what} can not contain '.', '*', '>', '\\', '/'"
            yield violate(10052, field, f"found {name!r}", err=err)
        elif len(name.encode()) > MAX_NAME:
            yield violate(10102, field, f"found {len(name.encode())} bytes", max=str(MAX_NAME))


def _check_numbers(config: ConsumerConfig) -> Iterator[Violation]:
    if config.num_replicas < 0:
        yield violate(10133, "num_replicas", f"found {config.num_replicas}")
    for at, wait in enumerate(config.backoff):
        if wait < 0:
            yield violate(10184, ("backoff", at), f"found {wait} ns")
    if config.ack_wait < 0 and not config.backoff:
        yield violate(10183, "ack_wait", f"found {config.ack_wait} ns")


def _check_flow_control_acks(config: ConsumerConfig) -> Iterator[Violation]:
    if config.ack_policy is not AckPolicy.FLOW_CONTROL:
        return
    if not config.is_push:
        yield violate(10218, "ack_policy", "set deliver_subject")
    if not config.flow_control:
        yield violate(10219, "ack_policy", "set flow_control: true")
    if config.max_ack_pending <= 0:
        yield violate(10220, "max_ack_pending", f"found {config.max_ack_pending}")
    if config.ack_wait:
        yield violate(10221, "backoff" if config.backoff else "ack_wait", "leave it out")
    if config.max_deliver > 0:
        yield violate(10222, "max_deliver", "leave it out")


def _check_limits(config: ConsumerConfig) -> Iterator[Violation]:
    if config.max_deliver != -1 and config.max_deliver < len(config.backoff):
        hint = f"max_deliver is {config.max_deliver}, backoff has {len(config.backoff)} entries; raise max_deliver"
        yield violate(10116, "max_deliver", hint)
    if (size := len(config.description.encode())) > MAX_DESCRIPTION:
        yield violate(10107, "description", f"found {size} bytes", max=str(MAX_DESCRIPTION))


def _check_push(config: ConsumerConfig, subjects: Sequence[Pattern], profile: Profile) -> Iterator[Violation]:
    subject = config.deliver_subject
    pattern = _parse(subject)
    if pattern is None:
        yield violate(10112, "deliver_subject", f"found {subject!r}")
    elif not pattern.is_literal:
        yield violate(10079, "deliver_subject", f"found {subject!r}; name one topic")
    elif profile is Profile.GATEWAY and any(is_subset(pattern, own) for own in subjects):
        yield violate(10081, "deliver_subject", f"{subject!r} belongs to the stream; choose another subject")
    elif profile is Profile.FILE and (why := _refuse_topic(subject)):
        yield violate(10112, "deliver_subject", f"found {subject!r}; {why}")
    if config.max_waiting:
        yield violate(10080, "max_waiting", f"found {config.max_waiting}; leave it out, it is for pull consumers")
    if config.max_ack_pending > 0 and config.ack_policy is AckPolicy.NONE:
        yield violate(10082, "max_ack_pending", "leave it out, or choose another ack_policy than none")
    if 0 < config.idle_heartbeat < MIN_HEARTBEAT:
        yield violate(10083, "idle_heartbeat", f"found {config.idle_heartbeat} ns")


def _refuse_topic(name: str) -> str:
    """Return why Kafka does not accept the topic name; "" if it does."""
    try:
        check_topic(name)
    except ValueError as error:
        return str(error)
    return ""


def _check_pull(config: ConsumerConfig, profile: Profile) -> Iterator[Violation]:
    if profile is Profile.FILE and config.ack_policy is not AckPolicy.EXPLICIT:
        hint = f"found ack_policy {config.ack_policy} without deliver_subject: name an output topic in deliver_subject"
        yield violate(10084, "ack_policy", f"{hint}, or use ack_policy: explicit")
    if config.rate_limit_bps > 0:
        yield violate(10086, "rate_limit_bps", "leave it out, or set deliver_subject")
    if config.idle_heartbeat > 0:
        yield violate(10088, "idle_heartbeat", "leave it out, or set deliver_subject")
    if config.flow_control:
        yield violate(10089, "flow_control", "leave it out, or set deliver_subject")
    if config.max_expires != 0 and config.max_expires < MIN_EXPIRES:
        yield violate(10115, "max_expires", f"found {config.max_expires} ns")


def _check_direct(config: ConsumerConfig) -> Iterator[Violation]:
    if config.direct and not config.is_push:
        yield violate(10090, "direct")
    if config.direct and config.durable_name:
        yield violate(10091, "direct")


def _check_filters(
    config: ConsumerConfig, subjects: Sequence[Pattern], profile: Profile, built: Sequence[Pattern]
) -> Iterator[Violation]:
    if config.filter_subject and config.filter_subjects:
        yield violate(10136, "filter_subjects", "put the one filter into the list and leave filter_subject out")
        return
    filters: list[tuple[Path, Pattern]] = []
    for path, text in _name_filters(config):
        if text == "":
            yield violate(10139, path, "write a subject, or leave filter_subjects out to take everything")
        elif (pattern := _parse(text)) is None:
            yield violate(10052, path, f"found {text!r}: {_refuse(text)}", err="invalid subject")
        else:
            filters.append((path, pattern))
    yield from _check_overlap(filters)
    if profile is Profile.FILE:
        yield from _check_fit(filters, subjects, built)


def _name_filters(config: ConsumerConfig) -> Iterator[tuple[Path, str]]:
    if config.filter_subject:
        yield ("filter_subject",), config.filter_subject
    for at, text in enumerate(config.filter_subjects):
        yield ("filter_subjects", at), text


def _check_overlap(filters: Sequence[tuple[Path, Pattern]]) -> Iterator[Violation]:
    pair = overlapping([pattern for _, pattern in filters])
    if pair is None:
        return
    inner, outer = pair
    path = [path for path, pattern in filters if pattern in pair][-1]
    if inner == outer:
        yield violate(10138, path, f"{inner.text!r} stands here twice; keep one")
    else:
        yield violate(10138, path, f"{inner.text!r} lies within {outer.text!r}; keep the wider one")


def _check_fit(
    filters: Sequence[tuple[Path, Pattern]], subjects: Sequence[Pattern], built: Sequence[Pattern]
) -> Iterator[Violation]:
    for path, pattern in filters:
        for words, patterns in (("subjects are", subjects), ("subject rule builds", built)):
            if patterns and not any(intersects(pattern, own) for own in patterns):
                listed = ", ".join(map(str, patterns))
                yield violate(10093, path, f"{pattern.text!r} can match nothing: the stream's {words} {listed}")
                break


def _check_start(config: ConsumerConfig) -> Iterator[Violation]:
    """Yield a Violation for each conflict between deliver_policy and the start options."""
    policy = config.deliver_policy
    by_sequence, by_time = policy is DeliverPolicy.BY_START_SEQUENCE, policy is DeliverPolicy.BY_START_TIME
    # options that the policy requires
    if policy is DeliverPolicy.LAST_PER_SUBJECT and not config.filters:
        yield _bad_start(policy, "filter subject", "filter_subject", is_set=False)
    sequence_set, time_set = config.opt_start_seq > 0, config.opt_start_time is not None
    if by_sequence and not sequence_set:
        yield _bad_start(policy, "start sequence", "opt_start_seq", is_set=False)
    if by_time and not time_set:
        yield _bad_start(policy, "start time", "opt_start_time", is_set=False)
    # options that belong to another policy
    if sequence_set and not by_sequence:
        # the server doubles the word too, and clients may compare the texts
        yield _bad_start(policy, "start start sequence" if by_time else "start sequence", "opt_start_seq", is_set=True)
    if time_set and not by_time:
        yield _bad_start(policy, "start time", "opt_start_time", is_set=True)


def _bad_start(policy: DeliverPolicy, option: str, field: str, *, is_set: bool) -> Violation:
    state, hint = ("also set", "leave it out") if is_set else ("not set", "set it")
    return violate(10094, field, hint, policy=policy.replace("_", " "), option=option, state=state)


def _check_rest(config: ConsumerConfig) -> Iterator[Violation]:
    if config.sample_freq and (err := _refuse_sampling(config.sample_freq)):
        yield violate(10095, "sample_freq", f"found {config.sample_freq!r}; write a whole percentage like 10%", err=err)
    if config.flow_control and config.is_push and not config.idle_heartbeat:
        yield violate(10108, "flow_control", "set idle_heartbeat too, 5s for example")
    if config.durable_name and config.name and config.durable_name != config.name:
        yield violate(10132, "name", f"found {config.name!r} and durable_name {config.durable_name!r}; leave name out")
    if sum(len(k.encode()) + len(v.encode()) for k, v in config.metadata.items()) > MAX_METADATA:
        yield violate(10135, "metadata", "shorten it", limit="128KB")


def _refuse_sampling(text: str) -> str:
    """Return the server's error for a sample_freq, in the words of Go's parser; "" if valid."""
    digits = text.removesuffix("%")
    if re.fullmatch(r"[+-]?\d+", digits, re.ASCII):
        # Python's int() refuses numbers of thousands of digits
        if len(digits) > MAX_DIGITS or abs(int(digits)) > INT64_MAX:
            return f'strconv.Atoi: parsing "{digits}": value out of range'
        # Go's parser accepts a negative number, so the server prints a nil error
        return "<nil>" if int(digits) < 0 else ""
    return f'strconv.Atoi: parsing "{digits}": invalid syntax'


def _check_priority(config: ConsumerConfig) -> Iterator[Violation]:
    if config.priority_policy is PriorityPolicy.NONE:
        if config.priority_groups:
            yield violate(10196, "priority_groups", "set priority_policy, or leave priority_groups out")
        if config.priority_timeout:
            yield violate(10197, "priority_timeout", "set priority_policy, or leave priority_timeout out")
        return
    if config.is_push:
        yield violate(10178, "priority_policy", "leave out priority_policy, or deliver_subject")
    if not config.priority_groups:
        yield violate(10159, "priority_groups", "name at least one group")
    for at, group in enumerate(config.priority_groups):
        if not group:
            yield violate(10161, ("priority_groups", at), "write a name")
        elif not re.fullmatch(r"[a-zA-Z0-9/_=-]{1,16}", group, re.ASCII):
            yield violate(10162, ("priority_groups", at), f"found {group!r}")


def _parse(text: str) -> Pattern | None:
    try:
        return Pattern.parse(text)
    except SubjectError:
        return None


def _refuse(text: str) -> str:
    try:
        Pattern.parse(text)
    except SubjectError as error:
        return str(error)
    return ""
