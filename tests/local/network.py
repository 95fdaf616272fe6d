"""A machine whose network goes nowhere, as far as programs that honour proxies are concerned."""

from __future__ import annotations

import pytest


def cut_network(patch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY"):
        patch.setenv(name, "http://127.0.0.1:1")
