"""How the service reaches a schema registry: the `values.registry` of a stream's file."""

from __future__ import annotations

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from overlay.credentials import find_reference_fault, is_reference

from .model import Model

PRINTABLE = re.compile(r"[!-~]+", re.ASCII)


def check_url(url: str) -> str:
    """Return `url` if it can be the address of a schema registry. Raises ValueError otherwise, with a message that has
    no secret of the URL in it.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        # without the URL: it may have a password
        raise ValueError(f"the URL of the schema registry cannot be read: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no URL of a schema registry, such as http://localhost:8081")
    if parts.username is not None or parts.password is not None:
        # not repeated in the message: it has a password
        raise ValueError("the URL has a user in it, which others can see. Give basic.auth.user.info as env:NAME")
    if not PRINTABLE.fullmatch(url):
        raise ValueError(f"{url!r} has characters that no URL has. Write them as %XX, in a host name as xn--")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has more than the address of a schema registry. Leave out what follows the path")
    return url


def _check_reference(value: str) -> str:
    if fault := find_reference_fault(value):
        raise ValueError(fault)
    if not is_reference(value):
        raise ValueError("is a secret. Write env:NAME or file:PATH")
    return value


Reference = Annotated[str, AfterValidator(_check_reference)]
"""A secret, by the environment variable or file that has it."""


class RegistryConfig(Model):
    """A schema registry. The names of settings are those of Confluent's clients."""

    url: Annotated[str, AfterValidator(check_url)]
    """Address of the schema registry, such as http://localhost:8081."""
    # excluded from what is written: neither a digest of credentials nor paths of this machine say what values mean
    basic_auth_user_info: Annotated[Reference | None, Field(alias="basic.auth.user.info", repr=False, exclude=True)] = (
        None
    )
    """USER:PASSWORD; write env:NAME or file:PATH."""
    bearer_auth_token: Annotated[Reference | None, Field(alias="bearer.auth.token", repr=False, exclude=True)] = None
    """A token in place of user and password; write env:NAME or file:PATH."""
    ssl_ca_location: Annotated[str | None, Field(alias="ssl.ca.location", exclude=True)] = None
    """File with the CA certificates to trust (PEM); the system's when left out."""
    ssl_certificate_location: Annotated[str | None, Field(alias="ssl.certificate.location", exclude=True)] = None
    """File with the client's certificate chain (PEM)."""
    ssl_key_location: Annotated[str | None, Field(alias="ssl.key.location", exclude=True)] = None
    """File with the client's private key (PEM)."""

    @model_validator(mode="after")
    def _check_credentials(self) -> Self:
        if self.basic_auth_user_info and self.bearer_auth_token:
            raise ValueError("basic.auth.user.info and bearer.auth.token exclude each other. Keep one of them")
        if self.ssl_key_location and not self.ssl_certificate_location:
            raise ValueError("ssl.key.location needs ssl.certificate.location too. Add it")
        return self

    @property
    def settings(self) -> dict[str, str]:
        """The settings by the names of Confluent's clients, without the URL. Secrets are references, which
        `overlay.credentials.resolve` reads.
        """
        given = {
            "basic.auth.user.info": self.basic_auth_user_info,
            "bearer.auth.token": self.bearer_auth_token,
            "ssl.ca.location": self.ssl_ca_location,
            "ssl.certificate.location": self.ssl_certificate_location,
            "ssl.key.location": self.ssl_key_location,
        }
        return {name: value for name, value in given.items() if value is not None}
