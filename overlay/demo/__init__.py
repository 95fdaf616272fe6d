"""`overlay demo`: real flights through a real Kafka and service, with a check of the outputs.

- home: the demo's folder
- service: the service's process, and its answers over HTTP
- verdict, selection: the expected content of the output topics, computed without the overlay;
  pure
- outputs: the actual content of the output topics
- screen, report: what the demo prints
- play: all of it in order
"""
