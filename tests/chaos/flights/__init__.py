"""A storm over the flights: two workers are killed and frozen, consumers come, the broker restarts,
and nothing may be lost.

`python -m tests.chaos.flights --seed 7 --delivery at_least_once` runs one storm and exits with 1 if
it broke a promise. tests/chaos/test_flights.py runs a short one.

The pieces: traffic.py writes the flights, workers.py runs the service, faults.py decides what
breaks and when, applications.py takes messages and acks them, plan.py says which consumers there
are, and judge.py compares the outputs with the source. The judge knows only what the source topic
holds, what the output topics hold, and what the applications did; it asks the service only whether
a consumer has anything left to do.
"""
