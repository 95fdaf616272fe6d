"""YAML files as plain data, with the line and column of every key and value.

ruamel.yaml composes the file to nodes with marks, and this module builds the data from the nodes.
That way duplicate keys are noticed and every value keeps its line and column. YAML 1.2 applies, so
`no`, `off` and `12:30` are strings. Merge keys, tags that say something else than the value, other
versions of YAML, keys that are not strings and several documents in one file have no use in a
config file. They are refused, so that no config is guessed at.

No message repeats what is under the name of a secret, not even what YAML takes for a tag or a key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scanner import Scanner, ScannerError

from overlay.credentials import SECRETS
from overlay.errors import ConfigError, FilePosition

Path = tuple[str | int, ...]
"""The steps from the root of a file to a value, such as ("filter_subjects", 1)."""

_SECRETS = (*SECRETS, "token", "admin_token")
_TAG = "tag:yaml.org,2002:"
_VERSION = (1, 2)
_SCALARS = ("int", "float", "bool", "null", "timestamp", "value")
"""Tags of values that are not written as texts, without _TAG. A timestamp and `=` are read as texts."""
_MAX_NODES = 100_000
_MAX_DIGITS = 100
_MAX_DEPTH = 20
"""Most levels of nesting. The scanner's work for each token grows with the depth."""


@dataclass(frozen=True, slots=True)
class Document:
    """The content of one file: dicts, tuples and scalars, with the place of each key and value."""

    file: str
    data: dict[str, object]
    values: dict[Path, FilePosition]
    keys: dict[Path, FilePosition]

    def place(self, path: Path, *, key: bool = False) -> FilePosition:
        """Return the place of the value at `path`, or if `key` is set, of its key.

        If the file has no such key, return the place of the value; if it has no such value, that of
        the nearest mapping or list around it.
        """
        if key and path in self.keys:
            return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, FilePosition(self.file))


def show_path(path: Path) -> str:
    """Return a path as messages show it: `filter_subjects[1]`, `output.config.retention.ms`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def is_secret(path: Path) -> bool:
    """Return whether a step of the path is the name of a secret of overlay.yaml, at any depth."""
    return any(step in _SECRETS for step in path)


def cut_secret(path: Path) -> Path:
    """Return the path up to the first name of a secret: the keys under it may be parts of the secret."""
    return next((path[: at + 1] for at, step in enumerate(path) if step in _SECRETS), path)


def read_document(file: FilePath) -> Document:
    """Return the content of one file. Raises ConfigError, with the place as far as it is known, if it cannot be read, is not
    a YAML mapping in UTF-8, or has something of YAML that configs may not have, such as a duplicate key or a tag of its own.
    """
    name = str(file)
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            FilePosition(name), f"cannot be read: {error.strerror}. Check the file's permissions"
        ) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(_byte_place(name, raw, error.start), "is not UTF-8 here. Save the file as UTF-8") from error
    return parse_document(name, text)


def parse_document(name: str, text: str) -> Document:
    """Return the content of a file with this text, and raise ConfigError for it, as `read_document` does. `name`: of
    the file, for messages.
    """
    try:
        return _parse(name, text)
    except RecursionError:
        raise _refuse_depth(name, None) from None


def _parse(name: str, text: str) -> Document:
    yaml = _make_reader()
    root = _compose(yaml, name, text)
    builder = _Builder(name, yaml.resolver)
    is_null = isinstance(root, ScalarNode) and root.tag == _TAG + "null" and builder.build_scalar(root, ()) is None
    if root is None or is_null:
        raise ConfigError(FilePosition(name), "is empty. Write `field: value` lines, or remove the file")
    if not isinstance(root, MappingNode):
        raise ConfigError(builder.place(root), "is not a mapping. The file must consist of `field: value` lines")
    data = builder.build_mapping(root, ())
    return Document(name, data, builder.values, builder.keys)


def _make_reader() -> YAML:
    yaml = _Yaml(typ="safe", pure=True)
    yaml.max_depth = _MAX_DEPTH
    yaml.Scanner = _Scanner
    # YAML lets an anchor be used again; the warning would show lines of the file, which may have secrets
    yaml.composer.warn_double_anchors = False
    return yaml


def _compose(yaml: YAML, name: str, text: str) -> Node | None:
    try:
        return yaml.compose(text)  # type: ignore[no-any-return]
    except (MaxDepthExceededError, _TooDeep) as error:
        raise _refuse_depth(name, error.problem_mark) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = FilePosition(name, mark.line + 1, mark.column + 1) if mark else FilePosition(name)
        raise ConfigError(place, _explain(error)) from error
    except YAMLError as error:
        raise ConfigError(FilePosition(name), f"is not YAML: {' '.join(str(error).split())}") from error


def _refuse_depth(name: str, mark: StringMark | None) -> ConfigError:
    place = FilePosition(name, mark.line + 1, mark.column + 1) if mark else FilePosition(name)
    return ConfigError(place, f"is nested too deeply. Write it with fewer than {_MAX_DEPTH} levels")


class _Yaml(YAML):
    """ruamel's reader without plug-ins. It would search its folder for them for each of thousands of
    files, which takes a sixth of the time of reading one."""

    def official_plug_ins(self) -> list[str]:
        return []


class _TooDeep(ScannerError):
    """Brackets that are nested too deeply."""


class _Refused(ScannerError):
    """What the scanner of config files refuses. `problem` is the whole message."""


class _Scanner(Scanner):
    """ruamel's scanner with a limit for nested brackets. It looks for the end of each before the
    composer sees the first one, which takes seconds for a thousand of them.

    It also refuses what ruamel's own would end with other errors for, or read in another way than YAML 1.2 says.
    """

    def fetch_flow_collection_start(self, *args: Any, **options: Any) -> None:
        if len(self.flow_context) >= _MAX_DEPTH:
            raise _TooDeep(None, None, "nested too deeply", self.reader.get_mark())
        super().fetch_flow_collection_start(*args, **options)

    def scan_yaml_directive_value(self, start_mark: StringMark) -> Any:
        """Return the version of a line `%YAML 1.2`, and refuse any other: by YAML 1.1, `no` and `12:30` are no texts."""
        try:
            version = super().scan_yaml_directive_value(start_mark)
        except ValueError:  # a number of thousands of digits
            version = None
        if version != _VERSION:
            raise _Refused(
                None, None, "is for another version of YAML. Leave this line out: files are YAML 1.2", start_mark
            )
        return version

    def scan_flow_scalar_non_spaces(self, *args: Any) -> Any:
        """Return a part of a text in quotes, and refuse an escape such as `\\UFFFFFFFF`."""
        try:
            return super().scan_flow_scalar_non_spaces(*args)
        except (ValueError, OverflowError):
            problem = "an escape for no character. Codes of characters go up to \\U0010FFFF"
            raise _Refused(None, None, problem, self.reader.get_mark()) from None

    def scan_tag(self) -> Any:
        """Return a tag, and refuse one without a name: by YAML, `! 12` is a text, but ruamel reads a number."""
        token = super().scan_tag()
        if token.value == (None, "!"):
            raise _Refused(
                None, None, "a `!` without a name. Leave it out, or put the value in quotes", token.start_mark
            )
        return token


def _explain(error: MarkedYAMLError) -> str:
    problem = " ".join(str(error.problem or error.context or "syntax error").split())
    if isinstance(error, _Refused):
        return problem
    # what YAML takes for a name may be a secret without quotes; the place says which one
    for named in ("found undefined alias", "found undefined tag handle", "duplicate tag handle"):
        problem = named if problem.startswith(named) else problem
    if "\\t" in problem:
        return "a tab where YAML wants spaces. Indent with spaces"
    if "single document" in problem or "single document" in str(error.context):
        return "a second document begins here. Give each stream and consumer a file of its own"
    context = f" {error.context}" if error.context and error.context != problem else " here"
    begun, found = error.context_mark, error.problem_mark
    since = f", begun in line {begun.line + 1}" if begun and found and begun.line != found.line else ""
    return f"is not YAML:{context}{since}: {problem}. Check quotes, brackets and indentation here and above"


def _byte_place(name: str, raw: bytes, at: int) -> FilePosition:
    before = raw[:at]
    line = before.count(b"\n") + 1
    return FilePosition(name, line, at - (before.rfind(b"\n") + 1) + 1)


@dataclass(slots=True)
class _Builder:
    """Builds one file's data from its nodes, and records the place of every key and value."""

    file: str
    resolver: Any
    """ruamel's resolver, which finds the tag of a value without one."""
    values: dict[Path, FilePosition] = field(default_factory=dict)
    keys: dict[Path, FilePosition] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    """Ids of the nodes that are being built, to detect an alias that contains itself."""

    def place(self, node: Node) -> FilePosition:
        return FilePosition(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def build(self, node: Node, path: Path) -> object:
        """Return the data of a node, with all that is in it, and record the places of its values and keys. `path`: of
        the node in the file.

        Raises ConfigError for content that a config file must not have.
        """
        self.values[path] = self.place(node)
        # aliases can expand a small file without limit
        if len(self.values) > _MAX_NODES:
            raise ConfigError(self.place(node), f"more than {_MAX_NODES} values in one file. Use fewer aliases")
        if id(node) in self.open:
            raise ConfigError(self.place(node), "an alias that contains itself. Write the value out")
        if isinstance(node, ScalarNode):
            return self.build_scalar(node, path)
        self.open.add(id(node))
        built: object
        if isinstance(node, MappingNode):
            built = self.build_mapping(node, path)
        elif isinstance(node, SequenceNode):
            self.check_tag(node, path, "seq", "a list")
            built = tuple(self.build(item, (*path, at)) for at, item in enumerate(node.value))
        else:
            raise ConfigError(self.place(node), f"a YAML {type(node).__name__} has no meaning here. Write it out")
        self.open.discard(id(node))
        return built

    def build_mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        """Return the data of a mapping node as a dict, and record places as `build` does. Raises ConfigError for a
        duplicate key, and for other content that a config file must not have.
        """
        self.values[path] = self.place(node)
        self.check_tag(node, path, "map", "a mapping")
        built: dict[str, object] = {}
        for key, value in node.value:
            name = self.build_key(key, path)
            here = (*path, name)
            if name in built:
                message = f"stands here a second time, first in line {self.keys[here].line}. Keep one"
                raise ConfigError(self.place(key), message, field=show_path(cut_secret(here)))
            self.keys[here] = self.place(key)
            built[name] = self.build(value, here)
            if built[name] is None:
                # ruamel marks an absent value where the next node begins, often on a later line
                self.values[here] = self.keys[here]
        return built

    def build_key(self, key: Node, path: Path) -> str:
        """Return a key as a string.

        Raises ConfigError for a merge key, a key that is not a string, and one with half of a surrogate pair.
        """
        where = show_path(cut_secret(path))
        if isinstance(key, ScalarNode) and key.tag == _TAG + "merge":
            raise ConfigError(self.place(key), "merge keys (<<) are not supported. Write the fields out", field=where)
        if not isinstance(key, ScalarNode) or key.tag != _TAG + "str":
            shown = f"the key {key.value}" if isinstance(key, ScalarNode) else "the key a list or mapping"
            shown = "a key" if is_secret(path) else shown
            raise ConfigError(self.place(key), f"{shown} is not a text. Put it in quotes", field=where)
        return self.check_text(key)

    def check_text(self, node: ScalarNode) -> str:
        """Return a scalar's text. Raises ConfigError if it has half of a surrogate pair."""
        text = str(node.value)
        # an escape can write half of a surrogate pair, which no output could encode
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ConfigError(self.place(node), "half of a surrogate pair is no text. Write the whole character")
        return text

    def check_tag(self, node: Node, path: Path, wanted: str, shown: str) -> None:
        """Raise ConfigError if a mapping or a list has another tag than its own, `wanted`. `shown`: which of them it is."""
        if node.tag != _TAG + wanted:
            problem = f"{_show_tag(node, path)} is not supported for {shown}. Leave the tag out"
            raise ConfigError(self.place(node), problem)

    def build_scalar(self, node: ScalarNode, path: Path) -> object:
        """Return the value of a scalar by its YAML 1.2 tag.

        Raises ConfigError for other tags, for a tag that does not fit the text, for a whole number of more than
        _MAX_DIGITS characters, and for a text with half of a surrogate pair.
        """
        kind = str(node.tag).removeprefix(_TAG)
        text = str(node.value)
        if kind == "str":
            return self.check_text(node)
        if kind not in _SCALARS:
            raise ConfigError(self.place(node), f"{_show_tag(node, path)} is not supported. Write a plain value")
        plain = str(self.resolver.resolve(ScalarNode, text, (True, False))).removeprefix(_TAG)
        if plain != kind and (plain, kind) != ("int", "float"):
            raise ConfigError(self.place(node), f"the tag !!{kind} does not fit this value. Leave the tag out")
        match kind:
            case "timestamp" | "value":
                return self.check_text(node)
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
        return self.read_number(node, kind)

    def read_number(self, node: ScalarNode, kind: str) -> int | float:
        """Return the number of a scalar whose tag is `kind`, "int" or "float".

        Raises ConfigError for a whole number of more than _MAX_DIGITS characters, and for one without digits (`0x_`).
        """
        text = str(node.value)
        if kind == "int" and len(text) > _MAX_DIGITS:
            raise ConfigError(self.place(node), "a number too long to mean anything here. Shorten it")
        try:
            return _read_int(text) if kind == "int" else _read_float(text)
        except ValueError:
            problem = "looks like a number, and is not a number. Write digits, or put it in quotes"
            raise ConfigError(self.place(node), problem) from None


def _show_tag(node: Node, path: Path) -> str:
    """Return a tag as messages show it: `the YAML tag !!int`. Under the name of a secret it has no name."""
    if is_secret(path):
        return "a YAML tag"
    tag = str(node.tag)
    return "the YAML tag " + (f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag)


def _read_int(text: str) -> int:
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2].lower(), 10)
    return sign * int(digits[2:] if base != 10 else digits, base)


def _read_float(text: str) -> float:
    named = text.lower().lstrip("+-").removeprefix(".")
    if named in ("inf", "nan"):
        return float(("-" if text.startswith("-") else "") + named)
    return float(text.replace("_", ""))
