"""Schemas of a schema registry, asked for over HTTP and kept as files by id.

The service never asks a registry: it reads the files. A registry's schema of an id never changes, so
a file that is there is not written again.

An Avro schema may refer to schemas of other subjects by name. A file has to be complete, so these
are put in place of the first mention of their names.

Source: Confluent's page "Schema Registry API Reference", subjects and versions.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from overlay.avro import parse_schema
from overlay.config.values import SCHEMA_SUFFIX
from overlay.errors import OverlayError, SchemaError

TIMEOUT_S = 10.0
"""Seconds that a registry may take for an answer."""
_MOST_BYTES = 16 << 20
"""Most bytes of an answer."""
_MOST_REFERENCES = 1_000
"""Most schemas that one schema may refer to, directly or through others."""
_PRINTABLE = re.compile(r"[!-~]+", re.ASCII)
_NAMED = ("record", "error", "enum", "fixed")
USER, TOKEN = "basic.auth.user.info", "bearer.auth.token"
CA, CERTIFICATE, KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
SETTINGS = (USER, TOKEN, CA, CERTIFICATE, KEY)
"""Names of settings, as the clients of Confluent's registry have them."""


class RegistryError(OverlayError):
    """A registry's schemas cannot be fetched: it gives no answer that can be used, its URL or a setting is wrong, or
    a file cannot be written. The operator acts; schemas that are files already stay in use.
    """


class SchemaRegistry:
    """A client of the schema registry at `url`, which connects only when it is asked. `settings`: by the names of
    SETTINGS. Raises RegistryError if the URL or a setting cannot be used, or if settings conflict.
    """

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        self._url = url.rstrip("/")
        _check_url(url)
        if unknown := [name for name in settings if name not in SETTINGS]:
            raise RegistryError(f"-X {unknown[0]}: there is no such setting. There are {', '.join(SETTINGS)}")
        if USER in settings and TOKEN in settings:
            raise RegistryError(f"-X {TOKEN}: leave it out, or {USER}: there is one way to authenticate")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if USER in settings:
            coded = base64.b64encode(settings[USER].encode()).decode()
            self._headers["Authorization"] = f"Basic {coded}"
        elif TOKEN in settings:
            if not _PRINTABLE.fullmatch(settings[TOKEN]):
                # http.client would refuse it as well, with the secret in its message
                raise RegistryError(f"-X {TOKEN}: a token has printable ASCII characters alone, no blanks, no line end")
            self._headers["Authorization"] = f"Bearer {settings[TOKEN]}"
        handlers = (_NoRedirect(), urllib.request.HTTPSHandler(context=_make_context(settings)))
        self._opener = urllib.request.build_opener(*handlers)

    def pull(self, subject: str, folder: Path) -> Iterator[tuple[Path, bool]]:
        """Write the Avro schema of each version of a subject, deleted ones too, to a file of `folder` that is named
        by the schema's id. A file that is there already is kept. Yield each version's file, and whether it was
        written.

        Raises RegistryError if the registry does not answer, if a schema is not Avro or cannot be used, or if a file
        cannot be written; files that were written before stay.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        # deleted versions as well: a topic keeps values longer than a registry its lists
        for version in self._list_versions(f"{path}?deleted=true"):
            known = self._ask(f"{path}/{version}?deleted=true")
            try:
                file = folder / f"{_read_id(known)}{SCHEMA_SUFFIX}"
                if file.exists():
                    yield file, False
                    continue
                schema = self._complete(known)
                parse_schema(schema)
            except (AttributeError, KeyError, OSError, TypeError, ValueError, RecursionError) as error:
                reason = str(error) if isinstance(error, SchemaError) else f"{type(error).__name__}: {error}"
                raise RegistryError(f"version {version} of subject {subject} cannot be used: {reason}") from error
            _write(file, json.dumps(schema, indent=1))
            yield file, True

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
        self._collect(known, referred)
        return _Inlining(referred).put(_parse(known), "")

    def _collect(self, known: Any, found: dict[str, object]) -> None:
        for each in known.get("references") or ():
            if each["name"] in found:
                continue
            if len(found) >= _MOST_REFERENCES:
                raise SchemaError(f"it refers to more than {_MOST_REFERENCES} other schemas")
            other = self._ask(
                f"/subjects/{quote(each['subject'], safe='')}/versions/{int(each['version'])}?deleted=true"
            )
            found[each["name"]] = _parse(other)
            self._collect(other, found)

    def _ask(self, path: str) -> Any:
        """Send a GET request for `path` to the registry, and return its answer, parsed from JSON. Raises
        RegistryError if there is no answer, an error as answer, or one that is not JSON or too large.
        """
        # the URL comes from the operator's command line, and is one of HTTP
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                body = answer.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:  # it has the connection
                raise RegistryError(f"{self._url}{path}: {_explain(error)}") from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise RegistryError(f"{self._url} gives no answer: {reason}. {_AGAIN}") from error
        try:
            if len(body) > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES} bytes")
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RegistryError(f"{self._url}{path}: the answer is none of a schema registry: {error}") from error


_AGAIN = "Schemas that are files already stay in use; run the command again when the registry answers"


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        # without the URL: it may have a password
        raise RegistryError(f"the URL of the schema registry cannot be read: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RegistryError(f"{url!r} is no URL of a schema registry, such as http://localhost:8081")
    if parts.username is not None or parts.password is not None:
        # not repeated in the message: it has a password
        raise RegistryError(f"the URL has a user in it, which the list of processes shows. Write -X {USER}=env:NAME")
    if not _PRINTABLE.fullmatch(url):
        raise RegistryError(f"{url!r} has characters that no URL has. Write them as %XX, in a host name as xn--")
    if parts.query or parts.fragment:
        raise RegistryError(f"{url!r} has more than the address of a schema registry. Leave out what follows the path")


def _make_context(settings: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.get(CA))
        if CERTIFICATE in settings or KEY in settings:
            context.load_cert_chain(settings.get(CERTIFICATE, ""), settings.get(KEY))
    except (OSError, ssl.SSLError) as error:
        raise RegistryError(f"the certificates of -X ssl.* cannot be read: {error}") from error
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


def _explain(error: urllib.error.HTTPError) -> str:
    """Return what a registry's refusal, an answer with an HTTP error status, means and what to do."""
    match error.code:
        case 401 | 403:
            return f"the registry refuses the credentials ({error.code}). Check -X {USER} or -X {TOKEN}"
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


def _parse(known: Any) -> object:
    """Return the Avro schema in a registry's answer, parsed from JSON; text that is not JSON is returned as it is, as
    the name of a type. Raises SchemaError if the schema is not of Avro, and AttributeError, KeyError or TypeError if
    the answer has none.
    """
    kind = known.get("schemaType") or "AVRO"
    if kind != "AVRO":
        hint = ": compile its .proto file with protoc" if kind == "PROTOBUF" else ""
        raise SchemaError(f"it is a schema of {kind}, and only those of AVRO can be fetched{hint}")
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


def _write(file: Path, text: str) -> None:
    """Write a text and a line feed to a file, and make its folder if that is missing. The file appears complete or
    not at all, since a service may read the folder at any time. Raises RegistryError if it cannot be written.
    """
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RegistryError(f"{file} cannot be written: {error.strerror}") from error
