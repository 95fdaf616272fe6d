"""The options of `format("overlay")`, parsed and checked against the config before anything is fetched.

Options are texts, as everywhere in Spark, and their names are case-insensitive. They name the
records to read: a stream of a config folder, a stream defined in the options, or a bare topic.
Subjects, an expression, filter values or a consumer's filter select among them. Further options set
the bounds and the columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from overlay.client import SCHEMA, BadQuestion, Client, Question, open_client
from overlay.client.read.question import CheckedQuestion, ask_as_consumer, make_request
from overlay.client.read.topic import describe_topic
from overlay.clock import now_ms
from overlay.config import ConsumerConfig, Loaded, StreamConfig, TopicsConfig, load
from overlay.config.document import parse_document
from overlay.config.problems import validate
from overlay.config.relations import check_stream
from overlay.config.suggestion import suggest
from overlay.config.values import read_schemas
from overlay.credentials import resolve
from overlay.errors import ConfigError, SchemaError
from overlay.kafka.log_position import TopicPartition

from .form import make_schema
from .output import UnknownConsumer

Offsets = Mapping[TopicPartition, int]
"""By partition: an offset, EARLIEST or LATEST, as Spark's Kafka source has them."""

Ranges = Mapping[TopicPartition, tuple[tuple[int, int], ...]]
"""By partition: ranges of offsets, first and next offset of each, rising, with gaps between them."""

LATEST, EARLIEST = -1, -2
_WORDS = {"latest": LATEST, "earliest": EARLIEST}
_BY_VALUE = ("values", "matchUnfiltered")
BOUNDS = ("startingSequence", "endingSequence", "startingOffsets", "endingOffsets")
KAFKA = "kafka."
"""The prefix of options that are librdkafka properties."""


TASK_BYTES = 32 << 20
MIN_TASKS = 8


IDS = "topic ids"
"""The key in a position of Spark's for what Kafka calls its topics. No topic can have this name."""


@dataclass(frozen=True, slots=True)
class ReadBound:
    """Where a reading begins or ends. At most one of the following is set; the others are None.
    `sequence`: of the stream. `offsets`: an offset by partition. `everywhere`: EARLIEST or LATEST,
    for all partitions.

    `ids`: Kafka's ids of the topics when `offsets` were written, by topic, as far as is known.
    """

    sequence: int | None = None
    offsets: Offsets | None = None
    everywhere: int | None = None
    ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much is read at once. `records`, `bytes`: about how many offsets and bytes of the log a trigger of a
    streaming query takes at most, None for no limit. What a trigger or a batch query reads is cut into tasks of at
    most about `task_bytes` bytes, and at least `min_tasks` of them unless there is too little to read.
    """

    records: int | None = None
    bytes: int | None = None
    task_bytes: int = TASK_BYTES
    min_tasks: int = MIN_TASKS


@dataclass(frozen=True, slots=True)
class Ask:
    """A parsed and checked set of options. It is sent to the executors. `columns`: None for those by default
    (`make_schema`).
    """

    kafka: Mapping[str, str] = field(repr=False)
    prefix: str
    request: CheckedQuestion
    starting: ReadBound
    ending: ReadBound
    pace: TriggerLimits
    columns: tuple[str, ...] | None
    fails_on_loss: bool = True
    pushdown: bool = False
    ranges: Ranges | None = None
    """The only offsets to read, within the bounds; None for all."""

    @property
    def stream_name(self) -> str | None:
        """The stream's name, None for a topic that no file describes."""
        return self.request.stream.name if self.request.is_named else None


_NAMES = (
    "bootstrap", "config", "prefix", "stream", "definition", "topic", "declare", "consumer", "subjects", "sql", "properties",
    "values", "matchUnfiltered", "columns", "index", "offsetRanges", "startingSequence", "endingSequence",
    "startingOffsets", "endingOffsets", "startingTime", "endingTime", "failOnDataLoss", "maxRecordsPerTrigger",
    "maxBytesPerTrigger", "minPartitions", "partitionBytes", "pushdown",
)  # fmt: skip


_ALIASES = {"subject": "subjects", "value": "values", "match_unfiltered": "matchUnfiltered"}
"""Other spellings, as the command line and Python have them."""


def read_options(options: Mapping[str, str]) -> Ask:
    """Return the options in parsed and checked form. Reads the config folder if one is given, but
    does not ask Kafka.

    Raises BadQuestion, ConfigError, UnknownStream, UnknownConsumer, SubjectError,
    FilterSyntaxError, and SourceUnavailable if a secret cannot be read.
    """
    given = _Given(options)
    loaded = load(Path(given.text["config"])) if "config" in given.text else None
    client = open_client(loaded, bootstrap=given.text.get("bootstrap", ""), kafka=given.kafka)
    stream, is_named = _find_stream(given, client, loaded)
    question = _make_question(given, stream, loaded)
    columns = given.list("columns")
    schema = make_schema(stream, columns)  # refuses unknown columns before anything else happens
    question["columns"] = [name for name in SCHEMA.names if name in schema.fieldNames()] or ["offset"]
    request = make_request(stream, is_named=is_named, now=now_ms(), **question)
    starting, ending = (_read_bound(given, which, stream) for which in ("starting", "ending"))
    if request.since is not None and (starting.sequence, starting.offsets, starting.everywhere) != (None, None, None):
        raise BadQuestion("startingTime and another starting option both say where to begin. Leave one of them out")
    pace = TriggerLimits(
        given.count("maxRecordsPerTrigger"),
        given.count("maxBytesPerTrigger"),
        given.count("partitionBytes") or TASK_BYTES,
        given.count("minPartitions") or MIN_TASKS,
    )
    lossless = given.flag("failOnDataLoss", True)
    prefix = given.text.get("prefix", client.prefix or TopicsConfig().prefix)
    pushdown = given.flag("pushdown", False)
    ranges = None
    if "offsetRanges" in given.text:
        ranges, ids = _read_ranges(given, stream)
        starting = ReadBound(offsets={source: pairs[0][0] for source, pairs in ranges.items()}, ids=ids)
        ending = ReadBound(offsets={source: pairs[-1][1] for source, pairs in ranges.items()})
    # an executor has neither the driver's variables nor its files
    return Ask(resolve(client.kafka), prefix, request, starting, ending, pace, columns, lossless, pushdown, ranges)


class _Given:
    """The options of a reading. `text`: values by the options' proper names, whatever case was used.
    `kafka`: the librdkafka properties. Raises BadQuestion for an unknown option, and for one that is
    given twice.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in _NAMES} | _ALIASES
        self.text: dict[str, str] = {}
        self.kafka: dict[str, str] = {}
        for name, value in options.items():
            if name.lower().startswith(KAFKA):
                self.kafka[name[len(KAFKA) :].lower()] = value
            elif (proper := known.get(name.lower())) is not None:
                if proper in self.text:
                    raise BadQuestion(f"{proper} is given twice, once as {name!r}. Leave one of them out")
                self.text[proper] = value
            else:
                raise BadQuestion(
                    f"there is no option {name!r}.{suggest(name, _NAMES)} Options are {', '.join(_NAMES)}"
                )

    def list(self, name: str) -> tuple[str, ...] | None:
        """Return the parts between commas without those that are empty; None if the option is not
        set. Raises BadQuestion if none is left.
        """
        if name not in self.text:
            return None
        parts = tuple(part.strip() for part in self.text[name].split(",") if part.strip())
        if not parts:
            raise BadQuestion(f"{name} is empty. Name some, or leave it out")
        return parts

    def count(self, name: str, least: int = 1) -> int | None:
        """Return an integer option of at least `least`, None if it is not set. Raises BadQuestion."""
        if name not in self.text:
            return None
        try:
            count = int(self.text[name])
        except ValueError:
            raise BadQuestion(f"{name} is {self.text[name]!r}, and has to be a whole number") from None
        if count < least:
            raise BadQuestion(f"{name} is {count}, and has to be {least} or more")
        return count

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is true or false, `default` if it is not set. Raises BadQuestion."""
        text = self.text.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise BadQuestion(f"{name} is {text!r}. Write true or false")
        return text == "true"

    def json(self, name: str) -> object:
        """Return the JSON value of an option that is set. Raises BadQuestion if it is no JSON."""
        try:
            return json.loads(self.text[name])
        except ValueError as error:
            raise BadQuestion(f"{name} is no JSON: {error}") from None

    def mapping(self, name: str) -> Mapping[str, object]:
        """Return the JSON object of an option that is set. Raises BadQuestion if it is none."""
        found = self.json(name)
        if not isinstance(found, dict):
            raise BadQuestion(f"{name} is no JSON object. Write {{...}}")
        return found


def _find_stream(given: _Given, client: Client, loaded: Loaded | None) -> tuple[StreamConfig, bool]:
    """Return the stream to read, and whether it is named in a file or definition: False for a bare topic. Raises
    BadQuestion, UnknownStream, UnknownConsumer, ConfigError.
    """
    ways = [name for name in ("stream", "definition", "topic") if name in given.text]
    if not ways and "consumer" in given.text:
        return client.find_stream(find_consumer(given.text["consumer"], "", loaded).stream), True
    if len(ways) != 1:
        raise BadQuestion(
            f"{' and '.join(ways)} each say what to read. Leave all but one out"
            if ways
            else "read what? Name a stream of the config folder, a consumer, a topic, or give a stream's definition"
        )
    if "declare" in given.text and ways != ["topic"]:
        raise BadQuestion("declare is for topics; what a stream declares stands in its file")
    match ways[0]:
        case "stream":
            return client.find_stream(given.text["stream"]), True
        case "definition":
            return read_definition(given.text["definition"]), True
        case _:
            declared: object = given.mapping("declare") if "declare" in given.text else {}
            return describe_topic(given.text["topic"], declared), False  # type: ignore[arg-type]


def read_definition(text: str) -> StreamConfig:
    """Return a stream from the text of a stream file, YAML or JSON. Files of schemas that it names are read from the
    current folder. Raises ConfigError.
    """
    document = parse_document("definition", text)
    stream, problems = validate(StreamConfig, document)
    if stream is None:
        raise problems[0]
    try:
        stream = stream.model_copy(update={"values": read_schemas(stream.values, Path.cwd())})
    except SchemaError as error:
        raise ConfigError(document.place(("values",)), str(error)) from error
    for path, message in check_stream(stream):
        raise ConfigError(document.place(path), message)
    return stream


def find_consumer(name: str, stream: str, loaded: Loaded | None) -> ConsumerConfig:
    """Return a consumer of the folder, of `stream` if that is not empty.

    Raises UnknownConsumer, BadQuestion without a folder, or the error in the consumer's file.
    """
    if loaded is None:
        raise BadQuestion(f"consumer {name!r} of which folder? Give config")
    found = [each for (of, own), each in loaded.consumers.items() if own == name and stream in ("", of)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownConsumer(
            f"several streams have a consumer {name!r}. Name the stream as well: {', '.join(c.stream for c in found)}"
        )
    for problem in loaded.problems:
        if Path(problem.place.file).stem == name:
            raise problem
    known = sorted(own for of, own in loaded.consumers if stream in ("", of))
    file = Path(loaded.files[""].file).parent / "consumers" / f"{name}.yaml"
    raise UnknownConsumer(
        f"no file describes a consumer {name!r}.{suggest(name, known)} If it was made by request, `overlay consumer export"
        f" {name} --out {file}` writes its file. " + (f"There is {', '.join(known)}" if known else "There is no other")
    )


def _make_question(given: _Given, stream: StreamConfig, loaded: Loaded | None) -> Question:
    question: Question = {"index": given.flag("index", True)}
    if "consumer" in given.text:
        if clash := [name for name in ("subjects", "sql", "properties", *_BY_VALUE) if name in given.text]:
            raise BadQuestion(f"consumer and {clash[0]} each say what passes. Leave one of them out")
        question = ask_as_consumer(find_consumer(given.text["consumer"], stream.name, loaded), question)
    else:
        if (subjects := given.list("subjects")) is not None:
            question["subjects"] = subjects
        if "sql" in given.text:
            question["sql"] = given.text["sql"]
        if "properties" in given.text:
            question["properties"] = given.mapping("properties")
        if "values" in given.text:
            question["values"] = _read_values(given)
        if "matchUnfiltered" in given.text:
            question["match_unfiltered"] = given.flag("matchUnfiltered", False)
    if "startingTime" in given.text:
        question["since"] = given.text["startingTime"]
    if "endingTime" in given.text:
        question["until"] = given.text["endingTime"]
    return question


def _read_values(given: _Given) -> Sequence[str]:
    """Return the filter values of the option `values`: its parts between commas, without empty ones. If
    it begins with `[`, they are the texts of a JSON list instead, at least one; such a text may be
    empty or have commas. Raises BadQuestion.
    """
    if not given.text["values"].lstrip().startswith("["):
        return given.list("values") or ()
    found = given.json("values")
    if not isinstance(found, list) or not found or not all(isinstance(value, str) for value in found):
        raise BadQuestion("values is a JSON list, and has to hold texts only, at least one")
    return found


def _read_bound(given: _Given, which: str, stream: StreamConfig) -> ReadBound:
    sequence, offsets = given.count(f"{which}Sequence"), f"{which}Offsets"
    if offsets not in given.text:
        return ReadBound(sequence)
    if sequence is not None:
        raise BadQuestion(f"{which}Sequence and {offsets} exclude each other. Leave one of them out")
    text = given.text[offsets].strip()
    if text.lower() in _WORDS:
        return ReadBound(everywhere=_WORDS[text.lower()])
    found = dict(given.mapping(offsets))
    ids = _take_ids(offsets, found)
    return ReadBound(offsets=parse_offsets(offsets, found, stream), ids=ids)


def _take_ids(name: str, found: dict[str, object]) -> Mapping[str, str]:
    """Remove the topics' ids (IDS) from the parsed JSON of an option, and return them by topic; empty if there are
    none. `name`: of the option. Raises BadQuestion if they are not texts by topic.
    """
    ids = found.pop(IDS, {})
    if not isinstance(ids, dict) or not all(isinstance(id, str) for id in ids.values()):
        raise BadQuestion(f'{name}: the "{IDS}" are texts, by topic. Leave them out')
    return ids


def _read_ranges(given: _Given, stream: StreamConfig) -> tuple[Ranges, Mapping[str, str]]:
    """Return the ranges of `offsetRanges`, and the ids of topics that it names. Raises BadQuestion."""
    name = "offsetRanges"
    if clash := [bound for bound in BOUNDS if bound in given.text]:
        raise BadQuestion(f"{name} and {clash[0]} each say which offsets to read. Leave one of them out")
    found = dict(given.mapping(name))
    ids = _take_ids(name, found)
    ranges: dict[TopicPartition, tuple[tuple[int, int], ...]] = {}
    for topic, of in found.items():
        if topic not in stream.topic_names:
            raise BadQuestion(f"{name}: topic {topic} is not in the stream, which has {', '.join(stream.topic_names)}")
        if not isinstance(of, dict):
            raise BadQuestion(f'{name} is a JSON object such as {{"{topic}": {{"0": [[23, 40], [80, 95]]}}}}')
        for partition, pairs in of.items():
            flat = _flatten_pairs(pairs)
            if not partition.isdecimal() or not flat or flat != sorted(set(flat)) or flat[0] < 0:
                raise BadQuestion(
                    f"{name}: {topic}-{partition} has {pairs!r}: write a list of pairs, the first offset and the one"
                    " behind the last, rising, with a gap between two pairs"
                )
            ranges[topic, int(partition)] = tuple(zip(flat[::2], flat[1::2], strict=True))
    return ranges, ids


def _flatten_pairs(pairs: object) -> list[int]:
    """Return the numbers of a JSON list of pairs of whole numbers; empty if it is anything else."""
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return []
    flat = [number for pair in pairs for number in pair]
    return flat if all(isinstance(number, int) and not isinstance(number, bool) for number in flat) else []


def parse_offsets(name: str, found: Mapping[str, object], stream: StreamConfig) -> dict[TopicPartition, int]:
    """Return offsets by partition, from what Spark's Kafka source writes: {"topic": {"0": 23, "1":
    -2}}; -2 is earliest, -1 latest.

    `name`: of the option, for messages. Raises BadQuestion.
    """
    offsets: dict[TopicPartition, int] = {}
    for topic, of in found.items():
        if topic not in stream.topic_names:
            raise BadQuestion(f"{name}: topic {topic} is not in the stream, which has {', '.join(stream.topic_names)}")
        if not isinstance(of, dict):
            raise BadQuestion(f'{name} is a JSON object such as {{"{topic}": {{"0": 23}}}}')
        for partition, offset in of.items():
            is_offset = isinstance(offset, int) and not isinstance(offset, bool) and offset >= EARLIEST
            if not partition.isdecimal() or not is_offset:
                raise BadQuestion(
                    f"{name}: {topic}-{partition} at {offset!r}: an offset is 0 or more, -1 latest, -2 earliest"
                )
            offsets[topic, int(partition)] = offset
    return offsets
