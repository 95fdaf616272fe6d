"""The Dockerfile against the tree: what it copies, what it starts, where it listens."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import click

from overlay.cli import overlay
from overlay.metrics import Metrics
from overlay.worker.http import make_app

from .test_operations_page import NoReports
from .tree import ROOT, list_mounts, list_ports, read_compose, read_yaml

OVERLAY = read_compose()["services"]["overlay"]
PROJECT: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    for line in text.splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


INSTRUCTIONS = list(_instructions())


def _last(word: str) -> str:
    return [rest for found, rest in INSTRUCTIONS if found == word][-1]


def _copied() -> list[str]:
    """Sources that come from the tree."""
    lines = [rest.split() for word, rest in INSTRUCTIONS if word == "COPY" and "--from" not in rest]
    return [source for line in lines for source in line[:-1]]


def test_what_it_copies_exists_and_reaches_the_build() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for source in _copied():
        assert (ROOT / source).exists(), f"the Dockerfile copies {source}, which is not in the tree"
        assert any(fnmatch(source, pattern) for pattern in kept), f".dockerignore leaves {source} out"
    assert sorted(kept) == sorted(_copied()), "the build gets files that it does not copy"


def test_it_copies_what_the_wheel_is_made_of() -> None:
    needed = {*PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], PROJECT["project"]["readme"]}
    assert needed | {"pyproject.toml", *PROJECT["project"]["license-files"]} <= set(_copied())


def test_it_installs_what_is_locked_and_nothing_else() -> None:
    """Each call of pip takes a lock with hashes, or looks at no index."""
    calls = [call for word, rest in INSTRUCTIONS if word == "RUN" for call in re.findall(r"pip \w+ [^&]*", rest)]
    assert len(calls) == 4
    locks = {found[1] for call in calls if (found := re.search(r"--require-hashes .*--requirement (\S+)", call))}
    assert locks == {"requirements-service.lock", "requirements-build.lock"}
    assert all("--no-deps" in call and ("--require-hashes" in call or "--no-index" in call) for call in calls)
    assert all("--no-build-isolation" in call for call in calls if call.startswith("pip wheel"))


def test_its_base_can_be_given_by_digest() -> None:
    bases = [rest.split()[0] for word, rest in INSTRUCTIONS if word == "FROM"]
    (argument,) = [rest.partition("=")[0] for word, rest in INSTRUCTIONS if word == "ARG"]
    assert set(bases) == {f"${{{argument}}}"}
    assert INSTRUCTIONS[0][0] == "ARG", "what stands before the first FROM holds for all"


def test_it_starts_a_command_that_there_is() -> None:
    (program,) = json.loads(_last("ENTRYPOINT"))
    assert program in PROJECT["project"]["scripts"]
    name, *arguments = json.loads(_last("CMD"))
    context = click.Context(overlay)
    command = overlay.get_command(context, name)
    assert command is not None
    assert arguments == ["--config", "/etc/overlay"]
    assert "--config" in [option for parameter in command.params for option in parameter.opts]
    assert all(mount.target.startswith(arguments[1]) for mount in list_mounts(OVERLAY) if mount.is_bind)


def test_health_is_asked_where_the_service_answers() -> None:
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", _last("HEALTHCHECK"))
    assert found is not None
    assert [container for _, _, container in list_ports(OVERLAY)] == [int(found[1])] == [int(_last("EXPOSE"))]
    app = make_app(Metrics(), NoReports())
    assert found[2] in [route.resource.canonical for route in app.router.routes() if route.resource]
    listen = read_yaml(ROOT / "examples/compose/overlay.yaml")["http"]["listen"]
    assert listen.endswith(f":{found[1]}")


def test_compiled_kernels_are_kept_on_a_volume() -> None:
    cache = re.search(r"NUMBA_CACHE_DIR=(\S+)", _last("ENV"))
    assert cache is not None
    assert cache[1] == _last("VOLUME")
    assert cache[1] in [mount.target for mount in list_mounts(OVERLAY) if not mount.is_bind]


def test_it_does_not_run_as_root() -> None:
    assert _last("USER") == "overlay"
