"""A storm over a crowd: four workers with sixteen shards, 300 consumers of all kinds over four streams, `overlay fleet run` and
a Faust application. All of them are killed and frozen, and everything has to be right in the end.

`python -m tests.chaos.crowd [--seconds N] [--seed S]` runs one storm and exits with 1 if it broke a promise.
tests/chaos/test_crowd.py runs a short one.

The pieces: plan.py says which consumers there are, applications.py writes orders, acks and pulls, picture.py compares the
fleet's picture with the workers' group in Kafka, judge.py the outputs with the source, and storm.py runs it all. The processes
are those of tests/chaos/flights.
"""
