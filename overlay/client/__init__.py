"""The overlay's client library.

Records of streams and topics as Arrow batches, without a service (docs/reading.md). Messages of
consumers, acked one by one, and consumers created and changed by request (docs/client.md).

Names are imported at their first use: a program that only sends requests does not wait for Arrow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import ArgumentConflict, BadQuestion, UnknownArgument
    from .client import Client, UnknownStream, open_client
    from .control.consumer_info import ConsumerInfo, FiltersDiffer
    from .control.control import Control
    from .control.inbox import NoAnswer, NoService
    from .control.refusals import Refused
    from .read.columns import SCHEMA
    from .read.question import Question
    from .read.reader import Progress
    from .read.reading import AsyncReading, Reading
    from .subscribe.ack_answers import AckTimeout
    from .subscribe.ack_sender import Closed
    from .subscribe.intake import OnSilence
    from .subscribe.membership import HeartbeatsMissed
    from .subscribe.message import AlreadySettled, AsyncMessage, Delivered, Message, Metadata, NoAckWanted
    from .subscribe.order import BadOrder, OrderState
    from .subscribe.ordered import OrderedConsumer
    from .subscribe.pulling import PullConsumer
    from .subscribe.subscription import Subscription
    from .subscribe.target import UnknownConsumer
    from .turns import ConcurrentIteration

__all__ = [
    "SCHEMA",
    "AckTimeout",
    "AlreadySettled",
    "ArgumentConflict",
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
    "NoService",
    "OnSilence",
    "OrderState",
    "OrderedConsumer",
    "Progress",
    "PullConsumer",
    "Question",
    "Reading",
    "Refused",
    "Subscription",
    "UnknownArgument",
    "UnknownConsumer",
    "UnknownStream",
    "open_client",
]

_HOMES = {
    "AckTimeout": ".subscribe.ack_answers",
    "AlreadySettled": ".subscribe.message",
    "ArgumentConflict": ".arguments",
    "AsyncMessage": ".subscribe.message",
    "AsyncReading": ".read.reading",
    "BadOrder": ".subscribe.order",
    "BadQuestion": ".arguments",
    "Client": ".client",
    "Closed": ".subscribe.ack_sender",
    "ConcurrentIteration": ".turns",
    "ConsumerInfo": ".control.consumer_info",
    "Control": ".control.control",
    "Delivered": ".subscribe.message",
    "FiltersDiffer": ".control.consumer_info",
    "HeartbeatsMissed": ".subscribe.membership",
    "Message": ".subscribe.message",
    "Metadata": ".subscribe.message",
    "NoAckWanted": ".subscribe.message",
    "NoAnswer": ".control.inbox",
    "NoService": ".control.inbox",
    "OnSilence": ".subscribe.intake",
    "OrderState": ".subscribe.order",
    "OrderedConsumer": ".subscribe.ordered",
    "Progress": ".read.reader",
    "PullConsumer": ".subscribe.pulling",
    "Question": ".read.question",
    "Reading": ".read.reading",
    "Refused": ".control.refusals",
    "SCHEMA": ".read.columns",
    "Subscription": ".subscribe.subscription",
    "UnknownArgument": ".arguments",
    "UnknownConsumer": ".subscribe.target",
    "UnknownStream": ".client",
    "open_client": ".client",
}
"""By name: the module of this package that has it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
