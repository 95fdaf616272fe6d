"""What can go wrong in a bench: a peer that cannot run here, and an answer that is wrong."""

from __future__ import annotations

from overlay.errors import OverlayError


class PeerUnavailable(OverlayError):
    """A peer cannot run on this machine. The bench goes on without it and says why."""


class WrongAnswer(OverlayError):
    """A side did not return what the data set says it must. The bench ends: a wrong answer has no speed."""
