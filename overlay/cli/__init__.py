"""The `overlay` command. A table names its subcommands, which are imported when they run.

`overlay --help` must answer at once, and a command that only prints a schema must not wait for
numba, pyarrow or a Kafka client. So this module has the one-line help of every command. The
command's own module is imported only when it is called or asked for its help.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass

import click

from overlay import __version__
from overlay.errors import OverlayError
from overlay.kernel_progress import progress

from .collection import spare_collections
from .groups import SuggestingGroup


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: its location (`module:attribute`), and its line in `overlay --help`."""

    target: str
    help: str


COMMANDS = {
    "demo": CommandEntry(
        "overlay.cli.demo:demo", "Filter real flight records out of a real Kafka topic, and check the result."
    ),
    "local": CommandEntry("overlay.cli.local:local", "Start, stop and look at an embedded Kafka broker."),
    "init": CommandEntry("overlay.cli.init:init", "Look at a topic and write a stream and a consumer file for it."),
    "validate": CommandEntry(
        "overlay.cli.validate:validate", "Check a config folder, and with --kafka what it needs of Kafka."
    ),
    "doctor": CommandEntry(
        "overlay.cli.doctor:doctor", "Look at everything that the service depends on, and say what to do."
    ),
    "run": CommandEntry("overlay.cli.run:run", "Run the service of a config folder."),
    "apply": CommandEntry("overlay.cli.apply:apply", "Give a running service the consumers of a folder."),
    "fleet": CommandEntry("overlay.cli.fleet:fleet", "Show all workers of a service at one place."),
    "workers": CommandEntry("overlay.cli.workers:workers", "List the workers of a service."),
    "shards": CommandEntry("overlay.cli.workers:shards", "List the shards of a service, and which worker has each."),
    "drain": CommandEntry("overlay.cli.drain:drain", "Have a worker give its shards to the other workers."),
    "top": CommandEntry("overlay.cli.top:top", "Show workers and consumers, live in the terminal."),
    "read": CommandEntry("overlay.cli.read:read", "Print the records of a stream or a topic that pass a filter."),
    "filter": CommandEntry("overlay.cli.filter:filter_group", "Check a filter expression, or try it on a message."),
    "explain": CommandEntry("overlay.cli.explain:explain", "Say what a filter skips of the log, and why."),
    "index": CommandEntry("overlay.cli.index:index", "Show how far the chunk indexes are, and make one."),
    "stream": CommandEntry("overlay.cli.stream:stream", "List streams and show how they are."),
    "consumer": CommandEntry("overlay.cli.consumer:consumer", "List consumers and show how they are."),
    "registry": CommandEntry(
        "overlay.cli.registry:registry", "Fetch the schemas of Avro values from a schema registry."
    ),
    "schema": CommandEntry("overlay.cli.schema:schema", "Print the JSON Schema of the config files, for editors."),
}


UNFORESEEN = 70
"""Exit code after an error that is none of the overlay's own: EX_SOFTWARE of sysexits.h."""
LASTING = {"demo", "fleet", "index", "local", "run", "top"}
"""Commands that may run for long, or make many objects."""


class LazyGroup(SuggestingGroup):
    """A group whose commands come from COMMANDS. The help lists them in the table's order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.target} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="overlay")
def overlay() -> None:
    """Subjects, filters and per-message acks on the Kafka you already have."""


class _WithoutPandas:
    """A finder that finds no pandas, for `sys.meta_path`. Its base class would take long to import.

    Where pandas is installed, pyarrow imports it to ask of each Python object whether it is one of
    pandas'. No command but the demo makes any, and the import takes longer than reading some
    records.
    """

    def find_spec(self, fullname: str, path: object, target: object = None, /) -> None:
        """Raise ModuleNotFoundError for pandas; leave all other modules to the other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError("the commands of the overlay do without pandas", name=fullname)


def main() -> None:
    """Run the command. An OverlayError is printed on stderr, and the exit code is 1. Any other error is logged with its
    traceback, a line on stderr says what to do, and the exit code is UNFORESEEN."""
    # numpy's linear algebra starts a thread for each core when it is loaded; no command uses it
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pydantic looks for plugins in every installed package when it builds its first validator
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # the demo checks its result with pandas
    if sys.argv[1:2] != ["demo"]:
        sys.meta_path.insert(0, _WithoutPandas())
    if sys.argv[1:2] and sys.argv[1] not in LASTING:
        spare_collections()
    progress.tell = _tell_of_kernels
    try:
        overlay(prog_name="overlay")
    except OverlayError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - of any library, or a bug
        _tell_unforeseen(error)
        sys.exit(UNFORESEEN)


def _tell_of_kernels(done: int, of: int) -> None:
    click.echo(f"compiling kernels, once for this installation: {done} of up to {of} ...", err=True)


def _tell_unforeseen(error: Exception) -> None:
    """Log an error with its traceback, and then print a line that says what to do."""
    from overlay.logs import get_logger

    get_logger(__name__).exception("an error that was not foreseen", of=error)
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup):
        # errors of the overlay's own are told elsewhere, and are mostly what follows from the other one
        cause = min(cause.exceptions, key=lambda each: isinstance(each, OverlayError))
    what = ": ".join(filter(None, (type(cause).__name__, str(cause).partition("\n")[0])))
    todo = "Report it with the traceback, which is logged above; docs/operations.md#unforeseen-errors says how"
    click.echo(f"error: not foreseen: {what}. {todo}", err=True)
