"""What can go wrong in a bench: a peer that cannot run here, and an answer that is wrong."""

from __future__ import annotations

from overlay.errors import OverlayError


class PeerUnavailable(OverlayError):
    """A side cannot run on this machine. The bench goes on without a peer and says why; not without our own side."""


class WrongAnswer(OverlayError):
    """A side did not return what the data set says it must. The bench ends: a wrong answer has no speed."""
