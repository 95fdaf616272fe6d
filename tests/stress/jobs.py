"""All jobs."""

from __future__ import annotations

from .filters import FILTERS
from .indexing import INDEXES
from .scanning import READINGS, SCANS
from .serving import SERVICE

JOBS = [*SCANS, *READINGS, *SERVICE, *INDEXES, *FILTERS]
