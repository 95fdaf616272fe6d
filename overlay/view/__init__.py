"""What there is to see of streams and consumers: from the service that runs, and from what Kafka remembers."""
