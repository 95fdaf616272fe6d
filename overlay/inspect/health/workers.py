"""Judgement of the workers by the statuses that they publish, and of this machine's clock. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlay.fleet.findings import CLOCK_MS, Finding, Kind, Picture

from .diagnosis import Check, Diagnosis, Severity, split_advice

_BROKEN = (Kind.SAME_NAME, Kind.SHARD_WITHOUT_OWNER, Kind.SHARD_NOT_READY, Kind.CONSUMERS_NOT_SERVED)
"""Findings that leave consumers without deliveries."""
_ABOUT_SHARDS = (
    *(Kind.SHARD_WITHOUT_OWNER, Kind.SHARD_WITH_TWO_OWNERS, Kind.SHARD_NOT_READY),
    Kind.CONSUMERS_NOT_SERVED,
)


def judge_workers(picture: Picture, findings: Sequence[Finding], version: str) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each of the findings, a note if workers are of another version than this command, whose
    version is `version`, and an OK if workers are heard and there is no finding.
    """
    for finding in findings:
        check = Check.CLOCK if finding.kind is Kind.CLOCK_DIFFERS else Check.WORKERS
        severity = Severity.ERROR if finding.kind in _BROKEN else Severity.WARNING
        side = "shard" if finding.kind in _ABOUT_SHARDS else "worker"
        yield Diagnosis(
            severity, check, f"{side} {finding.about}" if finding.about else "", *split_advice(finding.text)
        )
    others = sorted({row.version for row in picture.live.values()} - {version})
    if others:
        text = f"this command is version {version}, workers are {', '.join(others)}"
        yield Diagnosis(Severity.NOTE, Check.WORKERS, "", text, "use the commands of the workers' version")
    if picture.live and not findings:
        count, shards = len(picture.live), len(picture.owners)
        text = f"{count} worker{'' if count == 1 else 's'}, {shards} shard{'' if shards == 1 else 's'}, all served"
        yield Diagnosis(Severity.OK, Check.WORKERS, "", text)


def judge_clock(ahead_ms: int | None) -> Diagnosis:
    """Return the diagnosis of this machine's clock: OK, a warning if it is more than CLOCK_MS ahead or behind, a note
    if that is not known. `ahead_ms`: by how much it is ahead of the brokers' clock; None if no worker published a
    status by which it could be compared.
    """
    if ahead_ms is None:
        text = "this machine's clock was not compared with Kafka's: no worker published a status meanwhile"
        return Diagnosis(Severity.NOTE, Check.CLOCK, "", text, "look again while a worker runs")
    if abs(ahead_ms) > CLOCK_MS:
        side = "ahead of" if ahead_ms > 0 else "behind"
        text = f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {side} Kafka's"
        return Diagnosis(Severity.WARNING, Check.CLOCK, "", text, "set the clock of this machine, or of the brokers")
    return Diagnosis(Severity.OK, Check.CLOCK, "", f"this machine's clock is within {CLOCK_MS // 1000} s of Kafka's")
