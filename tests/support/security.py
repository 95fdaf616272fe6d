"""A certificate authority, a server keystore and accounts, for a broker with TLS and SASL listeners.

Usage: `security = make_security(tmp_path)`, `start(home, properties=security.properties)`, `add_scram_user(...)`, then
`security.client("SASL_SSL", broker, mechanism="SCRAM-SHA-256")` is a librdkafka config that the broker accepts.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from overlay.local import Broker

Setting = str | int | float | bool

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
USER, PASSWORD = "alice", "wonderland"
_STORE_PASSWORD = "keystore"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


@dataclass(frozen=True, slots=True)
class Security:
    """The CA that clients trust (PEM), and the properties to start the broker with."""

    ca: Path
    properties: dict[str, str]

    def client(
        self, protocol: str, broker: Broker, *, mechanism: str = "PLAIN", user: str = USER, password: str = PASSWORD
    ) -> dict[str, Setting]:
        """librdkafka properties for one of PROTOCOLS."""
        config: dict[str, Setting] = {"bootstrap.servers": broker.listeners[protocol], "security.protocol": protocol}
        if protocol.endswith("SSL"):
            config["ssl.ca.location"] = str(self.ca)
        if protocol.startswith("SASL"):
            config |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        return config


def make_security(folder: Path) -> Security:
    """Write a CA and a server keystore for 127.0.0.1 into `folder`. SCRAM accounts are added later."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
    ca = _sign(ca_name, ca_key, ca_name, ca_key, authority=True)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test broker")])
    certificate = _sign(name, key, ca_name, ca_key, authority=False)
    ca_file, keystore = folder / "ca.pem", folder / "server.p12"
    ca_file.write_bytes(ca.public_bytes(Encoding.PEM))
    encryption = BestAvailableEncryption(_STORE_PASSWORD.encode())
    keystore.write_bytes(pkcs12.serialize_key_and_certificates(b"server", key, certificate, [ca], encryption))
    return Security(ca_file, _build_properties(keystore))


def write_certificate(folder: Path, name: str, password: str = "") -> tuple[Path, Path]:
    """Write a certificate that has signed itself into `folder`, and its key. Return the two PEM files."""
    folder.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(_sign(subject, key, subject, key, authority=False).public_bytes(Encoding.PEM))
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return files


def add_scram_user(bootstrap: str, user: str = USER, password: str = PASSWORD) -> None:
    """Create a SCRAM-SHA-256 account through the broker's plain listener."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.alter_user_scram_credentials([change])[user].result(30)


def _build_properties(keystore: Path) -> dict[str, str]:
    accounts = f'{_PLAIN} username="broker" password="broker" user_{USER}="{PASSWORD}";'
    properties = {
        "listeners": ",".join(f"{protocol}://127.0.0.1:0" for protocol in PROTOCOLS),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.password": _STORE_PASSWORD,
        "ssl.key.password": _STORE_PASSWORD,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        properties[f"listener.name.{listener}.plain.sasl.jaas.config"] = accounts
        properties[f"listener.name.{listener}.scram-sha-256.sasl.jaas.config"] = _SCRAM
        # tokens without a signature are accepted where nothing else is configured
        properties[f"listener.name.{listener}.oauthbearer.sasl.jaas.config"] = _OAUTH
    return properties


def _sign(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    loopback = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(loopback), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
