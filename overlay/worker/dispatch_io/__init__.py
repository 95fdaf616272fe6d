"""What the dispatch loop asks of Kafka: ack topics, reader groups, and records that have to be read again."""
