"""The arguments of a reading, checked before anything is fetched."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from overlay.client.arguments import FILTER_WORDS, BadQuestion, check_names, join_aliases
from overlay.config.consumer import ConsumerConfig, FilterConfig
from overlay.config.filters import check_values
from overlay.config.stream import StreamConfig
from overlay.config.suggestion import suggest
from overlay.match import Values, choose_values
from overlay.subject import Pattern
from overlay.units import INT64_MAX

from .columns import SCHEMA, Form
from .moment import Moment, parse_moment
from .typed_columns import OWN, find_unknown, list_fields, list_names, make_form, pick_fields

if TYPE_CHECKING:
    from overlay.filter import Filter


class Question(TypedDict, total=False):
    """The arguments of `Client.read` apart from the stream; all are optional."""

    subjects: str | Sequence[str]
    """Subject patterns; a record passes if any of them matches."""
    sql: str
    """A filter expression; a record passes if the expression is true for it."""
    properties: Mapping[str, object]
    """A property filter, instead of `sql`."""
    values: str | Sequence[str]
    """Filter values; a record passes if its own value (the stream's `filter_value`) is one of them."""
    match_unfiltered: bool
    """Whether records without a filter value pass as well, if there are `values`."""
    subject: str | Sequence[str]
    """Another spelling of `subjects`."""
    value: str | Sequence[str]
    """Another spelling of `values`."""
    since: Moment
    """Records with this timestamp or a later one."""
    until: Moment
    """Records with an earlier timestamp."""
    from_seq: int
    """Records from this stream sequence on; a stream of several partitions needs its ledger."""
    last: int
    """Only this many of the last records that pass, in order."""
    last_per_subject: bool
    """Only the last record of each subject that passes, in order."""
    limit: int
    """Stop after this many records."""
    follow: bool
    """Continue with new records, for ever or up to `limit`."""
    columns: Sequence[str]
    """The columns to build: all of SCHEMA by default, none for an empty list. Others are declared properties and
    sections, by the names of `list_names`, or SECTION.FIELD.
    """
    decode: bool
    """Whether `timestamp` has a zone, and whether the default columns include `application_properties`, the
    struct of declared properties; false by default.
    """
    index: bool
    """Whether to use the stream's chunk index to skip what need not be read; true by default."""


@dataclass(frozen=True, slots=True)
class CheckedQuestion:
    """A question about one stream, checked and parsed. Times are ms since 1970. A field that is
    None was left out.
    """

    stream: StreamConfig
    is_named: bool
    """Whether a stream's file describes it."""
    patterns: tuple[Pattern, ...]
    filter: Filter | None
    columns: tuple[str, ...]
    since: int | None
    until: int | None
    from_seq: int | None
    last: int | None
    limit: int | None
    follow: bool
    index: bool = True
    values: Values | None = None
    last_per_subject: bool = False
    decode: bool = False
    """Whether `timestamp` has a zone."""

    def make_form(self) -> Form:
        """Return a builder of batches with the columns that the question asks for."""
        name = self.stream.name if self.is_named else None
        return make_form(self.stream, self.columns, name, decode=self.decode)


ARGUMENTS = ("stream", "topic", "consumer", "declare", *Question.__annotations__)
"""The arguments of `Client.read`."""


def ask_as_consumer(consumer: ConsumerConfig, question: Question) -> Question:
    """Return a copy of the question with the filters of a consumer added: its subjects, its SQL or
    property filter, and its filter values. Where the consumer begins, its acks and its state have no
    part in it.

    Raises BadQuestion if the question has a filter of its own: a word of FILTER_WORDS that is not
    None, () or False.
    """
    clash = [name for name, value in question.items() if name in FILTER_WORDS and value not in (None, (), False)]
    if clash:
        raise BadQuestion(f"consumer and {clash[0]} each say what passes. Leave one of them out")
    asked, filter = question.copy(), consumer.filter
    if consumer.filters:
        asked["subjects"] = consumer.filters
    if filter.sql is not None:
        asked["sql"] = filter.sql
    if filter.properties is not None:
        asked["properties"] = filter.properties
    if filter.values:
        asked["values"], asked["match_unfiltered"] = filter.values, filter.match_unfiltered
    return asked


def make_request(stream: StreamConfig, *, is_named: bool, now: int, **question: Unpack[Question]) -> CheckedQuestion:
    """Check the arguments of a reading and return them parsed. Nothing is asked of Kafka.

    `is_named`: whether a file describes the stream. `now`: ms since 1970, from which the ages in
    `since` and `until` count back. An argument that is None counts as left out.

    Raises BadQuestion, UnknownArgument, ArgumentConflict, SubjectError or FilterSyntaxError.
    """
    check_names("read", question, ARGUMENTS)
    question = cast(Question, join_aliases(question))
    texts = _list_texts("subjects", question.get("subjects"))
    decode = _check_flag("decode", question.get("decode"), False)
    request = CheckedQuestion(
        stream,
        is_named,
        tuple(Pattern.parse(text) for text in texts) or (Pattern(">"),),
        _compile(stream, question),
        _choose_columns(stream, question.get("columns"), decode),
        _read_moment("since", question.get("since"), now),
        _read_moment("until", question.get("until"), now),
        _check_count("from_seq", question.get("from_seq"), 1),
        _check_count("last", question.get("last"), 0),
        _check_count("limit", question.get("limit"), 0),
        _check_flag("follow", question.get("follow"), False),
        _check_flag("index", question.get("index"), True),
        read_values(
            stream,
            _list_texts("values", question.get("values")),
            _check_flag("match_unfiltered", question.get("match_unfiltered"), False),
        ),
        _check_flag("last_per_subject", question.get("last_per_subject"), False),
        decode,
    )
    if request.follow and request.until is not None:
        raise BadQuestion("follow and until exclude each other: what is followed has no end. Leave one of them out")
    if request.from_seq is not None and request.since is not None:
        raise BadQuestion("from_seq and since both say where to begin. Leave one of them out")
    if request.last is not None and request.last_per_subject:
        raise BadQuestion("last and last_per_subject exclude each other. Leave one of them out")
    return request


def _compile(stream: StreamConfig, question: Question) -> Filter | None:
    sql, properties = question.get("sql"), question.get("properties")
    if sql is not None and properties is not None:
        raise BadQuestion("sql and properties exclude each other. Leave one of them out")
    if sql is None and properties is None:
        return None
    if sql is not None and not isinstance(sql, str):
        raise BadQuestion(f"sql is {sql!r}, and has to be a text. A mapping goes into properties")
    from overlay.filter import compile_properties, compile_sql  # loads a grammar

    if sql is not None:
        return compile_sql(sql, stream.properties)
    assert properties is not None
    return compile_properties(properties, stream.properties)


def read_values(stream: StreamConfig, values: str | Sequence[str], match_unfiltered: bool) -> Values | None:
    """Return the filter values of a reading in parsed form; None if there are none. One text is one
    value.

    Raises BadQuestion for a value that no record of the stream can have, and for `match_unfiltered`
    without values.
    """
    wanted = (values,) if isinstance(values, str) else tuple(values)
    config = FilterConfig(values=wanted, match_unfiltered=match_unfiltered)
    for path, message in check_values(config, stream):
        raise BadQuestion(f"{path[1]}: {message}")
    return choose_values(config, stream)


def _choose_columns(stream: StreamConfig, wanted: Sequence[str] | None, decode: bool) -> tuple[str, ...]:
    """Return the names of a reading's columns: those of SCHEMA in its order, then others in the order of
    `wanted`, each once. If `wanted` is None: all of SCHEMA, and with `decode` also
    `application_properties` if the stream declares properties. Raises BadQuestion for an unknown
    name, and for a text in place of a list.
    """
    if wanted is None:
        declared = (OWN,) if decode and pick_fields(list_fields(stream), OWN) else ()
        return (*SCHEMA.names, *declared)
    if isinstance(wanted, str):
        raise BadQuestion(f"columns is the text {wanted!r}. Give a list of names, such as [{wanted!r}]")
    wanted = _list_texts("columns", wanted)
    if (unknown := find_unknown(stream, wanted)) is not None:
        known = list_names(stream)
        raise BadQuestion(f"there is no column {unknown!r}.{suggest(unknown, known)} Columns are {', '.join(known)}")
    envelope = (name for name in SCHEMA.names if name in wanted)
    return (*envelope, *(name for name in dict.fromkeys(wanted) if name not in SCHEMA.names))


def _read_moment(name: str, moment: Moment | None, now: int) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, str | datetime | timedelta):
        raise BadQuestion(f"{name} is {moment!r}, and has to be a text, a datetime or a timedelta")
    try:
        return parse_moment(moment, now)
    except (ValueError, OverflowError) as error:
        raise BadQuestion(f"{name}: {error}") from None


def _check_count(name: str, count: int | None, least: int) -> int | None:
    if count is None:
        return None
    if isinstance(count, bool) or not hasattr(count, "__index__"):
        raise BadQuestion(f"{name} is {count!r}, and has to be a whole number")
    if count < least:
        raise BadQuestion(f"{name} is {count}, and has to be {least} or more")
    # what no stream comes to means as much as the largest number that arrays and Arrow take
    return min(operator.index(count), INT64_MAX)


def _check_flag(name: str, flag: bool | None, default: bool) -> bool:
    if flag is None:
        return default
    if not isinstance(flag, bool):
        raise BadQuestion(f"{name} is {flag!r}, and has to be True or False")
    return flag


def _list_texts(name: str, given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return one text or an iterable of texts as a tuple, () for None. Raises BadQuestion for anything else. `name`: the
    argument's, for the message.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Mapping | bytes | bytearray) or not isinstance(given, Iterable):
        raise BadQuestion(f"{name} is {given!r}, and has to be a list of texts")
    texts = tuple(given)
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise BadQuestion(f"{name} holds {wrong[0]!r}, and has to hold texts only")
    return texts
