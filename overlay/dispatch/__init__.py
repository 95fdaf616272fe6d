"""Between the machines of consumers and Kafka: what they are told, and what becomes of what they want. See dispatcher.py."""
