"""The loader of overlay.yaml. Most commands that ask the service read no other file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath

from overlay.errors import ConfigError, FilePosition

from .document import read_document, show_path
from .environment import fill_variables
from .problems import validate
from .service import ServiceConfig

SERVICE_FILE = "overlay.yaml"


def load_service(file: FilePath, environment: Mapping[str, str]) -> ServiceConfig:
    """Return the settings in `file`, an overlay.yaml, whose variables are filled from `environment`.

    Raises ConfigError. If fields of the file are not valid, its message has a line for each error.
    """
    if not file.exists():
        hint = "no such file. A config folder holds overlay.yaml, streams/*.yaml, consumers/*.yaml; see `overlay init`"
        raise ConfigError(FilePosition(str(file)), hint)
    document = fill_variables(read_document(file), environment)
    service, problems = validate(ServiceConfig, document)
    if service is None:
        first, *others = problems
        message = "\n".join([first.message, *(str(other) for other in others)])
        raise ConfigError(first.place, message, field=first.field, code=first.code)
    for part, conflict in (
        ("kafka", service.kafka_properties.find_conflict()),
        ("http", service.http.find_conflict()),
    ):
        if conflict:
            path = (part, conflict[0])
            raise ConfigError(document.place(path), conflict[1], field=show_path(path))
    return service
