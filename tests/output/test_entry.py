from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overlay.output.entry import BATCH_BYTES, Entry, press_entries
from overlay.output.record import Record
from tests.output.pressing import NOW, decode
from tests.support.strategies import nullable_bytes

headers = st.lists(st.tuples(st.text(max_size=5), nullable_bytes), max_size=3)
records = st.builds(Record, nullable_bytes, nullable_bytes, headers)
entries = st.builds(Entry, st.sampled_from(["events", "replies"]), records, st.sampled_from([0, 1]))


@given(st.lists(entries))
def test_each_partition_gets_its_entries_in_order(given: list[Entry]) -> None:
    found: dict[tuple[str, int], list[Record]] = {}
    for outgoing in press_entries(given, NOW):
        batch = decode(outgoing)
        assert batch.is_transactional
        assert {record.timestamp for record in batch.records} == {NOW}
        found.setdefault((outgoing.topic, outgoing.partition), []).extend(
            Record(record.key, record.value, [(name.decode(), value) for name, value in record.headers])
            for record in batch.records
        )
    places = {(entry.topic, entry.partition) for entry in given}
    assert found == {
        place: [entry.record for entry in given if (entry.topic, entry.partition) == place] for place in places
    }


def test_batches_stay_small() -> None:
    given = [Entry("events", Record(b"k", bytes(BATCH_BYTES // 3), [("h", bytes(1000))])) for _ in range(10)]
    batches = press_entries(given, NOW)
    assert [len(decode(outgoing).records) for outgoing in batches] == [2] * 5
    assert all(outgoing.batch.size <= BATCH_BYTES for outgoing in batches)


def test_an_entry_that_is_too_large_goes_alone() -> None:
    given = [Entry("events", Record(None, bytes(size))) for size in (10, BATCH_BYTES, 10)]
    assert [len(decode(outgoing).records) for outgoing in press_entries(given, NOW)] == [1, 1, 1]


@given(st.lists(entries, min_size=1))
def test_sizes_are_not_guessed_too_low(given: list[Entry]) -> None:
    for outgoing in press_entries(given, NOW):
        mine = [entry for entry in given if (entry.topic, entry.partition) == (outgoing.topic, outgoing.partition)]
        assert outgoing.batch.size - 61 <= sum(entry.size for entry in mine)


def test_what_is_large_is_compressed() -> None:
    """A checkpoint is one record, and may be larger than its topic takes."""
    (outgoing,) = press_entries([Entry("state", Record(None, b"[1, 2, 3]" * 200_000))], NOW)
    assert len(outgoing.batch.build()) < 100_000
    assert len(decode(outgoing).records[0].value or b"") == 1_800_000
