"""An HTTP server for the length of a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer


@contextmanager
def serve_http(server: HTTPServer) -> Iterator[str]:
    """Have a thread answer requests; yield the server's URL, without a slash at its end."""
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
