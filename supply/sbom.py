"""`make sbom`: bills of materials in CycloneDX's JSON, made from the lock files and the checksums of the jars.

Nothing is downloaded, and the same files give the same bills, byte by byte. build/sbom.cdx.json has all that the
repository can install, build/sbom-service.cdx.json what is in the container image beside Python.
"""

from __future__ import annotations

import json
import tomllib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from .locks import LOCK, ROOT, SERVICE_LOCK, Jar, Package, read_jars, read_lock

SPEC_VERSION = "1.6"
FOLDER = ROOT / "build"
_NAMESPACE = uuid.UUID("7c2f3a52-7d0e-4e0c-9a55-1c6f0f6f2f11")


def make_bill(packages: Sequence[Package], jars: Sequence[Jar], needed: Iterable[str]) -> dict[str, Any]:
    """Return a bill of materials. `needed`: names of the packages without which the service does not run; all others
    and the jars are optional.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = _refer(project["name"], project["version"])
    required = set(needed)
    components = [_describe_package(package, is_required=package.name in required) for package in packages]
    components += [_describe_jar(jar) for jar in jars]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": own,
            }
        },
        "components": components,
        "dependencies": list_dependencies(packages, jars, project["name"], own),
    }
    # a serial number that changes with the content alone
    number = uuid.uuid5(_NAMESPACE, json.dumps(bill, sort_keys=True))
    return {"bomFormat": bill["bomFormat"], "specVersion": SPEC_VERSION, "serialNumber": f"urn:uuid:{number}", **bill}


def list_dependencies(packages: Sequence[Package], jars: Sequence[Jar], project: str, own: str) -> list[dict[str, Any]]:
    """Return which component needs which others, by their references. `own`: the reference of the project."""
    references = {package.name: _refer(package.name, package.version) for package in packages} | {project: own}
    needs: dict[str, set[str]] = {reference: set() for reference in references.values()}
    for package in packages:
        for user in package.users:
            needs[references[user]].add(references[package.name])
    needs[own] |= {_refer_jar(jar) for jar in jars}
    return [{"ref": reference, "dependsOn": sorted(found)} for reference, found in sorted(needs.items())]


def _refer(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def _refer_jar(jar: Jar) -> str:
    # the file names no group, so that it is no reference to a Maven repository
    return f"pkg:generic/{jar.name}@{jar.version}?checksum=sha256:{jar.digest}&file_name={jar.file}"


def _describe_package(package: Package, *, is_required: bool) -> dict[str, Any]:
    properties = [{"name": "kafka-overlay:sha256", "value": digest} for digest in package.hashes]
    if package.marker:
        properties.append({"name": "kafka-overlay:marker", "value": package.marker})
    reference = _refer(package.name, package.version)
    return {
        "type": "library",
        "bom-ref": reference,
        "name": package.name,
        "version": package.version,
        "scope": "required" if is_required else "optional",
        "purl": reference,
        # one for each file that the version may be installed from
        "properties": properties,
    }


def _describe_jar(jar: Jar) -> dict[str, Any]:
    reference = _refer_jar(jar)
    return {
        "type": "library",
        "bom-ref": reference,
        "name": jar.name,
        "version": jar.version,
        "scope": "optional",
        "hashes": [{"alg": "SHA-256", "content": jar.digest}],
        "purl": reference,
        "properties": [{"name": "kafka-overlay:file", "value": jar.file}],
    }


def make_bills() -> dict[str, dict[str, Any]]:
    """Return the bills by the names of their files."""
    service = read_lock(SERVICE_LOCK)
    needed = [package.name for package in service]
    return {
        "sbom.cdx.json": make_bill(read_lock(LOCK), read_jars(), needed),
        "sbom-service.cdx.json": make_bill(service, [], needed),
    }


def write_bills(bills: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write bills into a folder, which is created if needed. Return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, bill in bills.items():
        (folder / name).write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    return [folder / name for name in bills]


if __name__ == "__main__":
    for path in write_bills(make_bills(), FOLDER):
        click.echo(f"{path.relative_to(ROOT)} is the bill of materials")
