"""The model of overlay.yaml: how to reach Kafka, the overlay's own topics, the HTTP server, the fleet.

Kafka settings have librdkafka's property names, but librdkafka is only one of the clients in use.
Fetches and transactions use aiokafka, and Spark has a client of its own. So the model accepts a
property only if it can be mapped to each of them. Any other property would reach some connections
and silently miss others.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from overlay.credentials import find_reference_fault, hide, is_reference

from .model import Model, check_topic

_HOST = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:\[\],]*):(?P<port>\d{1,5})", re.ASCII)
_HOST_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?", re.ASCII)
_TOKEN = re.compile(r"[!-~]{16,1024}", re.ASCII)
_ENDPOINT = re.compile(r"https?://[^\s/?#]+[^\s#]*", re.ASCII)
_EXTENSION = re.compile(r"(?!auth=)[A-Za-z]+=[!-+\--~][ -+\--~]*", re.ASCII)
_PREFIX = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,39}", re.ASCII)
WORKER_NAME = re.compile(r"[a-zA-Z0-9._:-]{1,100}", re.ASCII)
"""Names of workers."""


def _check_servers(text: str) -> str:
    for server in text.split(","):
        host, port = split_address(server.strip())
        if not host or port == 0:
            raise ValueError(f"{server.strip()!r} is not host:port; write host:port, several with commas between")
        try:
            host.encode("idna")
        except UnicodeError:
            raise ValueError(f"{host!r} is not a host name: between two dots there are 1 to 63 characters") from None
    return text


def split_address(text: str) -> tuple[str, int]:
    """Return the host and the port of a text `host:port`, such as `127.0.0.1:8222` or `[::1]:8222`: the host without
    brackets, "" for `:8222`. Raises ValueError for another text, and for a port above 65535.
    """
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError(f"{text!r} is not host:port, such as 127.0.0.1:8222")
    return found["host"].strip("[]"), int(found["port"])


def _check_listen(text: str) -> str:
    split_address(text)
    return text


def _check_metrics_listen(text: str) -> str:
    return _check_listen(text) if text else text


def _check_host(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise ValueError("a host name has letters, digits, dots and dashes, and no port")
    return text


def _check_token(text: str) -> str:
    return _check_reference(text) if is_reference(text) else check_token(text)


def check_token(text: str) -> str:
    """Return a token for HTTP, or "". Raises ValueError, whose text does not repeat the token, if it may not be one."""
    # 16 characters of base64 are 96 bits; blanks and other scripts are cut or changed on their way through headers
    if text and not _TOKEN.fullmatch(text):
        raise ValueError(
            "a token has at least 16 printable ASCII characters and no blanks: `openssl rand -base64 32` makes one"
        )
    return text


def _check_prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ValueError("a prefix has 1 to 40 of the characters a-z A-Z 0-9 . _ - and does not begin with a dot")
    return text


def _check_worker(text: str) -> str:
    if text and not WORKER_NAME.fullmatch(text):
        raise ValueError("a worker's name has 1 to 100 of the characters a-z A-Z 0-9 . _ : -")
    return text


def _check_reply_topic(name: str) -> str:
    check_topic(name.removesuffix("*") if name.endswith(".*") else name)
    if name.startswith("__"):
        raise ValueError("Kafka's own topics take no answers")
    return name


def _check_reference(value: str) -> str:
    if fault := find_reference_fault(value):
        raise ValueError(fault)
    return value


def _check_endpoint(text: str) -> str:
    if not _ENDPOINT.fullmatch(text):
        raise ValueError("a token endpoint is a URL, such as https://login.example.com/oauth2/token")
    return text


def _check_extensions(text: str) -> str:
    pairs = [pair.strip() for pair in text.split(",")]
    if not all(map(_EXTENSION.fullmatch, pairs)):
        raise ValueError("extensions are NAME=VALUE, several with commas between; names have letters alone")
    return ",".join(pairs)  # librdkafka takes a blank for a part of the name


def _check_mechanism(value: object) -> object:
    """Return a mechanism in upper case, and a value that is no text as it is. Raises ValueError for Kerberos
    (GSSAPI), which would be an unknown word otherwise.
    """
    if (name := _upper(value)) == "GSSAPI":
        raise ValueError(
            "Kerberos needs libraries of the system that neither client is built with: confluent-kafka's packages have no"
            " GSSAPI, and aiokafka needs the package gssapi. Use a SCRAM mechanism, OAUTHBEARER, or a client certificate"
        )
    return name


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Referable = Annotated[str, AfterValidator(_check_reference)]
"""A text, or `env:NAME` or `file:PATH` in its place."""
_OF_OAUTH = ("sasl.oauthbearer.", "https.ca.location")
_OF_PASSWORDS = ("sasl.username", "sasl.password")
_OF_SASL = ("sasl.", "https.ca.location")
"""How the names of properties begin that only some mechanisms use."""
Switch = Annotated[Literal["true", "false"], BeforeValidator(lambda v: str(v).lower() if isinstance(v, bool) else v)]


class KafkaProperties(Model):
    """How to reach Kafka, by librdkafka's property names. All of them reach every client in use."""

    bootstrap_servers: Annotated[str, AfterValidator(_check_servers), Field(alias="bootstrap.servers")]
    """Some brokers as host:port, with commas between."""
    client_id: Annotated[str | None, Field(alias="client.id")] = None
    """Name that the brokers' logs and quotas show."""
    security_protocol: Annotated[Protocol, BeforeValidator(_upper), Field(alias="security.protocol")] = "PLAINTEXT"
    """Encryption and authentication of the connection."""
    ssl_ca_location: Annotated[str | None, Field(alias="ssl.ca.location")] = None
    """File with the CA certificates to trust (PEM); the system's when left out."""
    ssl_certificate_location: Annotated[str | None, Field(alias="ssl.certificate.location")] = None
    """File with the client's certificate chain (PEM)."""
    ssl_key_location: Annotated[str | None, Field(alias="ssl.key.location")] = None
    """File with the client's private key (PEM)."""
    ssl_key_password: Annotated[Referable | None, Field(alias="ssl.key.password", repr=False)] = None
    """Password of the private key; write env:NAME, file:PATH or ${VARIABLE}, and no password here."""
    ssl_endpoint_identification_algorithm: Annotated[
        Literal["https", "none"] | None, Field(alias="ssl.endpoint.identification.algorithm")
    ] = None
    """`none` accepts a certificate for another host name."""
    enable_ssl_certificate_verification: Annotated[
        Switch | None, Field(alias="enable.ssl.certificate.verification")
    ] = None
    """`false` accepts any certificate."""
    sasl_mechanism: Annotated[Mechanism | None, BeforeValidator(_check_mechanism), Field(alias="sasl.mechanism")] = None
    """How the user authenticates."""
    sasl_mechanisms: Annotated[Mechanism | None, BeforeValidator(_check_mechanism), Field(alias="sasl.mechanisms")] = (
        None
    )
    """The same under librdkafka's other name."""
    sasl_username: Annotated[Referable | None, Field(alias="sasl.username")] = None
    """User name."""
    sasl_password: Annotated[Referable | None, Field(alias="sasl.password", repr=False)] = None
    """Password; write env:NAME, file:PATH or ${VARIABLE}, and no password here."""
    sasl_oauthbearer_method: Annotated[Literal["oidc"] | None, Field(alias="sasl.oauthbearer.method")] = None
    """How tokens of OAUTHBEARER are got: from a token endpoint. May be left out."""
    sasl_oauthbearer_token_endpoint_url: Annotated[
        Annotated[str, AfterValidator(_check_endpoint)] | None, Field(alias="sasl.oauthbearer.token.endpoint.url")
    ] = None
    """URL that gives tokens for OAuth's client credentials."""
    sasl_oauthbearer_client_id: Annotated[Referable | None, Field(alias="sasl.oauthbearer.client.id")] = None
    """Name of this client at the token endpoint."""
    sasl_oauthbearer_client_secret: Annotated[
        Referable | None, Field(alias="sasl.oauthbearer.client.secret", repr=False)
    ] = None
    """Its secret; write env:NAME, file:PATH or ${VARIABLE}, and no secret here."""
    sasl_oauthbearer_scope: Annotated[str | None, Field(alias="sasl.oauthbearer.scope")] = None
    """Scope to ask the token endpoint for."""
    sasl_oauthbearer_extensions: Annotated[
        Annotated[str, AfterValidator(_check_extensions)] | None, Field(alias="sasl.oauthbearer.extensions")
    ] = None
    """What the brokers are told beside the token: NAME=VALUE, several with commas between."""
    https_ca_location: Annotated[str | None, Field(alias="https.ca.location")] = None
    """File with the CA certificates to trust at the token endpoint (PEM); the system's when left out."""

    def find_conflict(self) -> tuple[str, str] | None:
        """Return a property and what is wrong with it, for the first that conflicts with another or needs another
        that is missing; None if there is none.
        """
        if conflict := self._find_sasl_conflict():
            return conflict
        # TLS: a certificate and its key belong together, and no ssl.* without TLS
        if self.ssl_certificate_location and not self.ssl_key_location:
            return "ssl.certificate.location", "needs ssl.key.location too. Add it"
        if self.ssl_key_location and not self.ssl_certificate_location:
            return "ssl.key.location", "needs ssl.certificate.location too. Add it"
        return self._find_idle_ssl()

    def _find_sasl_conflict(self) -> tuple[str, str] | None:
        """Return what `find_conflict` does, as far as it is about SASL: the mechanism has one spelling, the credentials
        that it needs and no others, and a protocol that uses them."""
        mechanism = self.sasl_mechanism or self.sasl_mechanisms
        if self.sasl_mechanism and self.sasl_mechanisms:
            return "sasl.mechanisms", "is the same as sasl.mechanism. Keep one of them"
        given = {name for name in self.model_dump(by_alias=True, exclude_none=True) if name.startswith(_OF_SASL)}
        if not self.security_protocol.startswith("SASL"):
            if not given:
                return None
            wanted = "SASL_SSL" if self.security_protocol == "SSL" else "SASL_SSL or SASL_PLAINTEXT"
            return "security.protocol", f"is {self.security_protocol}, which would ignore sasl.*. Set {wanted}"
        is_oauth = mechanism == "OAUTHBEARER"
        for name, value in (("sasl.mechanism", mechanism), *self._list_credentials(is_oauth=is_oauth)):
            if not value:
                return "security.protocol", f"{self.security_protocol} needs {name} too. Add it"
        other = _OF_PASSWORDS if is_oauth else _OF_OAUTH
        for name in sorted(given):
            if name.startswith(other):
                return name, f"has no effect with sasl.mechanism {mechanism}. Leave it out, or change the mechanism"
        return None

    def _list_credentials(self, *, is_oauth: bool) -> list[tuple[str, str | None]]:
        """Return the properties that authentication needs, by name, with their values, None for one that is not set.
        `is_oauth`: whether the mechanism is OAUTHBEARER; any other needs user name and password.
        """
        if not is_oauth:
            return [("sasl.username", self.sasl_username), ("sasl.password", self.sasl_password)]
        return [
            ("sasl.oauthbearer.token.endpoint.url", self.sasl_oauthbearer_token_endpoint_url),
            ("sasl.oauthbearer.client.id", self.sasl_oauthbearer_client_id),
            ("sasl.oauthbearer.client.secret", self.sasl_oauthbearer_client_secret),
        ]

    def _find_idle_ssl(self) -> tuple[str, str] | None:
        if "SSL" not in self.security_protocol:
            for field, info in type(self).model_fields.items():
                if field.startswith(("ssl_", "enable_ssl_")) and getattr(self, field) is not None:
                    return str(
                        info.alias
                    ), f"has no effect with {self.security_protocol}. Set SSL or SASL_SSL, or leave it out"
        return None

    def properties(self) -> dict[str, str]:
        """Return the settings by librdkafka's names; those that are not set are left out, except
        that security.protocol is always there.

        `sasl.mechanisms` becomes `sasl.mechanism`. Secrets are of type Secret, but references to secrets
        (`env:NAME`, `file:PATH`) stay as they are (overlay/credentials.py).
        """
        given = self.model_dump(by_alias=True, exclude_none=True)
        if "sasl.mechanisms" in given:
            given["sasl.mechanism"] = given.pop("sasl.mechanisms")
        return hide({name: str(value) for name, value in given.items()})


ReplyTopic = Annotated[
    str, AfterValidator(_check_reply_topic), Field(json_schema_extra={"pattern": r"^[a-zA-Z0-9._-]{1,249}(\.\*)?$"})
]


class TopicsConfig(Model):
    """The overlay's own topics."""

    prefix: Annotated[str, AfterValidator(_check_prefix), Field(json_schema_extra={"pattern": _PREFIX.pattern})] = (
        "overlay"
    )
    """Their names begin with this and a dot."""
    replication: Annotated[int, Field(ge=1, le=32767)] = 1
    """Replication factor with which the overlay creates topics, output topics included."""
    reply_to: tuple[ReplyTopic, ...] = ()
    """Topics that clients may name for answers, beside `<prefix>.replies` and `<prefix>.replies.*`. `name.*` allows every
    topic whose name begins with `name.`"""
    requests: bool = False
    """Whether requests that change no consumer but a client's ordered ones are also taken from `<prefix>.requests`, for
    clients without the right to write to `<prefix>.control`."""


class RequestsConfig(Model):
    """What consumers that are made by request may take, and how many requests may wait. Files have no such limits."""

    consumers: Annotated[int, Field(ge=0)] = 10_000
    """Most consumers that are made by request."""
    consumers_per_stream: Annotated[int, Field(ge=0)] = 10_000
    """Most of them on one stream."""
    output_partitions: Annotated[int, Field(ge=1)] = 100
    """Most partitions of an output topic that a request may have created."""
    max_waiting: Annotated[int, Field(ge=1)] = 10_000
    """Most `max_waiting` of a pull consumer that is made by request: pull requests that wait for messages."""
    pending: Annotated[int, Field(ge=1)] = 10_000
    """Most requests that wait for their answers at once."""


HostName = Annotated[str, AfterValidator(_check_host), Field(json_schema_extra={"pattern": _HOST_NAME.pattern})]


class HttpConfig(Model):
    """The HTTP server for /metrics, /healthz and /readyz. `hosts`, `token` and `tls_*` hold for the pages of
    `overlay fleet run` as well."""

    listen: Annotated[str, AfterValidator(_check_listen)] = "127.0.0.1:8222"
    """Address to listen on, as host:port; port 0 takes a free one."""
    metrics_listen: Annotated[str, AfterValidator(_check_metrics_listen)] = ""
    """Address for /metrics alone, as host:port. The other address has no /metrics then."""
    hosts: tuple[HostName, ...] = ()
    """Host names by which the pages may be asked, beside addresses, `localhost` and the name in `listen`. Without any, every
    name may be used, unless the pages are at a loopback address."""
    token: Annotated[str, AfterValidator(_check_token), Field(repr=False)] = ""
    """Secret that every request must bring, as `Authorization: Bearer TOKEN` or as a password; write file:PATH, env:NAME or
    ${VARIABLE}, and no token here."""
    admin_token: Annotated[str, AfterValidator(_check_token), Field(repr=False)] = ""
    """Secret with which the page of `overlay fleet run` lets an administrator pause consumers, replay dead letters, reset
    streams and drain workers; without one nothing can be changed there. Write file:PATH, env:NAME or ${VARIABLE}, and no
    token here."""
    tls_certificate: str = ""
    """File with the server's certificate chain (PEM); the pages are served by HTTPS then."""
    tls_key: str = ""
    """File with the certificate's private key (PEM), without a password."""

    @property
    def address(self) -> tuple[str, int]:
        return split_address(self.listen)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port at which /metrics is served alone; None if it is with the other pages."""
        return split_address(self.metrics_listen) if self.metrics_listen else None

    @property
    def scheme(self) -> str:
        """How URLs of the pages begin: `https` with a certificate, else `http`."""
        return "https" if self.tls_certificate else "http"

    def find_conflict(self) -> tuple[str, str] | None:
        """Return the field to change and the reason, if fields conflict; None otherwise."""
        if self.tls_certificate and not self.tls_key:
            return "tls_certificate", "needs tls_key too. Add it"
        if self.tls_key and not self.tls_certificate:
            return "tls_key", "needs tls_certificate too. Add it"
        if self.admin_token and self.admin_token == self.token:
            return "admin_token", "is the token of all users. Choose another one"
        if self.metrics_address == self.address and self.address[1]:
            return "metrics_listen", "is the address of http.listen. Choose another one, or leave it out"
        return None


class MetricsConfig(Model):
    """What /metrics tells."""

    latency_by: Literal["stream", "consumer"] = "stream"
    """What the histogram of delivery latencies is kept for: each stream, or each consumer, with 17 series each."""


WorkerName = Annotated[
    str, AfterValidator(_check_worker), Field(json_schema_extra={"pattern": r"^[a-zA-Z0-9._:-]{0,100}$"})
]


class FleetConfig(Model):
    """The view of all workers: what this worker tells for it, and where `overlay fleet run` shows it."""

    publish: bool = True
    """Whether the worker writes its status to `<prefix>.fleet` every few seconds."""
    worker: WorkerName = ""
    """The worker's name, the same after a restart and another for each worker. Default: host name and HTTP port."""
    listen: Annotated[str, AfterValidator(_check_listen)] = "127.0.0.1:8223"
    """Address of the page and the metrics of `overlay fleet run`, as host:port; port 0 takes a free one."""

    @property
    def address(self) -> tuple[str, int]:
        return split_address(self.listen)


class ServiceConfig(Model):
    """The service: one overlay.yaml in each config folder."""

    kafka_properties: Annotated[KafkaProperties, Field(alias="kafka", repr=False)]
    """How to reach Kafka, by librdkafka's property names."""
    # parts are made without a check, which would build their validators when this module is imported
    topics: TopicsConfig = TopicsConfig.model_construct()
    """Where the overlay keeps its own topics, and how it creates topics."""
    requests: RequestsConfig = RequestsConfig.model_construct()
    """Limits for consumers that are made by request, and for requests."""
    http: HttpConfig = HttpConfig.model_construct()
    """The HTTP server for metrics and health."""
    metrics: MetricsConfig = MetricsConfig.model_construct()
    """What /metrics tells."""
    fleet: FleetConfig = FleetConfig.model_construct()
    """The view of all workers: `overlay fleet run`, and what this worker tells for it."""
    shards: Annotated[int, Field(ge=1, le=1024)] = 1
    """Partitions of the state topic: how many workers can share the consumers. Fixed once the topic exists."""

    @property
    def kafka(self) -> dict[str, str]:
        """The Kafka settings by librdkafka's names. They may contain secrets, so never log them."""
        return self.kafka_properties.properties()
