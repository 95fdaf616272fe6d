"""The consumer machine (design 7): what is delivered, pending, redelivered and told, as events in and effects out."""

from .machine import Machine

__all__ = ["Machine"]
