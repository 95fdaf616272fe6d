"""`overlay doctor`: a look at everything that the service depends on, and what to do about it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.errors import BrokerError, CredentialsRefused, OverlayError, SourceUnavailable

from .folder import look_options, print_json

if TYPE_CHECKING:
    from overlay.config import Loaded
    from overlay.fleet.read import Look
    from overlay.inspect.health.brokers import Wants
    from overlay.inspect.health.diagnosis import Diagnosis
    from overlay.inspect.health.machine import JavaFacts, KernelFacts
    from overlay.kafka.broker_facts import BrokerFacts


@click.command()
@look_options
def doctor(folder: Path, as_json: bool) -> None:
    """Look at everything that the service depends on, and say what is wrong and what to do.

    Files, Kafka's version and settings, rights, retention, clocks, workers, the HTTP address, compiled kernels and Java.
    Nothing is written or created. Exit code 1 if there is an error; warnings and notes leave it at 0.
    """
    import logging

    from overlay.config import load
    from overlay.inspect.health.diagnosis import Severity, count, sort
    from overlay.logs import set_up_logs

    set_up_logs(level=logging.WARNING, late=True)
    loaded = load(folder)
    found = sort([*examine_files(loaded), *examine_kafka(loaded), *examine_machine(loaded)])
    if as_json:
        from overlay.view.doctor import describe_diagnoses

        print_json(describe_diagnoses(found))
    else:
        from overlay.view.console import make_console
        from overlay.view.doctor import print_diagnoses

        print_diagnoses(make_console(), found)
    sys.exit(1 if count(found, Severity.ERROR) else 0)


def examine_files(loaded: Loaded) -> Iterator[Diagnosis]:
    """Yield the problems of the config folder, or one diagnosis that says what was read."""
    from overlay.inspect.health.diagnosis import Check, Diagnosis, Severity, split_advice

    from .validate import summarise

    for problem in loaded.problems:
        text, todo = split_advice(problem.message)
        where = f"{problem.place}: {problem.field}" if problem.field else str(problem.place)
        yield Diagnosis(Severity.ERROR, Check.CONFIG, where, text, todo)
    if not loaded.problems:
        yield Diagnosis(Severity.OK, Check.CONFIG, "", summarise(loaded, ()))


def examine_kafka(loaded: Loaded) -> Iterator[Diagnosis]:
    """Yield what is to be said of Kafka: brokers, topics, rights, workers and clocks. One error says if it cannot be asked."""
    from overlay.inspect.health.brokers import USUAL_MESSAGE_BYTES, judge_brokers
    from overlay.inspect.health.diagnosis import Check, Diagnosis, Severity, split_advice
    from overlay.inspect.health.topics import judge_needs, judge_retention, judge_sizes
    from overlay.inspect.verdict import judge_all

    from .kafka_check import ask_about_needs

    try:
        needs, answers = ask_about_needs(loaded)
        brokers, fleet = asyncio.run(_ask(loaded))
    except CredentialsRefused as error:
        text, todo = split_advice(str(error))
        yield Diagnosis(
            Severity.ERROR, Check.KAFKA, "", text, todo or "correct user, password and mechanism in overlay.yaml"
        )
        return
    except SourceUnavailable as error:
        todo = "see whether Kafka runs, and whether bootstrap.servers and security.protocol in overlay.yaml fit its listener"
        yield Diagnosis(Severity.ERROR, Check.KAFKA, "", str(error), todo)
        return
    yield from judge_brokers(brokers, _find_wants(loaded))
    yield from judge_needs(judge_all(needs, answers, loaded.service))
    yield from judge_retention(loaded, needs, answers)
    sizes = [int(b.settings["message.max.bytes"]) for b in brokers if b.settings and "message.max.bytes" in b.settings]
    yield from judge_sizes(loaded, answers, min(sizes, default=USUAL_MESSAGE_BYTES))
    yield from _examine_workers(fleet)


def _find_wants(loaded: Loaded) -> Wants:
    from overlay.inspect.health.brokers import Wants
    from overlay.output.transaction import TRANSACTION_TIMEOUT_MS
    from overlay.worker.membership import SESSION_MS

    return Wants(SESSION_MS, TRANSACTION_TIMEOUT_MS, loaded.service.topics.replication)


async def _ask(loaded: Loaded) -> tuple[list[BrokerFacts], tuple[Look, int | None] | OverlayError]:
    """Return what the brokers say of themselves, and what workers have published with the clocks' difference in ms, or why
    that cannot be read. Raises CredentialsRefused, SourceUnavailable.
    """
    from overlay.fleet.read import FleetReader
    from overlay.kafka.admin import connect

    async with connect(loaded.service.kafka) as (admin, client):
        brokers = await admin.describe_brokers()
        reader = FleetReader(admin, client, loaded)
        try:
            return brokers, (await reader.look(), await reader.measure_clock())
        except OverlayError as error:  # no such topic yet, or it may not be read
            return brokers, error


def _examine_workers(fleet: tuple[Look, int | None] | OverlayError) -> Iterator[Diagnosis]:
    from overlay import __version__
    from overlay.inspect.health.diagnosis import Check, Diagnosis, Severity, split_advice
    from overlay.inspect.health.workers import judge_clock, judge_workers

    if isinstance(fleet, OverlayError):
        yield Diagnosis(Severity.NOTE, Check.WORKERS, "", *split_advice(str(fleet)))
        yield judge_clock(None)
        return
    found, ahead_ms = fleet
    yield from judge_workers(found.picture, found.findings, __version__)
    yield judge_clock(ahead_ms)


def examine_machine(loaded: Loaded) -> Iterator[Diagnosis]:
    """Yield what is to be said of this machine: the address of the service, compiled kernels and Java."""
    from overlay.config.consumer import Engine
    from overlay.inspect.health.machine import judge_java, judge_kernels

    yield examine_listen(loaded)
    yield judge_kernels(find_kernels())
    jobs = sum(config.engine is Engine.SPARK for config in loaded.consumers.values())
    yield judge_java(find_java(), jobs)


def examine_listen(loaded: Loaded) -> Diagnosis:
    """Return what is to be said of http.listen: whether another program than the service of this folder listens there."""
    from overlay import ports
    from overlay.config.identity import identify
    from overlay.inspect.health.diagnosis import split_advice
    from overlay.inspect.health.machine import judge_listen
    from overlay.view.look import explain_stranger
    from overlay.view.running import NoService, ask_service

    http = loaded.service.http
    host, port = http.address
    address = ports.write_address(host, port)
    if not ports.is_taken(host, port):
        return judge_listen(address, None, "")
    try:
        service = asyncio.run(ask_service(http)).service
        stranger = "" if service is None else split_advice(explain_stranger(service, identify(loaded), ""))[0]
    except NoService as error:
        if isinstance(error.__cause__, OSError):  # no answer in time, or another certificate
            return judge_listen(address, None, "", doubt=str(error))
        stranger = "another program does"
    except OverlayError as error:  # such as a token that is refused: a service answers
        return judge_listen(address, None, "", doubt=str(error))
    near = ports.find_near(host, port) if stranger else None
    return judge_listen(address, stranger, "" if near is None else ports.write_address(host, near))


def find_kernels() -> KernelFacts:
    """Return where this installation keeps compiled kernels, or in `failure` why it has no place for them."""
    from overlay.inspect.health.machine import KernelFacts

    from . import run

    try:
        found = run.find_kernels()
    except OverlayError as error:
        return KernelFacts(failure=str(error))
    return KernelFacts(str(found.path), found.is_writable, found.is_filled)


def find_java() -> JavaFacts:
    """Return the Java that this machine has for the broker and Spark, or in `failure` why there is none."""
    from overlay.inspect.health.machine import JavaFacts
    from overlay.local import java

    try:
        found = java.find_java()
    except BrokerError as error:
        return JavaFacts(failure=str(error))
    return JavaFacts(found.release, str(found.program))
