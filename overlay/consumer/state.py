"""The plain state of a machine: what it knows of its consumer between two events.

Only the machine (machine.py) changes it. Everything else reads it: what can be asked of a consumer
(info.py), when its next tick is due (timer.py), which acks count (settling.py), and what is written
down of it (snapshot.py).

Each part has an object of its own that knows nothing of the others. `window` has everything between
a first delivery and its settling: pending messages, deadlines, ack floors. `offers` has the
messages that match and were not delivered yet. `waiting` has the pull requests. `pace` has what
slows deliveries down. `lineage` knows which incarnation gave out which consumer sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlay.config.consumer import AckPolicy, ConsumerConfig, Interest

from .deadlines import NEVER
from .endings import Sampling
from .events import Paused
from .lineage import Lineage
from .pace import BURST, Pace
from .queues import Offers
from .table import TRANSITIONS, Phase
from .waiting import Waiting
from .window import Window


@dataclass(slots=True, eq=False, kw_only=True)
class MachineState:
    """The state of one machine. Times are ns since 1970."""

    config: ConsumerConfig
    """With its defaults filled in."""
    phase: Phase
    lineage: Lineage
    window: Window
    offers: Offers
    waiting: Waiting
    pace: Pace
    sampling: Sampling
    up_to: int
    """The last stream sequence that the caller has searched for matching messages."""
    beyond: int = 0
    """How many messages match above `up_to`."""
    paused_until: int = 0
    delivered_at: int = 0
    acked_at: int = 0
    """Times of the last delivery and of the last ack; 0 for never."""
    active_at: int
    """When the consumer was last used; inactive_threshold counts from here."""
    is_removal_said: bool = False
    """Whether the machine has asked for the consumer's removal since it was last used."""
    beat_at: int
    """When the next heartbeat of the deliver subject is due; NEVER without heartbeats."""
    ready_at: int = NEVER
    """When the next message may go out that the pace or the limit of a step holds back."""
    armed_at: int = NEVER
    """The time of the next Ticked that the machine has asked for."""
    ticked_at: int = 0
    """The time of the last Ticked."""
    blocked_until: int | None = None
    """`acks_up_to` of the last Ticked: up to where acks had been read. None if they arrive without
    delay.
    """

    @property
    def num_pending(self) -> int:
        """Number of messages that match and were not delivered, as far as the caller has reported
        them.
        """
        return self.offers.count + self.beyond

    @property
    def position(self) -> int:
        """The last stream sequence that was processed: delivered, or found not to match."""
        return self.offers.peek()[0] - 1 if self.offers.count else self.up_to


def begin(
    config: ConsumerConfig,
    now: int,
    *,
    start: int = 1,
    sequence: int = 0,
    replay_until: int = 0,
    burst: int = BURST,
    incarnation: str = "",
) -> MachineState:
    """Return the state with which a machine begins if nothing is stored of its consumer. A push
    consumer with `interest: group` begins without a reader, and a pause in the config that ends
    after `now` begins at once.

    `now`: ns since 1970.

    `start`: the first stream sequence that may be delivered (index/start_positions.py). `sequence`:
    the last consumer sequence that was given out before. `replay_until`: the stream's last sequence
    when the consumer was created, for replay original. `burst`: bytes that rate_limit_bps lets
    through at once. `incarnation`: the name of this ownership in flow control requests and in ack
    tokens (lineage.py). Tokens are of version 1 and do not contain it if it is empty, or if the
    consumer has neither acks nor pull requests: no record of an ack topic names a delivery of it
    then.
    """
    awaits_reader = config.is_push and config.interest is not Interest.ALWAYS
    phase, paused_until = Phase.ASLEEP if awaits_reader else Phase.AWAKE, 0
    if config.pause_until is not None and config.pause_until > now:
        phase, paused_until = TRANSITIONS[phase][Paused], config.pause_until
    takes_tokens = config.ack_policy is not AckPolicy.NONE or not config.is_push
    return MachineState(
        config=config,
        phase=phase,
        lineage=Lineage(incarnation if takes_tokens else ""),
        window=Window(config, start, sequence),
        offers=Offers(),
        waiting=Waiting(config),
        pace=Pace(config, replay_until, burst, incarnation),
        sampling=Sampling(config.sample_freq),
        up_to=start - 1,
        paused_until=paused_until,
        active_at=now,
        beat_at=now + config.idle_heartbeat if config.idle_heartbeat else NEVER,
    )
