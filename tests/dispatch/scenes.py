"""A dispatcher with one consumer and a log of source records, in steps that a test takes one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from overlay.consumer.acks import Verb
from overlay.consumer.events import Bound, Event
from overlay.dispatch.ack_decoder import AckBatch
from overlay.dispatch.dispatcher import Dispatcher, Offer, Work
from overlay.dispatch.effect_encoder import EffectEncoder
from overlay.dispatch.record_cache import RecordCache
from overlay.dispatch.served_consumer import Beginning, ConsumerSlot, slot
from overlay.match import Addressed, Addressing
from overlay.match.record_slice import RecordSlice, keep
from overlay.output.batch_builder import OutputTopic
from overlay.state.shard_state import ConsumerId
from overlay.subject import Pattern
from tests.consumer.driver import START, configure
from tests.oracle.batches import Record
from tests.oracle.push import TOKEN, Token, parse_token
from tests.output.pressing import RULE, Settings, decode, make_buffer, make_records

STEP = 1_000_000


def make_pieces(records: Sequence[Record]) -> list[RecordSlice]:
    """All of the records, as a stream of one partition gives them."""
    addressing = Addressing(RULE, [Pattern.parse(">")])
    pieces = []
    for piece in addressing.read("source", 0, np.frombuffer(make_buffer(records), np.uint8), 0):
        assert isinstance(piece, Addressed)
        rows = np.flatnonzero(piece.codes >= 0)
        if rows.size:
            pieces.append(keep(piece, rows, piece.records.offset[rows] + 1))
    return pieces


def letters_output_topic() -> OutputTopic:
    return Settings().make_output_topic()


class Office:
    """`sent`: the tokens of all deliveries; `records`: of the machine, as they were written; `beyond`: for the next step."""

    def __init__(
        self,
        count: int,
        *,
        size: int = 50,
        record_cache: RecordCache | None = None,
        incarnation: str = "",
        **fields: Any,
    ) -> None:
        self.config = configure(**fields)
        self.incarnation = incarnation
        self.now = START
        self.log = make_records(count, size)
        self.record_cache = record_cache
        self.output_topic = Settings().make_output_topic()
        self.sent: list[Token] = []
        self.records: list[bytes] = []
        self.works: list[Work] = []
        self.gone: set[int] = set()
        self.recalled = 0
        self.beyond: dict[ConsumerId, int] = {}
        self.sit(())

    def sit(self, records: Iterable[bytes]) -> None:
        """Begin with what is remembered."""
        letters = letters_output_topic() if self.config.dead_letter else None
        beginning = Beginning(records=list(records), incarnation=self.incarnation)
        self.slot: ConsumerSlot = slot(self.config, beginning, self.now, self.output_topic, letters)
        self.dispatcher = Dispatcher({self.config.id: self.slot}, EffectEncoder("p"), self.record_cache)

    @property
    def hold(self) -> int | None:
        """The first stream sequence that was offered and is not delivered."""
        offers = self.slot.machine.state.offers
        return offers.peek()[0] if offers.count else None

    def offer(self, first: int = 1, last: int | None = None) -> None:
        records = [r for r in self.log if first <= r.offset + 1 <= (last or len(self.log))]
        pieces = make_pieces(records)
        self.step(offers=[Offer(self.config.id, piece, np.arange(len(piece))) for piece in pieces])

    def step(
        self, offers: Sequence[Offer] = (), said: Sequence[AckBatch | Event] = (), *, up_to: int | None = None
    ) -> Work:
        """One step; `up_to`: how far the acks have been read, now when not given."""
        self.now += STEP
        acks: Mapping[str, int] = {"S": self.now if up_to is None else up_to}
        beyond, self.beyond = self.beyond, {}
        self.dispatcher.take_in(offers, {self.config.id: said} if said else {}, acks, self.now, beyond)
        wanted = self.dispatcher.find_wanted().get("S", np.empty(0, np.int64))
        there = [self.log[s - 1] for s in wanted.tolist() if s not in self.gone]
        self.recalled += len(there)
        lost = np.array([s for s in wanted.tolist() if s in self.gone], np.int64)
        work = self.dispatcher.give_out([("S", piece) for piece in make_pieces(there)], {"S": lost}, self.now)
        self.records = [] if work.is_checkpoint else self.records
        self.records += work.records.values()
        self.works.append(work)
        for _, outgoing in work.batches:
            if outgoing.topic == "out":
                self.sent += (parse_token(dict(r.headers)[TOKEN] or b"") for r in decode(outgoing).records)
        return work

    def settle(self, most: int = 1000) -> None:
        """Steps until nothing is left to do now."""
        for _ in range(most):
            if self.dispatcher.next_at > self.now + STEP:
                return
            self.step()
        raise AssertionError("the desk does not come to rest")

    def ack(self, *sequences: int, verb: Verb = Verb.ACK) -> None:
        last = {token.sequence: token.consumer_sequence for token in self.sent}
        columns = np.array(sequences), np.array([last.get(s, 1) for s in sequences]), np.ones(len(sequences), np.int64)
        self.step(said=[AckBatch(verb, *columns)])
        self.settle()

    def bind(self) -> None:
        self.step(said=[Bound()])

    def pass_time(self, span: int) -> None:
        self.now += span
        self.settle()
