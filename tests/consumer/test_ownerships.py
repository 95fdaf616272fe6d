"""Owners of a consumer come and go while an application acks: each ack counts for what it names, and for nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from overlay.consumer.acks import RangeAck, Token, Verb, parse_ack, write_head, write_ranges
from overlay.consumer.events import Acked, Event, RangeAcked, Termed, Ticked, read_ack
from overlay.consumer.lineage import RECENT
from overlay.consumer.snapshot import decode
from overlay.dispatch.ack_decoder import AckBatch
from overlay.dispatch.served_consumer import ConsumerSlot
from tests.consumer.driver import SECOND, some
from tests.consumer.owners import AT_LEAST, EXACT, WAIT, list_pending, offer, restore, tell
from tests.oracle.lineage import History


class Ownerships(RuleBasedStateMachine):
    """A machine and an application that acks late and twice, beside the history of all deliveries.

    Whatever happens, a message is settled only if the application has acked it in this life of the consumer, and it is
    settled if the application has acked a delivery that was committed.
    """

    @initialize(policy=st.sampled_from(["explicit", "explicit", "all"]), delivery=st.sampled_from([EXACT, AT_LEAST]))
    def begin(self, policy: str, delivery: str) -> None:
        self.policy, self.delivery, self.owner, self.now = policy, delivery, 0, 0
        self.is_fresh = True
        self.deliveries: list[Token] = []
        self.said: list[Event | AckBatch] = []
        self.make()

    @rule()
    def make(self) -> None:
        """The consumer is made, again if it was there."""
        self.records: list[bytes] = []
        self.history, self.lifetime = History(self.delivery == AT_LEAST), list[Token]()
        # tokens of version 1 do not tell one life from another
        self.deliveries = [token for token in self.deliveries if token.incarnation]
        self.take_over()

    def take_over(self, incarnation: str | None = None) -> None:
        self.owner += 1
        by = f"7x{self.owner}-s" if incarnation is None else incarnation
        self.driver = restore(self.records, by, self.now, ack_policy=self.policy, delivery=self.delivery)
        self.said.clear()
        self.seen = 0

    @rule()
    def kill(self) -> None:
        """The next owner begins with what was committed, and reads the acks since then again."""
        self.now = self.driver.now
        said = list(self.said)
        self.history.kill()
        self.take_over()
        for each in said:
            self.hear(each)

    @precondition(lambda self: self.is_fresh)
    @rule(count=st.sampled_from([RECENT + 6, 300]))
    def restart(self, count: int) -> None:
        """Very many owners in turn deliver one message each, of which the first is acked late. It takes long, so it happens
        once."""
        self.is_fresh = False
        for _ in range(count):
            self.hand_over()
            self.offer([1])
        self.hand_over()
        # what is not pending any more may be forgotten by now
        self.deliveries = [t for t in self.deliveries if (t.incarnation, t.consumer_seq) not in self.history.lost]
        token = self.deliveries[-count]
        self.say(Acked(some(token.stream_seq), token.consumer_seq, "", token.incarnation), [token])

    def hand_over(self, incarnation: str | None = None) -> None:
        self.commit(is_checkpoint=incarnation is None)
        self.now = self.driver.now
        self.take_over(incarnation)

    @rule(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=4), has_names=st.booleans())
    def go_back(self, gaps: list[int], has_names: bool) -> None:
        """A version that knows no incarnations serves for a while, or one whose names of them are no secrets."""
        self.hand_over(f"9x{self.owner}" if has_names else "")
        for gap in gaps:
            self.offer([gap])
            self.commit(is_checkpoint=False)
            named = {"incarnations", "run"} & {*decode(self.records[-1]).head}
            assert named == ({"run"} if has_names else set())
        self.now = self.driver.now
        self.take_over()

    @rule(is_checkpoint=st.booleans())
    def commit(self, is_checkpoint: bool) -> None:
        if is_checkpoint or not self.records:
            self.records = [self.driver.machine.take_checkpoint()]
        else:
            self.records.append(self.driver.machine.take_delta())
        self.history.commit()
        self.said.clear()

    @rule(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def offer(self, gaps: list[int]) -> None:
        sequences = self.driver.last + np.cumsum(gaps)
        self.driver.last = int(sequences[-1])
        offer(self.driver, *sequences.tolist())
        self.note()

    @rule(span=st.sampled_from([1, 4, 11]))
    def wait(self, span: int) -> None:
        self.driver.now += span * SECOND
        self.driver.do(Ticked())
        self.note()

    @rule(data=st.data(), verb=st.sampled_from([Verb.ACK, Verb.ACK, Verb.NAK, Verb.PROGRESS, Verb.TERM]))
    def name_one(self, data: st.DataObject, verb: Verb) -> None:
        """The application says something of any delivery it ever had."""
        if self.deliveries:
            token = data.draw(st.sampled_from(self.deliveries))
            if verb is Verb.TERM and self.policy == "all":
                return
            event = read_ack(parse_ack(str(token).encode(), verb.value))  # type: ignore[arg-type]
            self.say(event, [token] if verb in (Verb.ACK, Verb.TERM) else [])

    @rule(data=st.data())
    def name_some(self, data: st.DataObject) -> None:
        """The same as columns, which a fetch of the ack topic becomes."""
        if self.deliveries:
            tokens = data.draw(st.lists(st.sampled_from(self.deliveries), min_size=1, max_size=5))
            names = (*sorted({token.incarnation for token in tokens}), "")
            sequences = some(*(token.stream_seq for token in tokens))
            consumer_seqs = some(*(token.consumer_seq for token in tokens))
            by = np.array([names.index(token.incarnation) for token in tokens])
            self.say(AckBatch(Verb.ACK, sequences, consumer_seqs, consumer_seqs, by, names=names), tokens)

    @rule(data=st.data())
    def name_range(self, data: st.DataObject) -> None:
        """The application acks all that one incarnation delivered between two deliveries."""
        if self.deliveries and self.policy == "explicit":
            one = data.draw(st.sampled_from(self.deliveries))
            others = [token for token in self.deliveries if token.incarnation == one.incarnation]
            last = data.draw(st.sampled_from([t for t in others if t.consumer_seq >= one.consumer_seq]))
            acked = [t for t in others if one.consumer_seq <= t.consumer_seq <= last.consumer_seq]
            head = write_head("S", "c", one.incarnation).encode()
            body = write_ranges([(one.consumer_seq, last.consumer_seq)], is_unnamed=not one.incarnation)
            parsed = parse_ack(head, body)
            assert isinstance(parsed, RangeAck)
            self.say(read_ack(parsed), acked)

    def say(self, what: Event | AckBatch, acked: list[Token]) -> None:
        self.said.append(what)
        # an application acks messages of this life or of another one; only those of this life may be settled
        self.history.acked |= {token.stream_seq for token in acked if token in self.lifetime}
        self.hear(what)

    def hear(self, what: Event | AckBatch) -> None:
        settle = self.history.ack_up_to if self.policy == "all" else self.history.ack
        if isinstance(what, AckBatch):
            kept, _ = ConsumerSlot(self.driver.machine).sift(what)
            for event in ConsumerSlot(self.driver.machine).list_events(kept):
                self.driver.do(event)
            settle([(name, seq) for name, rows in what.split() for seq in what.consumer_seqs[rows].tolist()])
        else:
            self.driver.do(what)
            if isinstance(what, Acked | Termed):
                settle([(what.incarnation or "", what.consumer_seq)])
            elif isinstance(what, RangeAcked):
                for first, last in what.ranges:
                    by = what.incarnation or ""
                    self.history.ack(((by, each) for each in range(first, last + 1)), by_range=True)
        self.note()

    def note(self) -> None:
        """Note what the machine has delivered."""
        sent = self.driver.sent()
        for sequence, consumer_seq, deliveries in sent[self.seen :]:
            by = self.driver.machine.state.lineage.incarnation
            token = Token("S", "c", deliveries, sequence, consumer_seq, incarnation=by)
            self.deliveries.append(token)
            self.lifetime.append(token)
            self.history.deliver(token.incarnation, consumer_seq, sequence)
        self.seen = len(sent)

    @invariant()
    def settles_what_was_acked(self) -> None:
        pending = set(list_pending(self.driver.machine))
        assert pending == self.history.now.pending
        settled = {message for message in self.history.now.given.values() if message not in pending}
        if self.policy == "explicit":
            assert settled <= self.history.acked
        else:
            assert max(settled, default=0) <= max(self.history.acked, default=0)

    def teardown(self) -> None:
        """What is delivered again and acked now is settled, whatever came before."""
        self.driver.now += 2 * WAIT
        self.driver.do(Ticked())
        self.note()
        for token in [t for t in self.deliveries if t.incarnation == f"7x{self.owner}-s"]:
            tell(self.driver, token)
        assert list_pending(self.driver.machine) == []


TestOwnerships = Ownerships.TestCase
TestOwnerships.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
