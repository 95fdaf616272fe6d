"""The config folder where a command or a program names none. Apart from the config's loader, which takes long to import."""

from __future__ import annotations

import os
from pathlib import Path

INIT_FOLDER = "overlay-config"
"""The folder that `overlay init` writes."""
SERVICE_FILE = "overlay.yaml"
VARIABLE = "OVERLAY_CONFIG"


def find_folder() -> Path:
    """Return the config folder of a command that names none: the current one if it is a config
    folder, else `./overlay-config` if that is one, else the current one.
    """
    here = Path()
    below = here / INIT_FOLDER
    return below if not (here / SERVICE_FILE).exists() and (below / SERVICE_FILE).exists() else here


def find_existing() -> Path | None:
    """Return the folder that $OVERLAY_CONFIG names, else that of `find_folder`; None if that is no config folder."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    found = find_folder()
    return found if (found / SERVICE_FILE).exists() else None
