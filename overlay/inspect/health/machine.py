"""Judgement of this machine: the cache of compiled kernels, and Java. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .diagnosis import Check, Diagnosis, Severity, split_advice

_FOLDER = "let the service write there, or name another folder with NUMBA_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Where compiled kernels are kept. `failure`: why they cannot be kept anywhere, "" if they can."""

    folder: str = ""
    is_writable: bool = False
    is_filled: bool = False
    """Whether it has the kernels that the service needs, of this version."""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class JavaFacts:
    """A Java runtime. `failure`: why there is none, "" if there is one."""

    release: int = 0
    program: str = ""
    failure: str = ""


def judge_kernels(kernels: KernelFacts) -> Diagnosis:
    """Return the diagnosis of the cache of compiled kernels: OK, a note if it lacks some of this version, a warning
    if no kernel can be added to it, an error if every start has to compile all of them, or if there is no place for it,
    so that the service does not start.
    """
    if kernels.failure:
        return Diagnosis(Severity.ERROR, Check.KERNELS, "", *split_advice(kernels.failure))
    about = kernels.folder
    if not kernels.is_writable and not kernels.is_filled:
        text = "it has no kernels of this version, and this user may not write there: every start compiles them"
        return Diagnosis(Severity.ERROR, Check.KERNELS, about, text, _FOLDER)
    if not kernels.is_writable:
        text = "this user may not write there: what is not compiled yet is compiled at every start"
        return Diagnosis(Severity.WARNING, Check.KERNELS, about, text, _FOLDER)
    if not kernels.is_filled:
        text = "the service's kernels are not compiled yet: the next start compiles them, which takes up to two minutes"
        return Diagnosis(Severity.NOTE, Check.KERNELS, about, text)
    return Diagnosis(Severity.OK, Check.KERNELS, about, "the service's kernels are compiled, and are kept there")


def judge_listen(address: str, stranger: str | None, other: str, doubt: str = "") -> Diagnosis:
    """Return the diagnosis of http.listen: OK if a service can listen there or the one of this folder does, an error if
    another program does, a warning if that is not known. `address`: host and port. `stranger`: who listens there, as a
    sentence; "" if the service of this folder does, None if no program does. `other`: an address that is free, "" if none
    is known. `doubt`: why what listens there could not be asked, "" if it could.
    """
    if doubt:
        text = f"something listens there that cannot be asked who it is: {doubt}"
        return Diagnosis(Severity.WARNING, Check.HTTP, address, text, "if it is the service of this folder, mend that")
    if not stranger:
        text = "no other program listens there" if stranger is None else "the service of this folder listens there"
        return Diagnosis(Severity.OK, Check.HTTP, address, text)
    todo = "change http.listen in overlay.yaml" + (f", such as to {other}" if other else "")
    return Diagnosis(Severity.ERROR, Check.HTTP, address, f"the service cannot listen there: {stranger}", todo)


def judge_java(java: JavaFacts, jobs: int) -> Diagnosis:
    """Return the diagnosis of Java: OK if there is one; else a warning if `jobs` is above 0, and a note if not.
    `jobs`: how many consumers of the folder have `engine: spark`.
    """
    if not java.failure:
        return Diagnosis(Severity.OK, Check.JAVA, java.program, f"Java {java.release}")
    who = "the service needs none"
    if not jobs:
        return Diagnosis(Severity.NOTE, Check.JAVA, "", f"{java.failure.partition('. ')[0]}; {who}")
    text = f"{java.failure.partition('. ')[0]}; {jobs} consumer{' has' if jobs == 1 else 's have'} engine: spark"
    todo = "install Java 17 or later where the Spark jobs are started"
    return Diagnosis(Severity.WARNING, Check.JAVA, "", text, todo)
