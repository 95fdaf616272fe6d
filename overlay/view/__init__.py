"""Views of streams and consumers: facts from the service and from Kafka, as text or JSON."""
