"""A worker of an earlier version beside one of this version, in one group: each takes over what the other has written, and
nothing is lost or delivered twice.

The earlier version is a commit of the repository's own history, BACK first parents ago; OVERLAY_VERSION_BEFORE names another.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from overlay.local.guard import Guard
from tests.chaos.test_kill import RULE, Traffic, await_all
from tests.support.kafka import NewTopicFixture
from tests.support.service import RunningService, StartService, find_free_port
from tests.support.source import REPOSITORY
from tests.support.waiting import wait_until
from tests.worker.scenes import Scene, check_output, expect, read_committed

BACK = 60
SHARDS = 4
START_S = 400.0
"""The earlier version compiles its kernels at its first start."""
DEADLINE_S = 120.0
NAMES = [f"c{number}" for number in range(12)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


def run_git(*words: str) -> bytes | None:
    """Return what git says of this repository, None if it is no repository or does not know that."""
    try:
        return subprocess.run(["git", "-C", str(REPOSITORY), *words], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the earlier version."""
    listed = run_git("rev-list", "--first-parent", "--max-count=1", f"--skip={BACK}", "HEAD")
    commit = os.environ.get("OVERLAY_VERSION_BEFORE", (listed or b"").decode().strip())
    archive = run_git("archive", commit, "overlay") if commit else None
    if archive is None:
        pytest.skip("the history of the repository is not here: the version before is not known")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


@pytest.fixture
def topic(scene: Scene, new_topic: NewTopicFixture) -> str:
    """The source topic, with all consumers in the folder."""
    topic = new_topic()
    with (scene.folder / "overlay.yaml").open("a", encoding="utf-8") as file:
        file.write(f"shards: {SHARDS}\n")
    scene.add_stream("ONE", topic, **RULE)
    for name in NAMES:
        scene.add_consumer("ONE", name)
    return topic


@pytest.fixture
def earlier(scene: Scene, topic: str, before: Path, tmp_path: Path) -> Iterator[RunningService]:
    """A worker of the earlier version, which serves the folder of the scene at a port of its own. `topic`: has to be in it."""
    folder = shutil.copytree(scene.folder, tmp_path / "earlier")
    port = find_free_port()
    lines = (folder / "overlay.yaml").read_text(encoding="utf-8").splitlines()
    others = [line for line in lines if not line.startswith("http:")]
    (folder / "overlay.yaml").write_text("\n".join([*others, f"http: {{listen: '127.0.0.1:{port}'}}", ""]), "utf-8")
    log = tmp_path / "earlier.log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "overlay", "run", "--config", str(folder)]
        # the package of the folder comes before the one that is installed
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=before,
            env={**os.environ, "PYTHONPATH": str(before)},
        )  # fmt: skip
    service = RunningService(log, process, Guard(["kill", "-9", str(process.pid)]), f"http://127.0.0.1:{port}")
    wait_until(service.is_ready, START_S, f"the earlier version is ready ({log})")
    yield service
    if service.process.poll() is None:
        service.kill()


def count_delivered(service: RunningService) -> dict[str, int]:
    """By consumer, what this worker has delivered; those of the shards of others are left out."""
    found: list[dict[str, Any]] = service.get_json("/consumers")
    return {each["name"]: each["delivered"] for each in found if each["delivered"]}


def await_work(service: RunningService, names: int) -> None:
    """Wait until this worker delivers for so many consumers more than it has."""
    known = count_delivered(service)

    def has_more() -> bool:
        return sum(count > known.get(name, 0) for name, count in count_delivered(service).items()) >= names

    wait_until(has_more, DEADLINE_S, f"{service.url} delivers for {names} consumers")


def test_each_version_takes_over_from_the_other(
    scene: Scene, topic: str, earlier: RunningService, running_service: StartService
) -> None:
    traffic = Traffic(scene.bootstrap, (topic,), random.Random(1), rate=500)
    try:
        await_work(earlier, len(NAMES))
        later = running_service(scene.folder)
        for service in (earlier, later):
            await_work(service, 1)
        later.kill()
        await_work(earlier, len(NAMES))  # what this version has written is read by the one before
        later = running_service(scene.folder)
        for service in (earlier, later):
            await_work(service, 1)
        earlier.kill()
        await_work(later, len(NAMES))
    finally:
        traffic.finish()
    wanted = expect(read_committed(scene.bootstrap, topic), (), prefix="")
    for name in NAMES:
        output = f"{scene.prefix}-{name}"
        check_output(await_all(scene.bootstrap, output, len(wanted)), wanted, stream="ONE", consumer=name, prefix="")
    assert later.stop() == 0, later.read_log()
