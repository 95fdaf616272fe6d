"""The overlay's client library.

Records of streams and topics as Arrow batches, without a service (docs/reading.md). Messages of
consumers, acked one by one, and consumers created and changed by request (docs/client.md).
"""

from .arguments import UnknownArgument
from .client import Client, UnknownStream, open_client
from .control.control import ConsumerInfo, Control, FiltersDiffer
from .control.inbox import NoAnswer
from .control.refusals import Refused
from .read.columns import SCHEMA
from .read.question import BadQuestion, Question
from .read.reader import Progress
from .read.reading import AsyncReading, Reading
from .subscribe.ack_answers import AckTimeout
from .subscribe.ack_sender import Closed
from .subscribe.intake import OnSilence
from .subscribe.membership import HeartbeatsMissed
from .subscribe.message import AlreadySettled, AsyncMessage, Delivered, Message, Metadata, NoAckWanted
from .subscribe.order import BadOrder, OrderState
from .subscribe.ordered import OrderedConsumer
from .subscribe.subscription import Subscription
from .subscribe.target import UnknownConsumer
from .turns import ConcurrentIteration

__all__ = [
    "SCHEMA",
    "AckTimeout",
    "AlreadySettled",
    "AsyncMessage",
    "AsyncReading",
    "BadOrder",
    "BadQuestion",
    "Client",
    "Closed",
    "ConcurrentIteration",
    "ConsumerInfo",
    "Control",
    "Delivered",
    "FiltersDiffer",
    "HeartbeatsMissed",
    "Message",
    "Metadata",
    "NoAckWanted",
    "NoAnswer",
    "OnSilence",
    "OrderState",
    "OrderedConsumer",
    "Progress",
    "Question",
    "Reading",
    "Refused",
    "Subscription",
    "UnknownArgument",
    "UnknownConsumer",
    "UnknownStream",
    "open_client",
]
