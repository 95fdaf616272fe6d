"""What a reader of an output topic holds: a member of its group in a thread of its own, and the way for its acks.

The thread knows the message buffer and never who takes from it. So a reader that nobody holds any more is collected,
and the finalizer ends the thread; at the interpreter's exit the same finalizer does.
"""

from __future__ import annotations

import threading
import weakref
from enum import StrEnum

from overlay.kafka.connection import Properties

from .ack_answers import Answers
from .ack_sender import AckSender
from .membership import HeartbeatsMissed, Member
from .message_buffer import MessageBuffer
from .target import Target


class OnSilence(StrEnum):
    """What comes of missed heartbeats, where the consumer sends any: `is_silent` of the subscription, or an error."""

    FLAG = "flag"
    RAISE = "raise"


class Intake:
    """Receives from now on. `prefetch`: records that may wait to be taken from `message_buffer`; `is_alone`: as Member's."""

    def __init__(
        self,
        kafka: Properties,
        target: Target,
        ack_topic: str,
        answers: Answers,
        *,
        prefetch: int,
        on_silence: OnSilence = OnSilence.FLAG,
        is_alone: bool = False,
    ) -> None:
        self.message_buffer = MessageBuffer(prefetch)
        self.acks = AckSender(kafka, ack_topic, target.head, target.policy, answers, self.message_buffer.end)
        self._work = _Work(
            Member(kafka, target, self.message_buffer, is_alone=is_alone), self.acks, self.message_buffer, on_silence
        )
        thread = threading.Thread(target=self._work.run, name="overlay-subscription", daemon=True)
        thread.start()
        # behind the start: a process that ends starts no thread, and nothing could be waited for
        self._finalizer = weakref.finalize(self, _end, self._work, thread)

    @property
    def is_silent(self) -> bool:
        return self._work.is_silent

    @property
    def is_paused(self) -> bool:
        return self._work.member.is_paused

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._work.member.assigned)

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Send the acks that are under way, commit, and leave the group. May be called again, and from another thread."""
        self._finalizer()


class _Work:
    """What the thread runs."""

    def __init__(self, member: Member, acks: AckSender, message_buffer: MessageBuffer, on_silence: OnSilence) -> None:
        self.member, self._acks, self._message_buffer, self._on_silence = member, acks, message_buffer, on_silence
        self.stop = threading.Event()
        self.is_silent = False

    def run(self) -> None:
        end: BaseException | None = None
        try:
            self.member.run(self.stop, self._hear_silence)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that takes the messages
            end = error
        self._acks.close()
        self._message_buffer.end(end)

    def _hear_silence(self, is_silent: bool) -> None:
        self.is_silent = is_silent
        if is_silent and self._on_silence is OnSilence.RAISE:
            raise HeartbeatsMissed("no message and no heartbeat has come for more than two idle_heartbeats")


def _end(work: _Work, thread: threading.Thread) -> None:
    work.stop.set()
    # the collector may run in any thread, in this one too
    if thread is not threading.current_thread():
        thread.join()
