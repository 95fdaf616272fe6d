"""`make audit`: known vulnerabilities of the locked versions, as a database of OSV's form tells them.

One request names all packages. Where the database cannot be reached within DEADLINE_S, nothing is looked at, and the
reason is said. $OVERLAY_AUDIT_URL names another database, such as a mirror inside a closed network.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any

import click

from .locks import LOCK, Package, read_lock

URL = "https://api.osv.dev/v1/querybatch"
VARIABLE = "OVERLAY_AUDIT_URL"
DEADLINE_S = 5.0
"""Seconds in all, so that a network without a way to the database costs no more."""
MAX_BYTES = 32 << 20


class Unreachable(Exception):
    """The database has not answered, or not with what it should."""


def make_request(packages: Sequence[Package]) -> dict[str, Any]:
    """Return the body of the request about packages."""
    return {
        "queries": [
            {"package": {"ecosystem": "PyPI", "name": package.name}, "version": package.version} for package in packages
        ]
    }


def read_answer(packages: Sequence[Package], answer: Any) -> dict[Package, list[str]]:
    """Return the names of the vulnerabilities of each package that has some. Raises Unreachable for an answer that is
    not about these packages.
    """
    results = answer.get("results") if isinstance(answer, Mapping) else None
    if not isinstance(results, list) or len(results) != len(packages):
        raise Unreachable(f"the answer is not about {len(packages)} packages")
    try:
        found = {
            package: sorted(str(each["id"]) for each in result.get("vulns", ()))
            for package, result in zip(packages, results, strict=True)
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise Unreachable(f"the answer has another form: {error!r}") from error
    return {package: names for package, names in found.items() if names}


def ask(url: str, body: Mapping[str, Any], deadline_s: float = DEADLINE_S) -> Any:
    """Return the JSON that the database answers. Raises Unreachable. Takes `deadline_s` at most: the request runs in a
    thread of its own, since the search for the address of a host name has no timeout.
    """
    if not url.startswith(("https://", "http://")):
        raise Unreachable("it is no URL of http or https")
    outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def send() -> None:
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=deadline_s) as response:
                outcome.put(json.loads(response.read(MAX_BYTES)))
        except (OSError, ValueError, HTTPException, RecursionError) as error:
            outcome.put(Unreachable(str(error) or type(error).__name__))

    threading.Thread(target=send, daemon=True).start()
    try:
        found = outcome.get(timeout=deadline_s)
    except queue.Empty:
        raise Unreachable(f"no answer within {deadline_s:g} s") from None
    if isinstance(found, Unreachable):
        raise found
    return found


def audit(url: str, packages: Sequence[Package]) -> int:
    """Print what is known of packages, and return the exit code: 1 if there is a vulnerability, 0 if there is none or
    the database cannot be reached.
    """
    try:
        found = read_answer(packages, ask(url, make_request(packages)))
    except Unreachable as error:
        click.echo(f"audit: skipped: {url}: {error}. ${VARIABLE} names another database of this form")
        return 0
    for package, names in found.items():
        click.echo(f"audit: {package.name} {package.version}: {', '.join(names)}")
    if found:
        click.echo(
            "audit: take versions without them with `make lock ARGS=--upgrade`, or say why they do not matter here"
        )
        return 1
    click.echo(f"audit: no vulnerability of {len(packages)} packages is known")
    return 0


if __name__ == "__main__":
    sys.exit(audit(os.environ.get(VARIABLE) or URL, read_lock(LOCK)))
