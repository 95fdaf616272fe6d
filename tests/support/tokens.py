"""A token endpoint of OAuth's client credentials, for brokers that take tokens without a signature."""

from __future__ import annotations

import base64
import contextlib
import json
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.http_server import serve_http

CLIENT, SECRET = "overlay", "looking-glass"


@dataclass(slots=True)
class TokenEndpoint:
    """What the endpoint answers, and what it was asked.

    `body`: the answer in place of a token, if it is not None; `location`: where it redirects to, if it does;
    `is_truncated`: the answer is a chunk that ends too early.
    """

    url: str = ""
    lifetime_s: float = 300.0
    status: int = 200
    body: bytes | None = None
    location: str = ""
    is_truncated: bool = False
    asked: list[dict[str, str]] = field(default_factory=list)
    """The forms of the requests, each with the header `authorization`."""

    @property
    def kafka(self) -> dict[str, str]:
        """Kafka settings of a client that gets its tokens here."""
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET,
        }

    def make_answer(self) -> bytes:
        """Return the body of an answer, with a new token."""
        if self.body is not None:
            return self.body
        token = make_token(len(self.asked), self.lifetime_s)
        return json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s}).encode()


def make_token(number: int, lifetime_s: float) -> str:
    """Return a JSON Web Token without a signature, which brokers take that are not configured otherwise."""
    now = time.time()
    claims = {"sub": CLIENT, "iat": now - 120, "exp": now + lifetime_s, "number": number}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return "".join(base64.urlsafe_b64encode(part).decode().rstrip("=") + "." for part in parts)


@contextlib.contextmanager
def serve_tokens() -> Iterator[TokenEndpoint]:
    """Run a token endpoint for the block."""
    endpoint = TokenEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            endpoint.asked.append(
                dict(urllib.parse.parse_qsl(form)) | {"authorization": self.headers.get("Authorization", "")}
            )
            answer = endpoint.make_answer()
            self.send_response(endpoint.status)
            self.send_header("Content-Type", "application/json")
            if endpoint.is_truncated:
                self.send_header("Transfer-Encoding", "chunked")
                answer = b"%x\r\n%s" % (len(answer) + 1, answer)
            else:
                self.send_header("Content-Length", str(len(answer)))
            if endpoint.location:
                self.send_header("Location", endpoint.location)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged."""

    with serve_http(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        endpoint.url = f"{url}/token"
        yield endpoint
