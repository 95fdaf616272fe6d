"""What `overlay doctor` says of Kafka, the machine and the workers: facts in, diagnoses out."""
