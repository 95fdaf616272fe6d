"""All mutants by name."""

from __future__ import annotations

from collections.abc import Mapping

from .acks import ACKS
from .changes import CHANGES
from .logs import LOGS
from .markers import MARKERS
from .mutant import Mutant
from .ownership import OWNERSHIP
from .planted import PLANTED
from .requests import REQUESTS

MUTANTS: Mapping[str, Mutant] = {
    mutant.name: mutant for mutant in (*PLANTED, *OWNERSHIP, *ACKS, *LOGS, *REQUESTS, *MARKERS, *CHANGES)
}
