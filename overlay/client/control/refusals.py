"""One exception class for each of JetStream's errors, so that a program can catch what the overlay
refuses.

    from overlay.client.control.refusals import ConsumerAlreadyExists, Refused

All classes are made from one table of numbers and names. Codes, texts and the second numbers of
ADR-34 come from overlay/config/codes.py. An error that is not in the table is raised as `Refused`
itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlay.config.codes import ERRORS, ApiError
from overlay.control.requests import CONSUMER_NOT_FOUND
from overlay.errors import OverlayError

_NAMES = {
    10012: "ConsumerRefused",
    10013: "ConsumerNameInUse",
    10014: "ConsumerNotFound",
    10016: "DurableNameNotInSubject",
    10017: "ConsumerNameMismatch",
    10018: "DurableNameMissing",
    10020: "EphemeralWithDurableName",
    10025: "InvalidRequest",
    10026: "MaximumConsumersReached",
    10039: "JetStreamNotEnabled",
    10052: "BadConsumerName",
    10056: "StreamNameMismatch",
    10059: "StreamNotFound",
    10074: "ReplicasNotSupported",
    10079: "DeliverSubjectHasWildcards",
    10080: "PushMaxWaiting",
    10081: "DeliverSubjectCycle",
    10082: "MaxAckPendingWithoutAcks",
    10083: "HeartbeatTooSmall",
    10084: "PullRequiresExplicitAcks",
    10086: "PullRateLimit",
    10087: "MaxWaitingNegative",
    10088: "HeartbeatRequiresPush",
    10089: "FlowControlRequiresPush",
    10090: "DirectRequiresPush",
    10091: "DirectRequiresEphemeral",
    10093: "FilterOutsideStream",
    10094: "InvalidDeliverPolicy",
    10095: "InvalidSampling",
    10098: "WorkQueueRequiresExplicitAcks",
    10099: "WorkQueueMultipleUnfiltered",
    10100: "WorkQueueFilterNotUnique",
    10101: "WorkQueueRequiresDeliverAll",
    10102: "ConsumerNameTooLong",
    10103: "BadDurableName",
    10104: "ConsumerStoreFailed",
    10105: "ConsumerStillActive",
    10106: "DurableConfigDiffers",
    10107: "DescriptionTooLong",
    10108: "FlowControlNeedsHeartbeats",
    10112: "InvalidDeliverSubject",
    10114: "MaxBatchNegative",
    10115: "MaxExpiresTooSmall",
    10116: "MaxDeliverBelowBackoff",
    10119: "ConsumerOffline",
    10121: "MaxAckPendingTooLarge",
    10125: "MaxBatchTooLarge",
    10126: "ReplicasExceedStream",
    10127: "NameHasPathSeparator",
    10131: "CreateFilterMismatch",
    10132: "DurableAndNameDiffer",
    10133: "ReplicasNegative",
    10134: "ReplicasMustMatchStream",
    10135: "MetadataTooLarge",
    10136: "DuplicateFilterSubjects",
    10137: "MultipleFiltersNotAllowed",
    10138: "OverlappingFilterSubjects",
    10139: "EmptyFilter",
    10148: "ConsumerAlreadyExists",
    10149: "ConsumerDoesNotExist",
    10153: "InactiveThresholdTooLarge",
    10157: "PedanticMode",
    10159: "PriorityGroupMissing",
    10161: "PriorityGroupEmpty",
    10162: "InvalidPriorityGroup",
    10178: "PriorityGroupsRequirePull",
    10181: "InvalidAckPolicy",
    10182: "InvalidReplayPolicy",
    10183: "AckWaitNegative",
    10184: "BackoffNegative",
    10185: "RequiredApiLevel",
    10195: "ConsumerOfflineBecause",
    10196: "PriorityGroupsWithoutPolicy",
    10197: "PinnedTtlWithoutPolicy",
    10218: "FlowControlAcksRequirePush",
    10219: "FlowControlAcksRequireFlowControl",
    10220: "FlowControlAcksRequireMaxAckPending",
    10221: "FlowControlAcksRequireUnsetAckWait",
    10222: "FlowControlAcksRequireUnsetMaxDeliver",
}


class Refused(OverlayError):
    """The service refuses a request. The caller acts.

    `err_code` and `code` are JetStream's error number and status, such as 10014 and 404, 0 if
    unknown; `description` is its text. `hint` says what to do and may be empty.
    """

    err_code = 0
    code = 0

    def __init__(self, description: str, hint: str = "", *, err_code: int = 0, code: int = 0) -> None:
        self.description, self.hint = description, hint
        self.err_code, self.code = err_code or self.err_code, code or self.code
        known = _ERRORS.get(self.err_code)
        label = known.label if known else str(self.err_code)
        super().__init__(f"{description}{f': {hint}' if hint else ''} (JetStream {label})")

    def __reduce__(self) -> tuple[Any, ...]:
        # errors are sent between processes, and by default Python would rebuild them from the text
        # alone
        return make_refusal, (self.err_code, self.code, self.description, self.hint)


def make_refusal(err_code: int, code: int, description: str, hint: str) -> Refused:
    """Return, without raising it, the exception for an error of a response: of the class that
    `err_code` has in REFUSALS, or Refused itself for an unknown number.
    """
    return REFUSALS.get(err_code, Refused)(description, hint, err_code=err_code, code=code)


def read_error(error: Mapping[str, Any]) -> Refused:
    """Return, without raising it, the exception for the `error` object of a response, with JetStream's fields. Those
    that are missing count as 0 or "".
    """
    texts = str(error.get("description", "")), str(error.get("hint", ""))
    return make_refusal(int(error.get("err_code", 0)), int(error.get("code", 0)), *texts)


_ERRORS: dict[int, ApiError] = {**ERRORS, CONSUMER_NOT_FOUND.err_code: CONSUMER_NOT_FOUND}


def _make(error: ApiError) -> type[Refused]:
    facts = {"__doc__": error.description, "__module__": __name__, "err_code": error.err_code, "code": error.code}
    return type(_NAMES[error.err_code], (Refused,), facts)


REFUSALS: dict[int, type[Refused]] = {err_code: _make(error) for err_code, error in _ERRORS.items()}
"""Exception classes by JetStream's number."""
_BY_NAME = {refusal.__name__: refusal for refusal in REFUSALS.values()}


def __getattr__(name: str) -> type[Refused]:
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_BY_NAME])
