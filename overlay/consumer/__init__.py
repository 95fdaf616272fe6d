"""JetStream's consumer as a state machine: events in, effects out (docs/consumers.md#the-machine)."""

from .machine import Machine

__all__ = ["Machine"]
