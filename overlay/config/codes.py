"""JetStream's errors of consumer create and update (docs/jetstream.md#errors).

Each one has a number, a status and a text. Three errors have two numbers. ADR-34's first text
numbers them 10136, 10134 and 10135; servers since 2.10 and all clients use 10138, 10136 and 10137.
Only this table knows both. Config files and the CLI show both numbers. The gateway answers with the
server's number, unless it is told to use ADR-34's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiError:
    """An error of the JetStream API. `description`: its text, in which `violate` (checks.py) fills in the {named}
    parts.

    `err_code`: the server's number. `code`: its status, such as 400. `adr34`: the number in ADR-34, None if it is the
    same.
    """

    err_code: int
    code: int
    description: str
    adr34: int | None = None

    @property
    def label(self) -> str:
        """Return `10138, in ADR-34 10136`, or the number alone if ADR-34 has no other one."""
        return f"{self.err_code}, in ADR-34 {self.adr34}" if self.adr34 is not None else str(self.err_code)


_ERRORS = (
    ApiError(10012, 500, "{err}"),
    ApiError(10013, 400, "consumer name already in use"),
    ApiError(10016, 400, "consumer expected to be durable but no durable name set in subject"),
    ApiError(10017, 400, "consumer name in subject does not match durable name in request"),
    ApiError(10018, 400, "consumer expected to be durable but a durable name was not set"),
    ApiError(10020, 400, "consumer expected to be ephemeral but a durable name was set in request"),
    ApiError(10025, 400, "invalid JSON: {err}"),
    ApiError(10026, 400, "maximum consumers limit reached"),
    ApiError(10039, 503, "JetStream not enabled for account"),
    ApiError(10052, 500, "{err}"),
    ApiError(10056, 400, "stream name in subject does not match request"),
    ApiError(10059, 404, "stream not found"),
    ApiError(10074, 500, "replicas > 1 not supported in non-clustered mode"),
    ApiError(10079, 400, "consumer deliver subject has wildcards"),
    ApiError(10080, 400, "consumer in push mode can not set max waiting"),
    ApiError(10081, 400, "consumer deliver subject forms a cycle"),
    ApiError(10082, 400, "consumer requires ack policy for max ack pending"),
    ApiError(10083, 400, "consumer idle heartbeat needs to be >= 100ms"),
    ApiError(10084, 400, "consumer in pull mode requires explicit ack policy on workqueue stream"),
    ApiError(10086, 400, "consumer in pull mode can not have rate limit set"),
    ApiError(10087, 400, "consumer max waiting needs to be positive"),
    ApiError(10088, 400, "consumer idle heartbeat requires a push based consumer"),
    ApiError(10089, 400, "consumer flow control requires a push based consumer"),
    ApiError(10090, 400, "consumer direct requires a push based consumer"),
    ApiError(10091, 400, "consumer direct requires an ephemeral consumer"),
    # Servers dropped 10093; for files it stays, as a filter that can match nothing is a mistake.
    ApiError(10093, 400, "consumer filter subject is not a valid subset of the interest subjects"),
    ApiError(10094, 400, "consumer delivery policy is deliver {policy}, but optional {option} is {state}"),
    ApiError(10095, 400, "failed to parse consumer sampling configuration: {err}"),
    ApiError(10098, 400, "workqueue stream requires explicit ack"),
    ApiError(10099, 400, "multiple non-filtered consumers not allowed on workqueue stream"),
    ApiError(10100, 400, "filtered consumer not unique on workqueue stream"),
    ApiError(10101, 400, "consumer must be deliver all on workqueue stream"),
    ApiError(10102, 400, "consumer name is too long, maximum allowed is {max}"),
    ApiError(10103, 400, "durable name can not contain '.', '*', '>'"),
    ApiError(10104, 500, "error creating store for consumer: {err}"),
    ApiError(10105, 400, "consumer already exists and is still active"),
    ApiError(10106, 400, "consumer replacement durable config not the same"),
    ApiError(10107, 400, "consumer description is too long, maximum allowed is {max}"),
    ApiError(10108, 400, "consumer with flow control also needs heartbeats"),
    ApiError(10112, 400, "invalid push consumer deliver subject"),
    ApiError(10114, 400, "consumer max request batch needs to be > 0"),
    ApiError(10115, 400, "consumer max request expires needs to be >= 1ms"),
    ApiError(10116, 400, "max deliver is required to be > length of backoff values"),
    ApiError(10119, 500, "consumer is offline"),
    ApiError(10121, 400, "consumer max ack pending exceeds system limit of {limit}"),
    ApiError(10125, 400, "consumer max request batch exceeds server limit of {limit}"),
    ApiError(10126, 400, "consumer config replica count exceeds parent stream"),
    ApiError(10127, 400, "Consumer name can not contain path separators"),
    ApiError(10131, 400, "Consumer create request did not match filtered subject from create subject"),
    ApiError(10132, 400, "Consumer Durable and Name have to be equal if both are provided"),
    ApiError(10133, 400, "replicas count cannot be negative"),
    ApiError(10134, 400, "consumer config replicas must match interest retention stream's replicas"),
    ApiError(10135, 400, "consumer metadata exceeds maximum size of {limit}"),
    ApiError(10136, 400, "consumer cannot have both FilterSubject and FilterSubjects specified", adr34=10134),
    ApiError(10137, 400, "consumer with multiple subject filters cannot use subject based API", adr34=10135),
    ApiError(10138, 400, "consumer subject filters cannot overlap", adr34=10136),
    ApiError(10139, 400, "consumer filter in FilterSubjects cannot be empty"),
    ApiError(10148, 400, "consumer already exists"),
    ApiError(10149, 400, "consumer does not exist"),
    ApiError(10153, 400, "consumer inactive threshold exceeds system limit of {limit}"),
    ApiError(10157, 400, "pedantic mode: {err}"),
    ApiError(10159, 400, "Setting PriorityPolicy requires at least one PriorityGroup to be set"),
    ApiError(10161, 400, "Group name cannot be an empty string"),
    ApiError(10162, 400, "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"),
    ApiError(10178, 400, "priority groups can not be used with push consumers"),
    ApiError(10181, 400, "consumer ack policy invalid"),
    ApiError(10182, 400, "consumer replay policy invalid"),
    ApiError(10183, 400, "consumer ack wait needs to be positive"),
    ApiError(10184, 400, "consumer backoff needs to be positive"),
    ApiError(10185, 412, "JetStream minimum api level required"),
    ApiError(10195, 500, "consumer is offline: {err}"),
    ApiError(10196, 400, "consumer can not have priority groups when policy is none"),
    ApiError(10197, 400, "PinnedTTL cannot be set when PriorityPolicy is none"),
    ApiError(10218, 400, "flow control ack policy requires a push based consumer"),
    ApiError(10219, 400, "flow control ack policy requires flow control"),
    ApiError(10220, 400, "flow control ack policy requires max ack pending"),
    ApiError(10221, 400, "flow control ack policy requires unset ack wait"),
    ApiError(10222, 400, "flow control ack policy requires unset max deliver"),
)

ERRORS = {error.err_code: error for error in _ERRORS}
"""Every error of the JetStream consumer API that the overlay knows, by the server's number."""
