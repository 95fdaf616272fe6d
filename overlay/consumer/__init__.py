"""JetStream's consumer as a state machine: events in, effects out (docs/consumers.md#the-machine)."""
