"""The versions of requests that Kafka 4.3 knows, as its ApiVersions says: oldest and newest by api key."""

from __future__ import annotations

VERSIONS: dict[int, tuple[int, int]] = {
    0: (0, 13),
    1: (4, 18),
    2: (1, 11),
    3: (0, 13),
    8: (2, 10),
    9: (1, 10),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    18: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    28: (0, 5),
    32: (1, 4),
    33: (0, 2),
    37: (0, 3),
    42: (0, 2),
    44: (0, 1),
    69: (0, 1),
}
