"""Schemas of a schema registry, asked for over HTTP and kept as files by id.

A registry's schema of an id never changes, so a file that is there is not written again.

An Avro schema may refer to schemas of other subjects by name. A file has to be complete, so these
are put in place of the first mention of their names. Of Protobuf the registry is asked for compiled
files (`format=serialized`), and those that a file imports are put in front of it.

Source: Confluent's page "Schema Registry API Reference", schemas, subjects and versions.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote

from overlay.clock import monotonic
from overlay.config.registry import PRINTABLE, check_url
from overlay.config.values import SUFFIXES, Schema, ValueFormat, read_schema
from overlay.errors import OverlayError, SchemaError

from .protobuf_files import join_files, read_file

TIMEOUT_S = 10.0
"""Seconds that a registry may let pass without a byte of its answer."""
FETCH_S = 45.0
"""Seconds after which no more schemas are asked for that one schema refers to."""
ANSWER_S = 30.0
"""Seconds that an answer may take as a whole."""
_MOST_BYTES = 16 << 20
"""Most bytes of an answer."""
_MOST_REFERENCES = 1_000
"""Most schemas that one schema may refer to, directly or through others."""
_NOT_THERE = (40401, 40402, 40403)
"""What a registry answers with status 404 about a subject, a version or an id that it does not have."""
_NAMED = ("record", "error", "enum", "fixed")
USER, TOKEN = "basic.auth.user.info", "bearer.auth.token"
CA, CERTIFICATE, KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
SETTINGS = (USER, TOKEN, CA, CERTIFICATE, KEY)
"""Names of settings, as the clients of Confluent's registry have them."""


class RegistryError(OverlayError):
    """A registry's schemas cannot be fetched: it gives no answer that can be used, its URL or a setting is wrong, or
    a file cannot be written. The operator acts; schemas that are files already stay in use.
    """


class NotThere(RegistryError):
    """The registry has no such subject, version or id, and says so in a registry's words: another server at the same
    address would answer with status 404 too. Records of such an id have no fields; the operator checks which registry
    their producer uses.
    """


class FetchedSchema(NamedTuple):
    """A registry's schema, complete with all that it refers to. `data`: the bytes of its file."""

    schema: Schema
    data: bytes


class SchemaRegistry:
    """A client of the schema registry at `url`, which connects only when it is asked. `settings`: by the names of
    SETTINGS. Raises RegistryError if the URL or a setting cannot be used, or if settings conflict.
    """

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        self._url = url.rstrip("/")
        try:
            check_url(url)
        except ValueError as error:
            raise RegistryError(str(error)) from None
        if unknown := [name for name in settings if name not in SETTINGS]:
            raise RegistryError(f"{unknown[0]}: there is no such setting. There are {', '.join(SETTINGS)}")
        if USER in settings and TOKEN in settings:
            raise RegistryError(f"{TOKEN}: leave it out, or {USER}: there is one way to authenticate")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if USER in settings:
            coded = base64.b64encode(settings[USER].encode()).decode()
            self._headers["Authorization"] = f"Basic {coded}"
        elif TOKEN in settings:
            if not PRINTABLE.fullmatch(settings[TOKEN]):
                # http.client would refuse it as well, with the secret in its message
                raise RegistryError(f"{TOKEN}: a token has printable ASCII characters alone, no blanks, no line end")
            self._headers["Authorization"] = f"Bearer {settings[TOKEN]}"
        self._until = math.inf
        handlers = (_NoRedirect(), urllib.request.HTTPSHandler(context=_make_context(settings)))
        self._opener = urllib.request.build_opener(*handlers)

    def fetch(self, id: int, format: ValueFormat) -> FetchedSchema | None:
        """Return the schema of an id, None if the registry says that it has none of that id. Raises SchemaError if the
        schema cannot be used, and RegistryError if there is no answer that can be used; then a later call may help.
        """
        path, self._until = f"/schemas/ids/{id}", monotonic() + FETCH_S
        try:
            known = self._ask(path, format)
        except NotThere:
            return None
        if not isinstance(known, dict) or not isinstance(known.get("schema"), str):
            raise RegistryError(f"{self._url}{path}: the answer is none of a schema registry: {known!r:.100}")
        return self._read(known, format)

    def check(self) -> None:
        """Ask the registry for the types of schemas that it has, to see whether it answers. Raises RegistryError if it
        does not.
        """
        known = self._ask("/schemas/types")
        if not isinstance(known, list):
            raise RegistryError(f"{self._url}: the answer is none of a schema registry: {known!r:.100}")

    def pull(self, subject: str, folder: Path) -> Iterator[tuple[Path, bool]]:
        """Write the schema of each version of a subject, deleted ones too, to a file of `folder` that is named by the
        schema's id. A file that is there already is kept. Yield each version's file, and whether it was written.

        Raises RegistryError if the registry does not answer, if a schema is neither Avro nor Protobuf or cannot be
        used, or if a file cannot be written; files that were written before stay.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        # deleted versions as well: a topic keeps values longer than a registry its lists
        for version in self._list_versions(f"{path}?deleted=true"):
            known = self._ask(f"{path}/{version}?deleted=true")
            try:
                id, format = _read_id(known), _find_format(known)
                file = folder / f"{id}{SUFFIXES[format]}"
                if file.exists():
                    yield file, False
                    continue
                if format is ValueFormat.PROTOBUF:
                    known = self._ask(f"{path}/{version}?deleted=true", format)
                data = self._read(known, format).data
            except (AttributeError, KeyError, OSError, TypeError, ValueError, SchemaError) as error:
                reason = str(error) if isinstance(error, SchemaError) else f"{type(error).__name__}: {error}"
                raise RegistryError(f"version {version} of subject {subject} cannot be used: {reason}") from error
            write_file(file, data)
            yield file, True

    def _read(self, known: Any, format: ValueFormat) -> FetchedSchema:
        """Return the schema in the registry's answer `known`. Asks the registry for the
        schemas that it refers to. Raises SchemaError, or RegistryError if the registry does not answer.
        """
        try:
            if (other := _find_format(known)) is not format:
                raise SchemaError(f"it is a schema of {other.value}, and the stream's values are of {format.value}")
            if format is ValueFormat.PROTOBUF:
                data = self._compose(known)
            else:
                data = f"{json.dumps(self._complete(known), indent=1)}\n".encode()
            return FetchedSchema(read_schema(format, data), data)
        except SchemaError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise SchemaError(f"{type(error).__name__}: {error}") from error

    def _compose(self, known: Any) -> bytes:
        """Return a set of compiled files, as protoc writes it, of a Protobuf schema and all that it imports."""
        referred: dict[str, Any] = {}
        self._collect(known, referred, read_file, ValueFormat.PROTOBUF)
        return join_files(referred, read_file(known))

    def _list_versions(self, path: str) -> list[int]:
        versions = self._ask(path)
        if not isinstance(versions, list) or not all(type(each) is int for each in versions):
            raise RegistryError(f"{self._url}{path}: the answer is none of a schema registry: {versions!r:.100}")
        return versions

    def _complete(self, known: Any) -> object:
        """Return an Avro schema in which each schema that it refers to stands in place of the first mention of its
        name. `known`: the registry's answer for the version. Asks the registry for the schemas referred to. Raises
        RegistryError, SchemaError, and AttributeError, KeyError, TypeError or ValueError for an answer of another
        form.
        """
        referred: dict[str, object] = {}
        self._collect(known, referred, _parse)
        return _Inlining(referred).put(_parse(known), "")

    def _collect(
        self,
        known: Any,
        found: dict[str, Any],
        read: Callable[[Any], object],
        format: ValueFormat = ValueFormat.AVRO,
    ) -> None:
        """Add to `found`, by name, what `read` makes of the registry's answers for the schemas that `known` refers to,
        directly or through others: each after those that it refers to itself. Raises SchemaError, also if the registry
        has lost one of them.
        """
        left = [iter(known.get("references") or ())]
        begun: list[tuple[str, Any]] = []
        while left:
            each = next(left[-1], None)
            if each is None:
                left.pop()
                if begun:
                    name, other = begun.pop()
                    found[name] = read(other)
                continue
            if each["name"] in found or each["name"] in dict(begun):
                continue
            if len(found) + len(begun) >= _MOST_REFERENCES:
                raise SchemaError(f"it refers to more than {_MOST_REFERENCES} other schemas")
            subject, version = quote(each["subject"], safe=""), int(each["version"])
            try:
                other = self._ask(f"/subjects/{subject}/versions/{version}?deleted=true", format)
            except NotThere as error:
                raise SchemaError(f"it refers to a schema that is gone: {error}") from error
            begun.append((each["name"], other))
            left.append(iter(other.get("references") or ()))

    def _ask(self, path: str, format: ValueFormat = ValueFormat.AVRO) -> Any:
        """Send a GET request for `path` to the registry, and return its answer, parsed from JSON. Of Protobuf, schemas
        are asked for as compiled files. Raises RegistryError if there is no answer, an error as answer, or one that is
        not JSON, and SchemaError if it is too large.
        """
        if format is ValueFormat.PROTOBUF:
            path += f"{'&' if '?' in path else '?'}format=serialized"
        if monotonic() > self._until:
            raise RegistryError(f"{self._url}: the schemas that a schema refers to take longer than {FETCH_S:.0f} s")
        # the URL comes from the operator, and is one of HTTP
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                body = _read_body(answer)
        except urllib.error.HTTPError as error:
            with error:  # it has the connection
                kind = NotThere if _read_code(error) in _NOT_THERE else RegistryError
                raise kind(f"{self._url}{path}: {_explain(error)}") from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise RegistryError(f"{self._url} gives no answer: {reason}. {_AGAIN}") from error
        if len(body) > _MOST_BYTES:
            raise SchemaError(f"{self._url}{path}: the answer has more than {_MOST_BYTES} bytes")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RegistryError(f"{self._url}{path}: the answer is none of a schema registry: {error}") from error


def _read_body(answer: HTTPResponse) -> bytes:
    """Return the body of an answer; of one that is too large, somewhat more than the bytes that are allowed. Raises
    TimeoutError if it takes longer than ANSWER_S: one that comes byte by byte would keep its thread for ever.
    """
    body, until = bytearray(), monotonic() + ANSWER_S
    while len(body) <= _MOST_BYTES and (part := answer.read1(1 << 16)):
        body += part
        if monotonic() > until:
            raise TimeoutError(f"the answer takes longer than {ANSWER_S:.0f} s")
    if answer.length and len(body) <= _MOST_BYTES:
        raise TimeoutError("the answer is cut off")
    return bytes(body)


_AGAIN = "Schemas that are files already stay in use"


def _make_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.get(CA))
        if CERTIFICATE in settings or KEY in settings:
            context.load_cert_chain(settings.get(CERTIFICATE, ""), settings.get(KEY))
    except (OSError, ssl.SSLError) as error:
        raise RegistryError(f"the certificates of ssl.* cannot be read: {error}") from error
    return context


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler for urllib that follows no redirect, so that one is an HTTPError: the request, with its credentials,
    is for the registry's address alone.
    """

    # not redirect_request: before that is called, the address is taken apart, which raises ValueError for some
    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _read_code(error: urllib.error.HTTPError) -> int:
    """Return the number of the error in a registry's refusal, such as 40403; 0 if there is none."""
    try:
        code = json.loads(error.read(1 << 16))["error_code"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return 0
    return code if type(code) is int else 0


def _explain(error: urllib.error.HTTPError) -> str:
    """Return what a registry's refusal, an answer with an HTTP error status, means and what to do."""
    match error.code:
        case 401 | 403:
            return f"the registry refuses the credentials ({error.code}). Check {USER} or {TOKEN}"
        case 404:
            return "the registry has no such subject or version (404). Most are named TOPIC-value"
        case code if 300 <= code < 400:
            return f"the registry is at another address ({code}): {error.headers.get('Location', 'not said')!r:.200}"
        case code:
            return f"the registry answers with status {code}. {_AGAIN}"


def _read_id(known: Any) -> int:
    """Return the id of the schema in a registry's answer. Raises SchemaError if it is no whole number of 32 bits,
    which no value could have in front: the service would refuse a folder with a file of that name. Raises KeyError or
    TypeError if the answer has no id.
    """
    id = known["id"]
    if type(id) is not int or not 0 <= id < 1 << 32:
        raise SchemaError(f"{id!r:.100} is no id of a schema. Ids are whole numbers of 32 bits")
    return id


def _find_format(known: Any) -> ValueFormat:
    """Return the format of the schema in a registry's answer. Raises SchemaError if values of it cannot be read, and
    AttributeError if the answer is of another form.
    """
    kind = known.get("schemaType") or "AVRO"
    if kind not in ("AVRO", "PROTOBUF"):
        raise SchemaError(f"it is a schema of {kind!r:.40}, and only those of AVRO and PROTOBUF can be read")
    return ValueFormat(kind.lower())


def _parse(known: Any) -> object:
    """Return the Avro schema in a registry's answer, parsed from JSON; text that is not JSON is returned as it is, as
    the name of a type. Raises SchemaError if the schema is not of Avro, and AttributeError, KeyError or TypeError if
    the answer has none.
    """
    if _find_format(known) is not ValueFormat.AVRO:
        raise SchemaError("it is of Avro, and refers to a schema that is not")
    try:
        return json.loads(known["schema"])
    except json.JSONDecodeError:
        return known["schema"]  # a type by its name alone, as old registries write it


class _Inlining:
    """Puts schemas in place of the first mention of their names. `referred`: the schemas by full name. Each is put in
    once only, so use an instance for one schema.
    """

    def __init__(self, referred: Mapping[str, object]) -> None:
        self._left = dict(referred)

    def put(self, schema: object, namespace: str) -> object:
        """Return `schema`, which itself stays as it is, with each of the referred schemas that it mentions in place
        of the first mention. `namespace`: the one that completes short names where `schema` stands, "" for none.
        """
        if isinstance(schema, str):
            for name in (f"{namespace}.{schema}", schema) if namespace and "." not in schema else (schema,):
                if name in self._left:
                    return self.put(_set_namespace(self._left.pop(name)), "")
            return schema
        if isinstance(schema, list):
            return [self.put(part, namespace) for part in schema]
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if kind in _NAMED:
            namespace = _find_namespace(schema, namespace)
            fields = schema.get("fields")
            return {**schema, "fields": self._put_fields(fields, namespace)} if isinstance(fields, list) else schema
        parts = {key: self.put(schema[key], namespace) for key in ("items", "values") if key in schema}
        return {**schema, **parts, "type": self.put(kind, namespace)}

    def _put_fields(self, fields: Sequence[object], namespace: str) -> list[object]:
        return [
            {**field, "type": self.put(field.get("type"), namespace)} if isinstance(field, dict) else field
            for field in fields
        ]


def _set_namespace(schema: object) -> object:
    """Return a schema whose full name does not depend on where it is put: a record, error, enum or fixed with a short
    name gets `namespace` set, to "" if it has none. Any other schema is returned as it is.
    """
    if isinstance(schema, dict) and schema.get("type") in _NAMED and "." not in str(schema.get("name")):
        return {**schema, "namespace": schema.get("namespace", "")}
    return schema


def _find_namespace(schema: Mapping[str, object], namespace: str) -> str:
    """Return the namespace that completes short names within a record, enum or fixed: that of its full name, else its
    own `namespace`, else `namespace`, that of the type around it.
    """
    name, own = str(schema.get("name")), schema.get("namespace")
    return name.rpartition(".")[0] if "." in name else own if isinstance(own, str) else namespace


def write_file(file: Path, data: bytes) -> None:
    """Write a file, and make its folder if that is missing. The file appears complete or not at all, since a service
    may read the folder at any time. Raises RegistryError if it cannot be written.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise RegistryError(f"{file} cannot be written: {error.strerror}") from error
