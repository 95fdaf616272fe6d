"""A schema registry over HTTP, as far as schemas are fetched from one."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Registry:
    """The subjects of a registry, by version; and what it was asked."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, dict[str, Any]]] = {}
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """What is answered to some paths instead: status, headers, body."""
        self.asked: list[tuple[str, str | None]] = []
        """Paths, with the credentials that came along."""
        self.wanted: str | None = None
        self.compiled: dict[int, bytes] = {}
        """By id of a Protobuf schema, its file as protoc compiles it."""

    def add(self, subject: str, id: int, schema: object, **more: Any) -> None:
        versions = self.subjects.setdefault(subject, {})
        number = len(versions) + 1
        versions[number] = {"subject": subject, "version": number, "id": id, "schema": json.dumps(schema), **more}

    def add_file(self, subject: str, id: int, text: str, compiled: bytes, **more: Any) -> None:
        """Add a schema of Protobuf: the text of a .proto file, and the same compiled (FileDescriptorProto)."""
        self.add(subject, id, "", schemaType="PROTOBUF", **more)
        self.subjects[subject][len(self.subjects[subject])]["schema"] = text
        self.compiled[id] = compiled

    def count_asked(self, path: str) -> int:
        return sum(asked.partition("?")[0] == path for asked, _ in self.asked)

    def answer(self, path: str, credentials: str | None) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((path, credentials))
        if path in self.answers:
            return self.answers[path]
        if credentials != self.wanted:
            return 401, {}, b'{"error_code": 401, "message": "Unauthorized"}'
        plain, _, query = path.partition("?")
        if plain == "/schemas/types":
            return 200, {}, b'["AVRO", "PROTOBUF", "JSON"]'
        is_serialized = "format=serialized" in query
        if plain.startswith("/schemas/ids/"):
            id = int(plain.rpartition("/")[2])
            found = [each for versions in self.subjects.values() for each in versions.values() if each["id"] == id]
            if not found:
                return 404, {}, b'{"error_code": 40403, "message": "Schema not found"}'
            told = self._write(found[0], is_serialized=is_serialized)
            for name in ("subject", "version", "id"):
                del told[name]
            return 200, {}, json.dumps(told).encode()
        _, _, subject, _, *rest = plain.split("/")
        versions = self.subjects.get(subject)
        if versions is None:
            return 404, {}, b'{"error_code": 40401}'
        known = self._write(versions[int(rest[0])], is_serialized=is_serialized) if rest else sorted(versions)
        return 200, {}, json.dumps(known).encode()

    def _write(self, known: dict[str, Any], *, is_serialized: bool) -> dict[str, Any]:
        if is_serialized and known["id"] in self.compiled:
            return {**known, "schema": base64.b64encode(self.compiled[known["id"]]).decode()}
        return dict(known)


@contextmanager
def serve_registry(registry: Registry, port: int = 0) -> Iterator[str]:
    """Serve a registry, and yield its URL. `port`: 0 for any that is free."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = registry.answer(self.path, self.headers["Authorization"])
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Be silent."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
