"""Offsets that a reader group has committed: any client that may read the group's topics commits what it likes."""

from __future__ import annotations

import struct

from overlay.consumer.events import Bound, Read
from overlay.dispatch.output_offsets import OutputOffsets
from overlay.kafka.groups import _collect
from tests.consumer.driver import Driver, configure

ROW = struct.Struct(">iq")
"""Partition and offset, as Kafka's answer has them."""
DELIVERED = 8


def read_committed(data: bytes) -> None:
    """Tell a machine how far its readers are, by offsets of any partitions: never further than it has delivered."""
    rows = list(ROW.iter_unpack(data[: len(data) // ROW.size * ROW.size]))
    committed = _collect([("out", rows), ("other", rows[:3])])
    driver = Driver(configure(interest="group"))
    driver.do(Bound())
    driver.offer(DELIVERED)
    offsets = OutputOffsets({0: 3, 2: 5}, 0, 2)
    for partition, base, count, first, last in ((0, 7, 2, 3, 4), (1, 0, 2, 5, 8), (0, 9, 2, 6, 7)):
        offsets.note(partition, base, count, first, last)
    for _ in range(2):
        read = offsets.find_read(committed.get("out", {}))
        assert 0 <= read <= offsets.given == DELIVERED
        if read > driver.machine.facts.read_up_to:
            driver.do(Read(read))
        assert driver.machine.facts.read_up_to == read
    driver.pass_time(10**12)


def list_committed() -> list[bytes]:
    """Return offsets before, within and behind what was delivered, and no offset at all (-1)."""
    cases = (
        [(0, 8), (1, 2), (2, 5)], [(0, 11), (1, 2), (2, 5)], [(0, -1), (1, 2**63 - 1)], [(7, 3), (2**31 - 1, 0), (-1, 4)],
        [(0, 11), (1, 1), (2, 5), (0, 3)],
    )  # fmt: skip
    return [b"".join(ROW.pack(*row) for row in rows) for rows in cases]
