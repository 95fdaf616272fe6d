"""The intake of an output topic's reader: a member of its reader group in a thread, and the sender
of its acks.

The thread has a reference to the message buffer but not to the reader. So a reader that is not used
any more is garbage-collected, and its finalizer ends the thread. At the interpreter's exit the same
finalizer does so.
"""

from __future__ import annotations

import threading
import weakref
from enum import StrEnum

from overlay.kafka.properties import Properties

from .ack_answers import AckAnswers
from .ack_sender import AckSender
from .membership import HeartbeatsMissed, Member
from .message_buffer import MessageBuffer
from .target import Target


class OnSilence(StrEnum):
    """What happens when heartbeats of the consumer are missing, if it sends any: with FLAG only `is_silent` becomes true,
    with RAISE the iteration also ends with HeartbeatsMissed.
    """

    FLAG = "flag"
    RAISE = "raise"


class RecordIntake:
    """Two running threads for one consumer: one reads its output topic into `message_buffer`, as a
    member of the reader group; the other sends acks. They start with the construction.

    `ack_topic`: where acks go. `answers`: the listener for answers to them. `prefetch`: about how many records may
    wait in `message_buffer` before receiving stops. `is_alone`: no other member can be in the group.
    """

    def __init__(
        self,
        kafka: Properties,
        target: Target,
        ack_topic: str,
        answers: AckAnswers,
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
        # after the start: while the process ends no thread starts, and there would be nothing to
        # wait for
        self._finalizer = weakref.finalize(self, _end, self._work, thread)

    @property
    def is_silent(self) -> bool:
        """Whether heartbeats of the consumer are missing now; False if it sends none."""
        return self._work.is_silent

    @property
    def is_paused(self) -> bool:
        """Whether fetching is paused, because the message buffer has had no room for a while."""
        return self._work.member.is_paused

    @property
    def partitions(self) -> frozenset[int]:
        """Partitions of the output topic that are assigned to this member of the group."""
        return frozenset(self._work.member.assigned)

    @property
    def has_joined(self) -> bool:
        """Whether the reader group has assigned partitions to this member at least once, even if it was none."""
        return self._work.member.has_joined

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Commit how far messages were handed out, leave the group, send the queued acks, and wait
        for the end of both threads.

        May be called again, and from another thread.
        """
        self._finalizer()


class _Work:
    """The work of a RecordIntake's receiving thread. It does not refer to the RecordIntake, so that this can be
    garbage-collected while the thread runs.
    """

    def __init__(self, member: Member, acks: AckSender, message_buffer: MessageBuffer, on_silence: OnSilence) -> None:
        self.member, self._acks, self._message_buffer, self._on_silence = member, acks, message_buffer, on_silence
        self.stop = threading.Event()
        self.is_silent = False

    def run(self) -> None:
        """Run the member until it stops, then send the queued acks and end the message buffer. An
        error of the member ends the buffer and is raised where messages are taken, not here.
        """
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
    # the garbage collector may run in any thread, also in this one
    if thread is not threading.current_thread():
        thread.join()
