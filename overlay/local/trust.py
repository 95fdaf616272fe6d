"""Java options for the machine's network settings: the system's CAs and its proxies.

Java reads neither the system's CA bundle nor the proxy variables. Behind a proxy that inspects TLS,
Java's own CA list would refuse every connection. So the system's bundle is written into the cache
as a Java truststore.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import urllib.parse
import urllib.request
import warnings
from pathlib import Path

from overlay.errors import BrokerError

# Not a secret: a truststore has public certificates only, but Java needs a password to check it.
PASSWORD = "changeit"
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def build_java_options(cache: Path) -> list[str]:
    """Return the -D options for this machine's CAs and proxies. The truststore that they name is written to `cache`
    if it is not there.

    They may contain a proxy's password.
    """
    return [*_trust_options(cache), *_proxy_options()]


def find_bundle() -> Path | None:
    """Return the system's CA bundle (PEM): the file that $SSL_CERT_FILE names, or OpenSSL's default file if the
    variable is not set.

    Returns None if that file does not exist.
    """
    named = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    return Path(named) if named and Path(named).is_file() else None


def write_truststore(bundle: Path, folder: Path) -> Path | None:
    """Write the bundle as a PKCS12 truststore named by its hash and return its path.

    Returns None if no certificate of the bundle can be read. Raises BrokerError if the cryptography
    package is missing.
    """
    pem = bundle.read_bytes()
    store = folder / f"{hashlib.sha256(pem).hexdigest()[:16]}.p12"
    if not store.exists():
        encoded = _encode_truststore(pem)
        if encoded is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        part = store.with_suffix(f".{os.getpid()}")
        part.write_bytes(encoded)
        part.replace(store)
    return store


def _encode_truststore(pem: bytes) -> bytes | None:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
    except ImportError as error:
        raise BrokerError("the cryptography package is missing: run `pip install 'kafka-overlay[local]'`") from error
    entries: list[pkcs12.PKCS12Certificate] = []
    with warnings.catch_warnings():
        # some old root certificates break minor rules, but the system trusts them
        warnings.simplefilter("ignore")
        for number, block in enumerate(_PEM.findall(pem)):
            try:
                certificate = x509.load_pem_x509_certificate(block)
            except ValueError:
                continue  # skip this certificate and keep the others
            entries.append(pkcs12.PKCS12Certificate(certificate, f"system-{number}".encode()))
        if not entries:
            return None
        return pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode()))


def _trust_options(cache: Path) -> list[str]:
    bundle = find_bundle()
    store = write_truststore(bundle, cache / "trust") if bundle else None
    if store is None:
        return []
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    ]


def _proxy_options() -> list[str]:
    proxies = urllib.request.getproxies()
    options: list[str] = []
    for scheme in ("http", "https"):
        if scheme not in proxies:
            continue
        url = proxies[scheme] if "://" in proxies[scheme] else f"http://{proxies[scheme]}"
        proxy = urllib.parse.urlsplit(url)
        options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
        if proxy.username:
            # Ivy sends these two to the proxy; by default Java refuses Basic auth in a tunnel
            options += [
                f"-Dhttp.proxyUser={urllib.parse.unquote(proxy.username)}",
                f"-Dhttp.proxyPassword={urllib.parse.unquote(proxy.password or '')}",
                "-Djdk.http.auth.tunneling.disabledSchemes=",
            ]
    without = [name.strip() for name in proxies.get("no", "").split(",") if name.strip()]
    if options and without:
        hosts = "|".join(f"*{name}" if name.startswith(".") else name for name in without)
        options.append(f"-Dhttp.nonProxyHosts={hosts}")
    return options
