"""The overlay in a program of one's own.

Records of streams and topics as Arrow batches, without a service (docs/reading.md); messages of consumers, to be acked one by
one, and consumers made and changed by request (docs/client.md).
"""

from .answers import AckTimeout
from .arguments import UnknownArgument
from .columns import SCHEMA
from .control import ConsumerInfo, Control, FiltersDiffer
from .door import Client, UnknownStream, open_client
from .inbox import NoAnswer
from .intake import OnSilence
from .membership import HeartbeatsMissed
from .message import AlreadySettled, AsyncMessage, Delivered, Message, Metadata, NoAckWanted
from .order import BadOrder, OrderState
from .ordered import OrderedConsumer
from .question import BadQuestion, Question
from .reader import Progress
from .reading import AsyncReading, Reading
from .refusals import Refused
from .sender import Closed
from .subscribe import Subscription
from .target import UnknownConsumer
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
