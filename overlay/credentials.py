"""Secrets among the settings, and where they are read from.

The value of a secret may be a reference: `env:NAME` for an environment variable, `file:PATH` for the content of a
file. Settings keep the reference, and `resolve` reads the value for each client that is made. So settings can be shown,
and a file that was replaced is read again. A KeptSecret does so for a server, which has no clients to make.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from overlay.errors import SourceUnavailable
from overlay.logs import get_logger

log = get_logger(__name__)

SECRETS = (
    "sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret", "basic.auth.user.info", "bearer.auth.token",
)  # fmt: skip
"""Settings that are never shown; the last two are a schema registry's."""
TOKENS = ("http.token", "http.admin_token")
"""Settings with what requests to the HTTP pages have to bring."""
REFERABLE = (*SECRETS, *TOKENS, "sasl.username", "sasl.oauthbearer.client.id")
"""Settings whose values may be references."""
CERTIFICATES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
"""Settings that name files with certificates and keys."""
ENVIRONMENT, FILE = "env:", "file:"
MAX_BYTES = 1 << 16
"""Most bytes of a file with a secret, so that a wrong path is not read for ever."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size in bytes and modification time in ns of each file; equal if no file was replaced."""


class Secret(str):
    """A text that `repr` does not show. So what shows settings by `repr` does not tell it; `str`
    and JSON do.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class KeptSecret:
    """A secret of the settings that is read again when its file was replaced. `name`: of the setting. `value`: a reference, or
    the secret itself. `check`: raises ValueError, with a text that does not repeat it, if a text may not be the secret.
    """

    def __init__(self, name: str, value: str, check: Callable[[str], object]) -> None:
        """Read the secret. Raises SourceUnavailable if that is not possible, or if `check` refuses it."""
        self._name, self._settings, self._check = name, {name: value}, check
        self._seen = stamp(self._settings)
        self._failed: Stamp | None = None
        """What a replaced file was like whose failure is logged; None after a success."""
        self._secret = self._read()

    def get(self) -> str:
        """Return the secret as its file has it now. While the file cannot be read, or does not hold such a secret, that is the
        former one, the first failure is logged, and each call tries again.
        """
        if (found := stamp(self._settings)) != self._seen:
            try:
                self._secret = self._read()
            except SourceUnavailable as error:
                if found != self._failed:
                    log.warning("a secret stays the former one", setting=self._name, reason=str(error))
                self._failed = found
            else:
                self._seen, self._failed = found, None
                log.info("a secret was replaced", setting=self._name)
        return self._secret

    def _read(self) -> str:
        secret = resolve(self._settings)[self._name]
        try:
            self._check(secret)
        except ValueError as error:
            raise SourceUnavailable(f"{self._name}: {error}") from None
        return secret


def find_reference_fault(value: str) -> str:
    """Return why a value begins like a reference and is none; empty if it is one, or a plain value. The text
    does not repeat the value."""
    if value.startswith(ENVIRONMENT) and not _VARIABLE.fullmatch(value.removeprefix(ENVIRONMENT)):
        return "env: names no environment variable. Write env:NAME, with letters, digits and _"
    if value.startswith(FILE) and not value.removeprefix(FILE).strip():
        return "file: names no file. Write file:PATH"
    return ""


def is_reference(value: str) -> bool:
    """Return whether a value begins like a reference, with `env:` or `file:`, and so is not the secret
    itself. A Secret never is a reference.
    """
    return not isinstance(value, Secret) and value.startswith((ENVIRONMENT, FILE))


def hide(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings in which the secrets are of type Secret. References, which tell no secret, stay texts."""
    return {
        name: Secret(value) if name in SECRETS and not is_reference(value) else value
        for name, value in settings.items()
    }


def resolve(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings with the values that references stand for; only settings in REFERABLE can have references. These
    values are of type Secret, which is no reference, whatever it begins with: settings may be resolved twice.

    Line ends at the end of a file are left out. Raises SourceUnavailable if a variable is not set
    or empty, or if a file cannot be read or holds no secret: it is empty, has more than MAX_BYTES
    bytes, is not UTF-8, or has a character of code 0. It may be being replaced.
    """
    return {name: _read(name, value) for name, value in settings.items()}


def stamp(settings: Mapping[str, str]) -> Stamp:
    """Return what changes when a file of `settings` is replaced; empty if they name no file. A file
    that cannot be looked at, such as a missing one, counts as zeros.
    """
    found = []
    for path in list_files(settings):
        try:
            facts = os.stat(path)
        except (OSError, ValueError):  # ValueError: the path has a character of code 0
            found.append((0, 0, 0))
        else:
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return tuple(found)


def list_files(settings: Mapping[str, str]) -> list[str]:
    """Return the paths of the files with certificates, keys and secrets that the settings name."""
    certificates = [settings[name] for name in CERTIFICATES if name in settings]
    values = (settings[name] for name in REFERABLE if name in settings)
    return certificates + [
        value.removeprefix(FILE) for value in values if is_reference(value) and value.startswith(FILE)
    ]


def _read(name: str, value: str) -> str:
    if name not in REFERABLE or not is_reference(value):
        return value
    if value.startswith(ENVIRONMENT):
        variable = value.removeprefix(ENVIRONMENT)
        if not os.environ.get(variable):
            raise SourceUnavailable(f"{name}: the environment variable {variable} is not set. Set it")
        return Secret(os.environ[variable])
    path = Path(value.removeprefix(FILE))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError) as error:
        # the text of a decoding error has bytes of the secret
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SourceUnavailable(
            f"{name}: {path} cannot be read: {reason}. Check the path and its permissions"
        ) from None
    text = text.rstrip("\r\n")
    if len(content) > MAX_BYTES or not text or "\0" in text:
        what = "has a character of code 0" if text else "is empty"
        what = f"has more than {MAX_BYTES} bytes" if len(content) > MAX_BYTES else what
        raise SourceUnavailable(f"{name}: {path} {what}. Write the secret alone into it")
    return Secret(text)
