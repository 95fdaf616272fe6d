"""The columns of an ack topic against `parse_ack`, row by row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlay.consumer.acks import Ack, Flaw, Garbage, RangeAck, Verb, parse_ack
from overlay.consumer.events import Acked, Event, FlowAnswered, Nakked, Progressed, Pulled, RangeAcked, Termed
from overlay.dispatch.ack_decoder import MOST_RECORDS, AckBatch, AckDecoder
from overlay.dispatch.ack_offsets import AckOffsets
from overlay.replies.reply_address import ReplyRule
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import Fault
from tests.oracle.batches import Record
from tests.support.batches import build
from tests.support.tiny_records import build_tiny

RULE = ReplyRule("overlay", ("answers",))

MINE, OTHERS = ("a", "late-jfk", "zz"), ("b",)

NUMBERS = st.sampled_from(["1", "2", "77", "0", "00012", "9223372036854775807", "9223372036854775808", "", "-1", "x"])
TOKENS = st.one_of(
    st.builds(
        lambda by, stream, name, numbers: ".".join(["$JS", "ACK", *by, stream, name, *numbers]),
        st.sampled_from(
            [(), (), ("_", "7x1"), ("_", "7x2"), ("_", "17x2"), ("_", "S"), ("_", ""), ("D", "7x1"), ("_",)]
        ),
        st.sampled_from(["S", "S", "S", "T", ""]),
        st.sampled_from([*MINE, *MINE, *OTHERS, "unknown", "late", "late-jfk2", ""]),
        st.one_of(st.just(["1", "5", "6", "1700000000000000000", "3"]), st.lists(NUMBERS, min_size=3, max_size=7)),
    ),
    st.sampled_from(["", "$JS.ACK.S.a", "$JS.ACK.", "hello", "$JS.FC.S.a.0001", "$JS.FC.T.a.0001", "$JS.FC.S"]),
    st.sampled_from(["$JS.ACK._.7x1.S.a", "$JS.ACK.D.7x1.S.a", "$JS.ACK._.7x1.S.", "$JS.FC._.7x1.S.a.0001"]),
)
BODIES = st.sampled_from(
    [
        None, b"", b"+ACK", b"+OK", b"-NAK", b"+WPI", b"+TERM", b"+TERM why", b'-NAK {"delay": 5}', b"-NAK 5s", b"-NAK x",
        b"+NXT", b"+NXT 5", b"+ack", b"+ACKK", b"+AC", b"-", b'+ACK {"consumer_seq": [[1, 4], [6, 6]]}', b"+WPI ",
    ]
)  # fmt: skip


@st.composite
def ack_records(draw: st.DrawFn) -> list[Record]:
    records = []
    for offset in range(draw(st.integers(1, 30))):
        token = draw(TOKENS).encode()
        body = draw(BODIES)
        headers: list[tuple[bytes, bytes | None]] = [(b"other", b"x")] if draw(st.booleans()) else []
        if draw(st.integers(0, 9)) == 0:
            headers += [(b"Overlay-Reply-Topic", b"answers"), (b"Overlay-Correlation-Id", b"7")]
        in_header = draw(st.booleans())
        if in_header:
            headers.append((b"Nats-Reply-To", token))
        key = b"a key" if in_header else token
        records.append(Record(offset, 1_700_000_000_000, key, body, headers))
    return records


Row = tuple[object, ...]


def expect(records: Sequence[Record]) -> tuple[dict[str, list[Row]], Counter[str], Counter[Flaw]]:
    """What each consumer is told, the kinds, and what is refused; one record after the other."""
    told: dict[str, list[Row]] = {}
    kinds, refused = Counter[str](), Counter[Flaw]()
    for record in records:
        headers = dict(record.headers)
        token = headers.get(b"Nats-Reply-To", record.key) or b""
        reply = "answers//7" if b"Overlay-Reply-Topic" in headers else ""
        if token.startswith(b"$JS.FC."):
            parts = token.decode().split(".")
            if len(parts) in (5, 7) and parts[-3] == "S":
                taken = parse_ack(f"$JS.ACK.S.{parts[-2]}".encode(), record.value or b"")
                up_to = taken.ranges[-1][1] if isinstance(taken, RangeAck) else 0
                told.setdefault(parts[-2], []).append(("flow", token.decode(), up_to))
            else:
                refused[Flaw.UNKNOWN] += 1
            continue
        found = parse_ack(token, record.value or b"")
        if re.match(rb"\$JS\.ACK\.(_\.[^.]+\.)?S\.b\.", token):
            continue  # those of the stream's other consumers are not looked at, whatever else they may be
        if isinstance(found, Garbage):
            refused[found.flaw] += 1
            continue
        stream, name = (found.stream, found.consumer) if isinstance(found, RangeAck) else named(found)
        if stream != "S" or name not in (*MINE, *OTHERS):
            refused[Flaw.UNKNOWN] += 1
        elif name in OTHERS:
            continue
        elif isinstance(found, RangeAck):
            kinds["range"] += 1
            told.setdefault(name, []).append(("range", found.ranges, reply, found.incarnation))
        elif found.is_flawed:
            refused[Flaw.PAYLOAD] += 1
        else:
            kinds[found.verb.name.lower()] += 1
            told.setdefault(name, []).extend(list_rows(found, reply))
    return told, kinds, refused


def named(ack: Ack) -> tuple[str, str]:
    return ack.token.stream, ack.token.consumer


def list_rows(ack: Ack, reply: str) -> list[Row]:
    token, by = ack.token, ack.token.incarnation
    match ack.verb:
        case Verb.ACK:
            return [("ack", token.stream_seq, token.consumer_seq, reply, by)]
        case Verb.NAK:
            return [("nak", token.stream_seq, token.consumer_seq, token.deliveries, ack.delay, reply, by)]
        case Verb.PROGRESS:
            return [("wpi", token.stream_seq, reply, by)]
        case Verb.TERM:
            return [("term", token.stream_seq, token.consumer_seq, token.deliveries, ack.text, reply, by)]
        case Verb.NEXT:
            return [("ack", token.stream_seq, token.consumer_seq, "", by), ("pull", reply)]


def flatten(said: Sequence[AckBatch | Event]) -> list[Row]:
    rows: list[Row] = []
    for each in said:
        match each:
            case AckBatch(verb, sequences, consumer_seqs, deliveries, incarnations, names=names):
                by = (
                    [""] * len(sequences) if incarnations is None else [names[place] for place in incarnations.tolist()]
                )
                columns = zip(sequences.tolist(), consumer_seqs.tolist(), deliveries.tolist(), by, strict=True)
                rows.extend(list_said(verb, *row) for row in columns)
            case Acked(sequences, consumer_seq, reply, by):
                rows.append(("ack", int(sequences[0]), consumer_seq, reply, by))
            case RangeAcked(ranges, reply, by):
                rows.append(("range", ranges, reply, by))
            case Nakked(sequence, consumer_seq, deliveries, delay, reply, by):
                rows.append(("nak", sequence, consumer_seq, deliveries, delay, reply, by))
            case Progressed(sequences, reply, _, by):
                rows.append(("wpi", int(sequences[0]), reply, by))
            case Termed(sequence, consumer_seq, deliveries, reason, reply, by):
                rows.append(("term", sequence, consumer_seq, deliveries, reason, reply, by))
            case Pulled(_, reply, _, Acked(sequences, consumer_seq, answered, by)):
                rows += [("ack", int(sequences[0]), consumer_seq, answered, by), ("pull", reply)]
            case FlowAnswered(subject, up_to):
                rows.append(("flow", subject, up_to))
    return rows


def list_said(verb: Verb, sequence: int, consumer_seq: int, deliveries: int, by: str) -> Row:
    if verb is Verb.ACK:
        return "ack", sequence, consumer_seq, "", by
    if verb is Verb.PROGRESS:
        return "wpi", sequence, "", by
    if verb is Verb.NAK:
        return "nak", sequence, consumer_seq, deliveries, None, "", by
    return "term", sequence, consumer_seq, deliveries, "", "", by


@given(ack_records())
@example([Record(0, 0, b"$JS.ACK._..S.b.1.5.6.7.3", b"-NAK x", [])])  # empty incarnation, of another worker's consumer
@settings(max_examples=200, deadline=None)
def test_columns_say_what_rows_say(records: list[Record]) -> None:
    heard = AckDecoder("S", MINE, OTHERS, RULE).read(np.frombuffer(build(records), np.uint8), 0, NO_ABORTS)
    told, kinds, refused = expect(records)
    assert {name: flatten(said) for name, said in heard.said.items()} == told
    assert heard.kinds == kinds
    assert heard.refused == refused


def test_a_flawed_ack_is_counted_by_the_worker_of_its_consumer_alone() -> None:
    """Also if its token is read row by row, as one with an empty incarnation is."""
    token = b"$JS.ACK._..S.b.1.5.6.1700000000000000000.3"
    piece = np.frombuffer(build([Record(0, 0, token, b"-NAK x", [])]), np.uint8)
    refused = [AckDecoder("S", mine, ("b",), RULE).read(piece, 0, NO_ABORTS).refused for mine in (MINE, ("b",))]
    assert refused == [Counter(), Counter({Flaw.PAYLOAD: 1})]


def test_a_run_of_acks_is_one_word() -> None:
    records = [
        Record(n, 0, f"$JS.ACK.S.a.1.{n + 1}.{n + 1}.5.0".encode(), b"+ACK" if n % 2 else b"", []) for n in range(1000)
    ]
    heard = AckDecoder("S", MINE, (), RULE).read(np.frombuffer(build(records), np.uint8), 0, NO_ABORTS)
    (said,) = heard.said["a"]
    assert isinstance(said, AckBatch)
    assert said.sequences.tolist() == list(range(1, 1001))


def test_acks_of_two_incarnations_are_one_word() -> None:
    tokens = [f"$JS.ACK._.7x{1 + n % 2}.S.a.1.{n + 1}.{n + 1}.5.0".encode() for n in range(1000)]
    records = [Record(n, 0, token, b"+ACK", []) for n, token in enumerate(tokens)]
    heard = AckDecoder("S", MINE, (), RULE).read(np.frombuffer(build(records), np.uint8), 0, NO_ABORTS)
    (said,) = heard.said["a"]
    assert isinstance(said, AckBatch)
    assert said.names == ("7x1", "7x2", "")
    assert {name: rows.tolist() for name, rows in said.split()} == {
        "7x1": list(range(0, 1000, 2)),
        "7x2": list(range(1, 1000, 2)),
    }


def test_more_incarnations_than_are_numbered_are_read_as_well() -> None:
    tokens = [f"$JS.ACK._.7x{n}.S.a.1.{n + 1}.{n + 1}.5.0".encode() for n in range(200)]
    records = [Record(n, 0, token, b"+ACK", []) for n, token in enumerate(tokens)]
    heard = AckDecoder("S", MINE, (), RULE).read(np.frombuffer(build(records), np.uint8), 0, NO_ABORTS)
    assert flatten(heard.said["a"]) == [("ack", n + 1, n + 1, "", f"7x{n}") for n in range(200)]


def test_acks_of_many_consumers_are_one_word_each() -> None:
    """Each consumer has an incarnation of its own, and another one before it."""
    names = [f"c{number}" for number in range(300)]
    tokens = [
        f"$JS.ACK._.{name}-{owner}.S.{name}.1.{n + 1}.{n + 1}.5.0".encode()
        for n, (owner, name) in enumerate((owner, name) for owner in (1, 2, 1) for name in names)
    ]
    records = [Record(n, 0, token, b"+ACK", []) for n, token in enumerate(tokens)]
    heard = AckDecoder("S", names, (), RULE).read(np.frombuffer(build(records), np.uint8), 0, NO_ABORTS)
    for number, name in enumerate(names, 1):
        (said,) = heard.said[name]
        assert isinstance(said, AckBatch)
        assert said.sequences.tolist() == [number, number + 300, number + 600]
        assert {by: rows.tolist() for by, rows in said.split()} == {f"{name}-1": [0, 2], f"{name}-2": [1]}


@pytest.mark.parametrize(("stream", "consumer"), [("_", "7x1"), ("_", "_"), ("7x1", "_")])
def test_names_that_look_like_parts_of_a_token(stream: str, consumer: str) -> None:
    tokens = [f"$JS.ACK.{by}{stream}.{consumer}.1.5.6.7.8".encode() for by in ("", "_.7x1.", "_._.", "")]
    records = [Record(n, 0, token, b"+ACK", []) for n, token in enumerate(tokens)]
    heard = AckDecoder(stream, [consumer], (), RULE).read(np.frombuffer(build(records), np.uint8), 0, NO_ABORTS)
    assert flatten(heard.said[consumer]) == [("ack", 5, 6, "", by) for by in ("", "7x1", "_", "")]


def test_what_lies_before_the_position_was_heard_before() -> None:
    records = [Record(n, 0, f"$JS.ACK.S.a.1.{n + 1}.{n + 1}.5.0".encode(), b"", []) for n in range(10)]
    heard = AckDecoder("S", MINE, (), RULE).read(np.frombuffer(build(records), np.uint8), 7, NO_ABORTS)
    assert flatten(heard.said["a"]) == [("ack", n, n, "", "") for n in (8, 9, 10)]


@example([Record(0, 0, b"$JS.ACK.S.a.1.5.6.7.8", b"", [])], 0, {"a": 1})
@given(ack_records(), st.integers(0, 30), st.dictionaries(st.sampled_from(MINE), st.integers(0, 30)))
@settings(max_examples=200, deadline=None)
def test_each_consumer_is_told_what_it_has_not_heard(records: list[Record], shared: int, own: dict[str, int]) -> None:
    """As if each had the topic for itself, from its own position on."""
    data, since = np.frombuffer(build(records), np.uint8), AckOffsets(shared, own)
    told = AckDecoder("S", MINE, OTHERS, RULE).read(data, 0, NO_ABORTS, since).said
    for name in MINE:
        alone = AckDecoder("S", MINE, OTHERS, RULE).read(data, since.of(name), NO_ABORTS).said
        assert flatten(told.get(name, [])) == flatten(alone.get(name, []))


def test_a_batch_of_too_many_records_is_refused_by_itself() -> None:
    """Its records are not looked at, those of other batches are."""
    crowd, full = build_tiny(MOST_RECORDS + 1), build_tiny(MOST_RECORDS, base_offset=MOST_RECORDS + 1)
    ack = Record(2 * MOST_RECORDS + 1, 0, b"$JS.ACK.S.a.1.5.6.7.8", b"", [])
    data = np.frombuffer(crowd + full + build([ack], base_offset=ack.offset), np.uint8)
    heard = AckDecoder("S", MINE, (), RULE).read(data, 0, NO_ABORTS)
    assert heard.refused == {Flaw.RECORDS: 1, Flaw.TOKEN: MOST_RECORDS}
    assert flatten(heard.said["a"]) == [("ack", 5, 6, "", "")]


def test_the_first_refused_record_of_each_reason_is_named() -> None:
    token = b"$JS.ACK._..S.b.1.5.6.1700000000000000000.3"
    records = [Record(at, 0, key, b"-NAK x", []) for at, key in enumerate((b"zork", token, b"zork", token), 40)]
    heard = AckDecoder("S", ("b",), (), RULE).read(
        np.frombuffer(build(records, base_offset=40), np.uint8), 40, NO_ABORTS
    )
    assert heard.refused == Counter({Flaw.TOKEN: 2, Flaw.PAYLOAD: 2})
    assert heard.firsts == {Flaw.TOKEN: (40, ""), Flaw.PAYLOAD: (41, "")}


def test_a_batch_that_cannot_be_read_is_named_with_its_fault() -> None:
    data = build([Record(40, 0, b"zork", b"+ACK", [])], base_offset=40, crc=0)
    heard = AckDecoder("S", ("b",), (), RULE).read(np.frombuffer(data, np.uint8), 40, NO_ABORTS)
    assert heard.firsts == {Flaw.PAYLOAD: (40, Fault.CRC.text)}
