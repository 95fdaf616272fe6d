"""overlay/deliver/partition.py against an independent client: librdkafka's murmur2 places as Java's default partitioner."""

from __future__ import annotations
