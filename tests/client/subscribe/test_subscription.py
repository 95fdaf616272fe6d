"""Subscriptions on a real broker: what is handed out, what is said of it, and what the group has committed."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from itertools import islice

import pytest
from confluent_kafka import Producer

from overlay.client.subscribe.ack_sender import Closed
from overlay.client.subscribe.acking import Head
from overlay.client.subscribe.intake import OnSilence
from overlay.client.subscribe.membership import HeartbeatsMissed
from overlay.client.subscribe.message import AsyncMessage, Delivered, Message, NoAckWanted
from overlay.client.subscribe.subscription import Subscription
from overlay.config.consumer import AckPolicy
from overlay.consumer.acks import Verb
from overlay.consumer.pulls import StatusText, idle, name_last
from overlay.errors import SourceUnavailable
from tests.client.deliveries import DEADLINE_S, Output, list_subscribing, make_output, read_numbers
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_thread_of_a_subscription_is_left")


@pytest.fixture
def output(bootstrap: str, new_topic: NewTopicFixture) -> Output:
    return make_output(bootstrap, new_topic)


def test_every_message_once_and_every_ack_arrives(output: Output) -> None:
    output.deliver(3_000)
    with output.subscribe() as messages:
        found = []
        for message in islice(messages, 3_000):
            found.append(message.metadata.consumer_sequence)
            message.ack()
    assert found == list(range(1, 3_001))
    acks = output.read_acks()
    assert acks.acked == found
    assert len(acks.records) < 100  # runs, not single acks
    assert output.read_committed_offsets() == {0: 3_000}


async def test_the_same_in_a_loop(output: Output) -> None:
    output.deliver(500)
    found = []
    async with output.subscribe() as messages:
        async for message in messages:
            found.append(int(message.data))
            if len(found) == 100:
                await message.nak(2.5)
            elif len(found) == 200:
                await message.term("broken")
            else:
                await message.ack()
            if len(found) == 500:
                break
    acks = output.read_acks()
    assert found == list(range(1, 501))
    assert sorted(acks.acked) == [number for number in found if number not in (100, 200)]
    assert acks.words == [(Verb.NAK, 100, 2_500_000_000, ""), (Verb.TERM, 200, None, "broken")]


async def take_one(messages: Subscription) -> AsyncMessage:
    return await anext(aiter(messages))


async def test_a_loop_goes_on_while_nothing_comes(output: Output) -> None:
    async with output.subscribe() as messages:
        taking = asyncio.create_task(take_one(messages))
        while not (await asyncio.to_thread(output.read_committed_offsets)) and not taking.done():
            await asyncio.sleep(0)
            await asyncio.to_thread(output.deliver, 1)
        assert isinstance(await asyncio.wait_for(taking, DEADLINE_S), AsyncMessage)


def test_acks_do_not_wait_for_the_end(output: Output) -> None:
    output.deliver(3)
    with output.subscribe() as messages:
        for message in islice(messages, 2):
            message.ack()
        output.await_acks(lambda acks: acks.acked == [1, 2], "both acks are there while nothing more is asked for")


def is_committed(output: Output, offset: int) -> bool:
    return output.read_committed_offsets() == {0: offset}


def test_what_is_handed_out_is_committed_with_what_is_in_hand(output: Output) -> None:
    output.deliver(10)
    with output.subscribe() as messages:
        iterator = iter(messages)
        for number in (1, 4, 10):
            while int(next(iterator).data) < number:
                pass
            # its ack_wait begins while it is being worked on
            wait_until(partial(is_committed, output, number), DEADLINE_S, f"offset {number} is committed")


def test_without_acks_the_message_in_hand_is_not_passed(output: Output) -> None:
    output.policy = AckPolicy.NONE
    output.deliver(10)
    with output.subscribe() as messages:
        iterator = iter(messages)
        next(iterator).ack()
        with pytest.raises(NoAckWanted):
            next(iterator).nak()
        with pytest.raises(NoAckWanted):
            next(iterator).ack_sync()
        wait_until(lambda: output.read_committed_offsets() == {0: 2}, DEADLINE_S, "two are done with")
    assert output.read_committed_offsets() == {0: 2}
    assert output.read_acks().records == []
    with output.subscribe() as messages:
        assert read_numbers(islice(messages, 8)) == list(range(3, 11))


def test_who_has_read_all_has_passed_the_markers_of_transactions(output: Output) -> None:
    producer = Producer({**output.kafka, "transactional.id": output.topic})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    token = b"$JS.ACK.ORDERS.late.1.1.1.1700000000000000000.0"
    producer.produce(output.topic, b"1", headers=[("Nats-Subject", b"t.oslo"), ("Nats-Reply-To", token)])
    producer.commit_transaction(DEADLINE_S)
    with output.subscribe() as messages:
        iterator = iter(messages)
        next(iterator).ack()
        # comes back for more, and finds that there is nothing
        waiting = threading.Thread(target=lambda: list(iterator), daemon=True)
        waiting.start()
        wait_until(partial(is_committed, output, 2), DEADLINE_S, "the marker is passed")
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()


def test_all_is_acked_by_the_latest(output: Output) -> None:
    output.policy = AckPolicy.ALL
    output.deliver(200)
    with output.subscribe() as messages:
        for message in islice(messages, 200):
            message.ack()
    acked = output.read_acks().acked
    assert acked[-1] == max(acked) == 200
    assert len(acked) < 50


def test_what_was_not_handed_out_goes_to_the_next(output: Output) -> None:
    output.deliver(100)
    with output.subscribe() as messages:
        assert read_numbers(islice(messages, 30)) == list(range(1, 31))
    assert output.read_committed_offsets() == {0: 30}
    with output.subscribe() as messages:
        assert read_numbers(islice(messages, 70)) == list(range(31, 101))


def test_a_loop_goes_on_where_the_last_one_was_left(output: Output) -> None:
    output.deliver(50)
    with output.subscribe() as messages:
        assert read_numbers(islice(messages, 7)) == list(range(1, 8))
        assert read_numbers(islice(messages, 13)) == list(range(8, 21))
        assert read_numbers(islice(messages, 30)) == list(range(21, 51))


def test_others_on_the_same_topic_are_not_seen(output: Output) -> None:
    other = Head("ORDERS", "later")
    for _ in range(3):
        output.deliver(5)
        output.deliver(5, other)
        output.say(idle(5, 5))
        output.say(idle(5, 5), head=other)
        output.produce_stray()
    output.deliver(1)
    with output.subscribe() as messages:
        found = read_numbers(islice(messages, 16))
    assert found == [*range(1, 6), *range(11, 16), *range(21, 26), 31]


def test_flow_control_is_answered_when_all_before_it_was_taken(output: Output) -> None:
    output.deliver(20)
    output.say(StatusText(100, "FlowControl Request"), "$JS.FC.ORDERS.late.0001")
    output.say(StatusText(100, "FlowControl Request"), "$JS.FC.ORDERS.other.0001", Head("ORDERS", "other"))
    output.deliver(1)
    with output.subscribe() as messages:
        for message in islice(messages, 20):
            message.ack()
        output.await_acks(lambda acks: len(acks.acked) == 20, "all are acked")
        assert output.read_acks().flows == []
        assert int(next(iter(messages)).data) == 21
        acks = output.await_acks(lambda acks: bool(acks.flows), "the request is answered")
    assert acks.flows == [("$JS.FC.ORDERS.late.0001", b"")]


def test_with_flow_control_acks_an_answer_says_what_was_taken(bootstrap: str, new_topic: NewTopicFixture) -> None:
    output = make_output(bootstrap, new_topic)
    output.policy = AckPolicy.FLOW_CONTROL
    output.deliver(20)
    output.say(StatusText(100, "FlowControl Request", name_last(20, 35)), "$JS.FC.ORDERS.late.0001")
    output.deliver(1)
    with output.subscribe() as messages:
        for message in islice(messages, 20):
            message.ack()  # which needs no thought of the policy, and says nothing
        with pytest.raises(NoAckWanted, match="flow_control"):
            next(iter(messages)).nak()
        acks = output.await_acks(lambda acks: bool(acks.flows), "the request is answered")
    assert acks.flows == [("$JS.FC.ORDERS.late.0001", b'+ACK {"consumer_seq":[[1,20]]}')]
    assert (acks.acked, acks.words) == ([], [])


def test_what_the_application_does_not_want_is_acked(output: Output) -> None:
    output.deliver(100)

    def is_wanted(message: Delivered) -> bool:
        number = int(message.data)
        if number == 50:
            assert isinstance(message, Message)
            message.term("not for this office")
        return number % 10 == 0 and number != 50

    with output.subscribe(is_wanted) as messages:
        assert read_numbers(islice(messages, 9)) == [10, 20, 30, 40, 60, 70, 80, 90, 100]
    acks = output.read_acks()
    assert acks.acked == [number for number in range(1, 101) if number % 10]
    assert acks.words == [(Verb.TERM, 50, None, "not for this office")]


def test_a_test_that_fails_is_the_applications_matter(output: Output) -> None:
    output.deliver(3)

    def is_wanted(message: Delivered) -> bool:
        return 6 // (int(message.data) - 2) > 0

    with output.subscribe(is_wanted) as messages:
        with pytest.raises(ZeroDivisionError):
            list(islice(messages, 3))
        assert read_numbers(islice(messages, 1)) == [3]
    assert output.read_acks().acked == [1]


@pytest.mark.parametrize("prefetch", [1, 50])
def test_what_is_not_taken_is_not_fetched(output: Output, prefetch: int) -> None:
    output.deliver(5_000)
    with output.subscribe(prefetch=prefetch) as messages:
        iterator = iter(messages)
        next(iterator)
        # past the patience: fetching is paused, and goes on where it was
        wait_until(lambda: messages.is_paused, DEADLINE_S, "fetching is paused")
        assert read_numbers(islice(iterator, 4_999)) == list(range(2, 5_001))


def test_silence_is_told(output: Output) -> None:
    output.heartbeat_s = 0.3
    output.deliver(1)
    with output.subscribe() as messages:
        next(iter(messages)).ack()
        wait_until(lambda: messages.is_silent, DEADLINE_S, "heartbeats are missed")

        def are_back() -> bool:
            # said again where this thread had no turn before the silence began anew
            output.say(idle(1, 1))
            return not messages.is_silent

        wait_until(are_back, DEADLINE_S, "they are back")


def test_silence_ends_the_iteration_where_it_should(output: Output) -> None:
    output.heartbeat_s = 0.2
    output.deliver(2)
    acked: set[int] = set()

    def ends() -> bool:
        """Read until silence ends it. On a busy machine it may begin before both messages have come."""
        with output.subscribe(on_silence=OnSilence.RAISE) as messages, pytest.raises(HeartbeatsMissed):
            for message in messages:
                message.ack()
        acked.update(output.read_acks().acked)
        return acked == {1, 2}

    wait_until(ends, DEADLINE_S, "both are acked")


def test_an_ack_is_answered(output: Output) -> None:
    """The service's part is done by hand."""
    output.deliver(2)
    with output.subscribe() as messages:
        message, other = islice(messages, 2)
        with pytest.raises(TimeoutError, match="no answer"):
            other.ack_sync(0.2)
        answering = threading.Thread(target=answer_next, args=(output, 2))
        answering.start()
        message.ack_sync(DEADLINE_S)
        answering.join()
        assert message.is_settled and not other.is_settled
        other.ack()


def answer_next(output: Output, count: int) -> None:
    acks = output.await_acks(lambda acks: len(acks.records) == count, f"{count} acks")
    record = acks.records[-1] if acks.acked[-1] == 1 else acks.records[acks.acked.index(1)]
    producer = SureProducer(output.bootstrap)
    assert record.header(b"Overlay-Reply-Topic") == output.reply_topic.encode()
    producer.produce(output.reply_topic, b"", record.header(b"Overlay-Correlation-Id"))
    producer.produce(output.reply_topic, b"", b"another client's")
    assert producer.flush(DEADLINE_S) == 0


async def test_many_acks_wait_for_answers_together(output: Output) -> None:
    output.deliver(20)
    async with output.subscribe() as messages:
        taken = []
        async for message in messages:
            taken.append(message)
            if len(taken) == 20:
                break
        waiting = [asyncio.create_task(message.ack_sync(DEADLINE_S)) for message in taken]
        acks = await asyncio.to_thread(output.await_acks, lambda acks: len(acks.records) == 20, "all ask")
        producer = SureProducer(output.bootstrap)
        for record in reversed(acks.records):
            producer.produce(output.reply_topic, b"", record.header(b"Overlay-Correlation-Id"))
        producer.flush(DEADLINE_S)
        await asyncio.gather(*waiting)
    assert all(message.is_settled for message in taken)


def test_after_the_end_nothing_is_settled_in_silence(output: Output) -> None:
    output.deliver(3)
    with output.subscribe() as messages:
        first, second = islice(messages, 2)
        first.ack()
    with pytest.raises(Closed):
        second.ack()
    with pytest.raises(Closed):
        second.nak()
    messages.close()
    assert messages.is_closed
    assert output.read_acks().acked == [1]
    assert list(messages) == []


def test_one_without_references_ends(output: Output) -> None:
    output.deliver(5)
    for message in output.subscribe():
        message.ack()
        if int(message.data) == 5:
            break
    assert list_subscribing() == []
    assert output.read_acks().acked == [1, 2, 3, 4, 5]


def test_a_topic_may_come_later(bootstrap: str, new_topic: NewTopicFixture) -> None:
    output = make_output(bootstrap, new_topic)
    output.topic += "-later"
    with output.subscribe() as messages:
        found: list[int] = []
        taking = threading.Thread(target=lambda: found.extend(read_numbers(islice(messages, 1))))
        taking.start()
        make_topic(bootstrap, output.topic)
        output.deliver(1)
        taking.join(DEADLINE_S)
        assert found == [1]


def test_acks_that_do_not_arrive_end_the_iteration(output: Output) -> None:
    output.ack_topic += "-that-is-not-there"
    output.deliver(1)
    with output.subscribe() as messages:
        iterator = iter(messages)
        next(iterator).ack()
        with pytest.raises(SourceUnavailable, match="an ack was not taken"):
            next(iterator)


def drain(messages: Subscription, count: int) -> list[int]:
    """So many messages by loops that end when nothing comes: on a busy machine the first may end too early."""
    found: list[int] = []

    def has_all() -> bool:
        found.extend(read_numbers(iter(messages)))
        return len(found) >= count

    wait_until(has_all, DEADLINE_S, f"{count} have come")
    return found


def test_a_loop_ends_when_nothing_comes(output: Output) -> None:
    """Statuses are nothing; messages that `where` rejects are something. The next loop waits anew."""
    output.deliver(40)
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(0.1):
            output.say(idle(40, 40))

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with output.subscribe(lambda message: int(message.data) % 10 == 0, idle=0.5) as messages:
            assert drain(messages, 4) == [10, 20, 30, 40]
            assert not messages.is_closed and list(messages) == []
            output.deliver(10)
            assert drain(messages, 1) == [50]
    finally:
        is_over.set()
        beating.join()


async def test_a_loop_without_partitions_ends_as_well(output: Output) -> None:
    """A topic of one partition has nothing for a second member of the group, which is not to wait for ever."""
    output.deliver(5)
    async with output.subscribe() as first:
        messages = aiter(first)
        assert int((await anext(messages)).data) == 1
        async with output.subscribe(idle=0.5) as second:
            assert [message async for message in second] == []
            assert second.partitions == frozenset()
