"""The loader of a config folder, which checks every rule. A bad file of a stream or a consumer stops no other.

The checks run in this order:

- each file by itself (YAML, fields, types)
- each stream's fields against each other
- each consumer against its stream by JetStream's rules, then against the overlay's own rules
- its filter against the stream's properties, if it has passed these rules
- cycles between the consumers that passed

A stream or consumer that fails is left out, and `Loaded.problems` has the reasons.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from overlay.default_folder import SERVICE_FILE
from overlay.errors import ConfigError, FilePosition, SchemaError

from .checks import Profile, Violation, check_consumer
from .codes import ERRORS
from .consumer import JETSTREAM_FIELDS, AckPolicy, ConsumerConfig, Engine
from .cycle import find_cycles
from .defaults import fill_defaults
from .document import Document, Path, read_document, show_path
from .ends import LogEnds
from .engine import check_engine
from .filters import check_filter
from .problems import validate
from .relations import check_stream
from .service import ServiceConfig
from .service_file import load_service
from .stream import StreamConfig
from .suggestion import suggest
from .values import read_schemas
from .warnings import find_warnings

ALL_ACKS = 100
"""The largest sample_freq in a file, in percent."""
ConsumerId = tuple[str, str]
Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configs of a folder: streams by name, consumers by stream and name. Consumers have
    JetStream's defaults filled in. What has a problem is left out.

    `problems` are in the order of the files. `files` says where each object was read; its keys are
    `""` for the service, a stream's name, and a consumer's id. `ends`: where the streams' logs
    ended at the creation of a consumer, for the consumers whose ends were recorded. `warnings`:
    what was hardly meant, and is served as it is. `signature`: of the folder before its files were
    read (`sign`); a folder that has another one has changed since, or while it was read.
    """

    service: ServiceConfig
    streams: dict[str, StreamConfig]
    consumers: dict[ConsumerId, ConsumerConfig]
    problems: tuple[ConfigError, ...]
    files: dict[str | ConsumerId, FilePosition]
    ends: dict[ConsumerId, LogEnds] = field(default_factory=dict)
    warnings: tuple[ConfigError, ...] = ()
    signature: Signature = field(default=(), compare=False, repr=False)

    @property
    def served(self) -> dict[ConsumerId, ConsumerConfig]:
        """The consumers that the service delivers. The others are those of Spark jobs."""
        return {id: config for id, config in self.consumers.items() if config.engine is Engine.SERVICE}


def load(folder: FilePath, *, environment: Mapping[str, str] | None = None) -> Loaded:
    """Return the configs of a folder.

    Raises ConfigError if overlay.yaml is bad; the result has all other problems.

    `environment` fills the variables of overlay.yaml; None means the process's own environment.
    """
    service = load_service(folder / SERVICE_FILE, os.environ if environment is None else environment)
    signature = sign(folder)
    loading = _Loading(service, {"": FilePosition(str(folder / SERVICE_FILE))})
    loading.problems.extend(_find_strays(folder))
    for file in _list_files(folder / "streams"):
        loading.load_stream(file)
    for file in _list_files(folder / "consumers"):
        loading.load_consumer(file)
    loading.drop_cycles()
    problems = tuple(sorted(loading.problems, key=lambda problem: problem.place))
    warnings = tuple(sorted(loading.warnings, key=lambda warning: warning.place))
    return Loaded(
        service, loading.streams, loading.consumers, problems, loading.files, warnings=warnings, signature=signature
    )


def sign(folder: FilePath) -> Signature:
    """Return the path, the modification time in ns and the size in bytes of each stream and consumer file of a
    folder, and of each file in its folder `schemas`, sorted by path.

    Two results differ if a file was added or removed in between, or changed so that its time or size is another. A
    service asks every second, of thousands of files: so no Path is made of each.
    """
    found: list[tuple[str, int, int]] = []
    for part in ("streams", "consumers"):
        entries = [entry for entry in _scan(folder / part) if entry.name.endswith(".yaml")]
        found += [facts for entry in entries if (facts := _sign(entry)) is not None]
    found += _sign_all(folder / "schemas")
    return tuple(sorted(found))


def _sign(entry: os.DirEntry[str]) -> tuple[str, int, int] | None:
    """Return path, modification time in ns and size in bytes of a file, None if these cannot be read, as of one that
    was deleted meanwhile.
    """
    try:
        facts = entry.stat()
    except OSError:
        return None
    return entry.path, facts.st_mtime_ns, facts.st_size


def _sign_all(folder: FilePath, above: tuple[tuple[int, int], ...] = ()) -> Iterator[tuple[str, int, int]]:
    """Yield path, modification time in ns and size in bytes of each file in a folder and its folders. `above`: the
    folders that the walk has come through after the first, by device and inode. A link to one of these is not
    followed, nor one that leads nowhere.
    """
    for entry in _scan(folder):
        try:
            facts = entry.stat()
        except OSError:
            continue
        own = (facts.st_dev, facts.st_ino)
        if not stat.S_ISDIR(facts.st_mode):
            yield entry.path, facts.st_mtime_ns, facts.st_size
        elif own not in above:
            yield from _sign_all(FilePath(entry.path), (*above, own))


def _scan(folder: FilePath) -> list[os.DirEntry[str]]:
    """Return what is in a folder, in any order; nothing if the folder is not there or cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _list_files(folder: FilePath) -> list[FilePath]:
    return sorted(file for file in folder.glob("*.yaml") if not file.name.startswith("."))


def _find_strays(folder: FilePath) -> Iterator[ConfigError]:
    for name in ("streams", "consumers"):
        for file in sorted((folder / name).glob("*.yml")):
            yield ConfigError(FilePosition(str(file)), "is not read: files end in .yaml. Rename it")
    for file in sorted(folder.glob("*.yaml")):
        if file.name != SERVICE_FILE:
            yield ConfigError(FilePosition(str(file)), "is not read. Move it to streams/ or consumers/")


@dataclass(slots=True)
class _Loading:
    """The state of loading a folder: what passed so far, and the problems found."""

    service: ServiceConfig
    files: dict[str | ConsumerId, FilePosition]
    streams: dict[str, StreamConfig] = field(default_factory=dict)
    consumers: dict[ConsumerId, ConsumerConfig] = field(default_factory=dict)
    problems: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigError] = field(default_factory=list)
    documents: dict[ConsumerId, Document] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """File by name of the streams that were left out because of problems."""

    def load_stream(self, file: FilePath) -> None:
        """Load one stream's file. If it fails, add its problems, and put the stream's name into `refused`, or the
        file's without `.yaml` if the name is not known. A sound second file of a stream that is loaded adds a problem
        only.
        """
        document = self._read(file)
        if document is None:
            self.refused.setdefault(file.stem, str(file))
            return
        stream, problems = validate(StreamConfig, document)
        self.problems.extend(problems)
        if stream is None:
            name = document.data.get("name")
            self.refused.setdefault(name if isinstance(name, str) else file.stem, str(file))
            return
        if stream.name in self.streams:
            first = self.files[stream.name].file
            self._refuse(document, ("name",), f"stream {stream.name!r} is already in {first}. Rename one of them")
            return
        stream, found = self._check_stream(stream)
        if found:
            self.refused[stream.name] = str(file)
            for path, message in found:
                self._refuse(document, path, message)
            return
        self.warnings.extend(find_warnings(document))
        self.streams[stream.name] = stream
        self.files[stream.name] = FilePosition(str(file))

    def _check_stream(self, stream: StreamConfig) -> tuple[StreamConfig, list[tuple[Path, str]]]:
        """Return the stream with the contents of the schema files that it names, and the path and message of each
        thing that is wrong with its fields. If a schema cannot be used, return the stream as it is, with that problem
        alone.
        """
        try:
            values = read_schemas(stream.values, FilePath(self.files[""].file).parent)
        except SchemaError as error:
            return stream, [(("values", stream.values.place), str(error))]
        stream = stream.model_copy(update={"values": values})
        return stream, [*check_stream(stream)]

    def load_consumer(self, file: FilePath) -> None:
        """Load one consumer's file and check it. If it fails, add its problems."""
        document = self._read(file)
        if document is None:
            return
        written, problems = validate(ConsumerConfig, document)
        self.problems.extend(problems)
        if written is None or not self._check_identity(document, written):
            return
        config = fill_defaults(written)
        if self._refuse_violations(document, config) or self._refuse_own(document, written):
            return
        self.warnings.extend(find_warnings(document))
        self.consumers[config.id] = config
        self.files[config.id] = FilePosition(str(file))
        self.documents[config.id] = document

    def drop_cycles(self) -> None:
        """Remove consumers whose output or dead-letter topic leads back to their stream, and add a problem for each."""
        for who, way in find_cycles(self.streams, self.consumers).items():
            document = self.documents[who]
            hint = f"the output leads back to the stream: {' -> '.join(way)}. Choose another output topic"
            path: Path = ("deliver_subject",) if self.consumers[who].deliver_subject == way[0] else ("dead_letter",)
            message = f"{ERRORS[10081].description}: {hint} (JetStream {ERRORS[10081].label})"
            self._refuse(document, path, message, code=10081)
            del self.consumers[who], self.files[who]

    def _read(self, file: FilePath) -> Document | None:
        try:
            return read_document(file)
        except ConfigError as error:
            self.problems.append(error)
            return None

    def _refuse(self, document: Document, path: Path, message: str, *, code: int | None = None) -> None:
        self.problems.append(ConfigError(document.place(path), message, field=show_path(path), code=code))

    def _check_identity(self, document: Document, config: ConsumerConfig) -> bool:
        name = config.id[1]
        if not name:
            self._refuse(document, ("durable_name",), "is missing. Give the consumer a name that it keeps")
        elif config.stream not in self.streams:
            code = None if config.stream in self.refused else 10059
            self._refuse(document, ("stream",), self._explain_stream(config.stream), code=code)
        elif config.id in self.consumers:
            first = self.files[config.id].file
            path = ("durable_name",) if config.durable_name else ("name",)
            self._refuse(document, path, f"{name!r} of stream {config.stream!r} is already in {first}. Rename one")
        else:
            return True
        return False

    def _explain_stream(self, name: str) -> str:
        if name in self.refused:
            return f"stream {name!r} is not loaded because of problems in {self.refused[name]}. Repair that file first"
        known = sorted(self.streams)
        if not known:
            return f"there is no stream {name!r}, nor any other. Add one to streams/ (JetStream {ERRORS[10059].label})"
        near = suggest(name, known)
        return f"there is no stream {name!r}.{near} Streams are {', '.join(known)} (JetStream {ERRORS[10059].label})"

    def _refuse_violations(self, document: Document, config: ConsumerConfig) -> bool:
        stream = self.streams[config.stream]
        built = stream.subject.rule.patterns()
        violations = [*check_consumer(config, stream.patterns, Profile.FILE, built=built)]
        for found in violations:
            self._refuse(document, found.path, word_violation(found), code=found.error.err_code)
        return bool(violations)

    def _refuse_own(self, document: Document, written: ConsumerConfig) -> bool:
        found = [*check_own(written, self.service.topics.prefix), *check_changed(written)]
        found = found or [*check_filter(written.filter, self.streams[written.stream])]
        for path, message in found:
            self._refuse(document, path, message)
        return bool(found)


def word_violation(found: Violation) -> str:
    """Return a violation as files and the CLI show it: the server's text, a hint, and the number.

    Errors with a second number in ADR-34 show both.
    """
    hint = f": {found.hint}" if found.hint else ""
    return f"{found.description}{hint} (JetStream {found.error.label})"


def check_changed(written: ConsumerConfig) -> Iterator[tuple[Path, str]]:
    """Yield the path and message of each JetStream field that is set to a value that a server would silently change.
    0, false and empty values count as not set. `written`: the config as the file has it, without defaults.

    A server in pedantic mode refuses such values too. In a file the written value should be the effective one.
    """
    filled = fill_defaults(written)
    for name in JETSTREAM_FIELDS:
        value, becomes = getattr(written, name), getattr(filled, name)
        if value and value != becomes:
            yield (name,), f"found {value}, which would become {becomes}. Write that, or leave it out"


def check_own(config: ConsumerConfig, prefix: str) -> Iterator[tuple[Path, str]]:
    """Yield the path and message of each breach of a rule that only the overlay has, such as what a field means for
    Kafka topics, or what `engine: spark` cannot do. JetStream's rules are those of `check_consumer`; the filter's
    expression and values are checked by `check_filter`.

    `prefix`: of the overlay's own topics.
    """
    for field_name in ("deliver_subject", "dead_letter"):
        topic: str = getattr(config, field_name) or ""
        if topic.startswith(prefix + "."):
            yield (field_name,), f"{topic!r} begins like the overlay's own topics ({prefix}.). Choose another name"
    if config.filter.sql is not None and config.filter.properties is not None:
        yield ("filter", "properties"), "stands beside filter.sql. Keep one of them"
    if config.on_undeliverable == "dead_letter" and config.dead_letter is None:
        yield ("on_undeliverable",), "is dead_letter, but there is no `dead_letter` topic. Name one"
    if config.dead_letter and config.dead_letter == config.deliver_subject:
        yield ("dead_letter",), "is the output topic itself. Choose another name"
    if config.deliver_group and not config.is_push:
        yield ("deliver_group",), "names the readers of an output, which a pull consumer has none of. Leave it out"
    if why := _refuse_sampling(config):
        yield ("sample_freq",), why
    if config.ack_policy is AckPolicy.FLOW_CONTROL and config.output.partitions > 1:
        hint = "A flow control request is answered by the reader of one partition, and acks all that came before it"
        yield ("output", "partitions"), f"is {config.output.partitions} with ack_policy flow_control. {hint}: write 1"
    yield from check_engine(config)
    if "message.timestamp.type" in config.output.config:
        yield ("output", "config", "message.timestamp.type"), "follows from output.timestamps. Set that instead"


def _refuse_sampling(config: ConsumerConfig) -> str:
    """Return what is wrong with a sample_freq that a server accepts and that does not do what it
    says; "" if nothing is, or if a server refuses it (checks.py).
    """
    digits = re.fullmatch(r"\+?0*(\d*)%?", config.sample_freq, re.ASCII)
    if digits is None:
        return ""
    share = int(digits[1][: len(str(ALL_ACKS)) + 1] or 0)  # more digits are more than ALL_ACKS as well
    if share > ALL_ACKS:
        return f"is more than {ALL_ACKS}%, which is every ack. Write a share up to that"
    if share and config.ack_policy is not AckPolicy.EXPLICIT:
        return f"picks among acks of single messages, which ack_policy {config.ack_policy} has none of. Leave it out"
    return ""
