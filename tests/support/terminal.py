"""A terminal for the code blocks of documents: a scratch folder with a Kafka, and a shell whose variables last."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from overlay.config import load_service
from overlay.local import start
from overlay.local.guard import Guard
from tests.support.kafka import PATIENT
from tests.support.pages import Block, How, is_shown
from tests.support.service import READY_S, STOP_S, RunningService, find_free_port
from tests.support.waiting import wait_until

BLOCK_S = 240
"""Longest time of one block. The longest one starts a Spark session."""
INIT_LISTEN = "127.0.0.1:8222"
"""The address that `overlay init` writes. Another service of this machine may have it."""
CONFIG = "overlay-config"
"""The folder that `overlay init` writes, for which pages say DIR."""
FORGOTTEN = ("OVERLAY_CONFIG", "OVERLAY_HOME", "BOOTSTRAP", "OPENBLAS_NUM_THREADS")


@dataclass(slots=True)
class Terminal:
    """A shell in `folder`, and what it started in other terminals.

    `beside`: services of blocks that run beside the others. `ran`: blocks that have ended.
    """

    folder: Path
    state: Path
    """Variables and folder of the shell after the last block."""
    environment: dict[str, str]
    beside: list[RunningService] = field(default_factory=list)
    ran: list[Block] = field(default_factory=list)

    def run(self, block: Block) -> None:
        """Run a block as its marker says. AssertionError if it fails or prints something else than the page shows."""
        if block.how is How.NEVER:
            return
        if block.how is How.BESIDE:
            self.beside.append(self._start(block))
        else:
            printed = self._run(block)
            assert block.output is None or is_shown(block.output, printed), (
                f"{block} shows another output than\n{printed}"
            )
            self._move_port()
        self.ran.append(block)

    def stop(self) -> None:
        """End what runs in other terminals, as Ctrl-C does. AssertionError if a service then ends with another code than 0."""
        while self.beside:
            service = self.beside.pop()
            service.process.send_signal(signal.SIGINT)
            try:
                assert service.process.wait(STOP_S) == 0, service.read_log()
            finally:
                service.kill()

    def _run(self, block: Block) -> str:
        """Run a block to its end and return what it printed on stdout."""
        out, error = self.state.with_suffix(".out"), self.state.with_suffix(".err")
        text = re.sub(r"\bDIR\b", CONFIG, block.text.replace("HOST:PORT", "$BOOTSTRAP"))
        if block.language == "python":
            text = f"python - <<'END_OF_BLOCK'\n{text}END_OF_BLOCK\n"
        # files and no pipes: a program that goes on in the background keeps its end of a pipe open
        with out.open("w") as stdout, error.open("w") as stderr:
            process = subprocess.Popen(
                ["bash", "-c", f"set -eo pipefail\n{self._remember()}{text}{self._keep()}"],
                cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                start_new_session=True,
            )  # fmt: skip
            code = await_end(process)
        printed = out.read_text()
        assert code == 0, f"{block} ended with {code}\n{block.text}\n{printed}\n{error.read_text()}"
        return printed

    def _start(self, block: Block) -> RunningService:
        """Start the service of a block and wait until it is ready."""
        log = self.state.with_suffix(".service")
        with log.open("ab") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"{self._remember()}exec {block.text}"],
                cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        host, port = load_service(self.folder / CONFIG / "overlay.yaml", {}).http.address
        service = RunningService(log, process, Guard(["kill", "-9", str(process.pid)]), f"http://{host}:{port}")
        try:
            wait_until(service.is_ready, READY_S, f"{block} is ready")
        except BaseException:
            service.kill()
            raise
        return service

    def _remember(self) -> str:
        return f". {self.state}\n" if self.state.exists() else ""

    def _keep(self) -> str:
        return f'export -p > {self.state}\nprintf "cd %q\\n" "$PWD" >> {self.state}\n'

    def _move_port(self) -> None:
        """Give the service a free port once `overlay init` has written its file."""
        file = self.folder / CONFIG / "overlay.yaml"
        if file.exists() and INIT_LISTEN in (text := file.read_text()):
            file.write_text(text.replace(INIT_LISTEN, f"127.0.0.1:{find_free_port()}"))


def await_end(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a block's shell; None after BLOCK_S, when the shell and what it started are killed."""
    try:
        return process.wait(BLOCK_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def open_terminal(place: Path) -> Iterator[Terminal]:
    """Yield a terminal whose `overlay local` finds a running Kafka, and end all that was started.

    Kafka is started here, since one that `overlay local up` starts outlives a test process that crashes.
    """
    folder = place / "orders"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in FORGOTTEN}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["OVERLAY_HOME"] = str(place / "home")
    with start(place / "home" / "local", ephemeral=True, properties=PATIENT):
        terminal = Terminal(folder, place / "shell", environment)
        try:
            yield terminal
        finally:
            for service in terminal.beside:
                service.kill()
