"""`python -m overlay.local.jar_sums`: write jars.sha256 from what Ivy fetches now, after a change of ivy.xml."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from .jars import CONFS, SUMS_FILE, run_ivy, sum_jar


def write_sums() -> int:
    """Fetch the jars of all confs of ivy.xml into a temporary folder and write their checksums to jars.sha256. Return
    how many jars there are. Raises BrokerError if one cannot be fetched.
    """
    with tempfile.TemporaryDirectory(prefix="jars-") as temporary:
        for conf in CONFS:
            run_ivy(conf, Path(temporary, conf), Path(temporary))
        sums = {jar.name: sum_jar(jar) for jar in Path(temporary).glob("*/*.jar")}
    SUMS_FILE.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())), encoding="ascii")
    return len(sums)


if __name__ == "__main__":
    click.echo(
        f"{SUMS_FILE.name} has the checksums of {write_sums()} jars. Look at what has changed before you commit it"
    )
