"""The sections of a message that a filter names fields of.

It is apart from the nodes of a filter's tree (nodes.py): files of streams name sections, and most commands read files
without a filter.
"""

from __future__ import annotations

import enum


class Section(enum.StrEnum):
    """The part of a message that a field is in."""

    HEADER = "header"
    PROPERTIES = "properties"
    APPLICATION = "application_properties"
