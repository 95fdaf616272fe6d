"""`python -m bench sql`: how fast a filter over properties goes through a topic (lz4), in records read per second.

The filter is `origin = 'JFK' AND dep_delay > N`; N decides how many pass: 16.5 % left from JFK at most a minute before
their time or later (N = -2), 2.5 % more than an hour late (N = 60), 0.09 % more than 260 minutes late. Every side reads
all records of one partition and counts those that pass; the counts must be those that the data set gives.

- overlay: the scan of the scan bench, one consumer of all subjects with the filter as SQL, properties typed as `long` and
  `string`, read from headers or from the value, which is JSON, Avro or Protobuf.
- confluent: confluent-kafka in batches, the same condition by hand in Python over the headers (peers/confluent_sql.py).
- orjson: the same over values parsed by orjson.
- fastavro: the same over values of Avro read by fastavro.
- protobuf: the same over values of Protobuf read by Google's protobuf package, whose parser is in C.
- json: our own scan with the same filter over the same records with JSON values, beside values of Avro and Protobuf.
- subject: our own scan with a subject filter, `flights.JFK.>`, instead of SQL; what SQL costs beside it.
- one: our own scan with one filter, beside a hundred: `100 filters` are a hundred different conditions, `100 equal` a
  hundred consumers with the same.

All sides run in this process and read a topic of 2,000 records once before the first round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from bench import avro, protobuf
from bench.cases import measure_case, warm_up
from bench.dataset import SELECTIVITIES, Dataset
from bench.errors import WrongAnswer
from bench.figures import Case
from bench.lateness import HEADERS, JSON, Late, Sifting, count_late
from bench.ours_sql import JsonSql, OneFilter, OverlaySql, SubjectScan
from bench.peers.confluent_sql import ConfluentSql, FastavroSql, OrjsonSql, ProtobufSql
from bench.progress import Progress
from bench.settings import Settings
from bench.sides import Contender, Tally
from overlay.config.values import ValuesConfig

CODEC = "lz4"
FEW, SOME, MANY = Late("JFK", 260), Late("JFK", 60), Late("JFK", -2)
HUNDRED = tuple(Late(origin, delay) for delay in range(0, 340, 10) for origin in ("EWR", "JFK", "LGA"))[:100]


class Side(Contender, Protocol):
    """A way to count what passes. Raises PeerUnavailable."""

    def run(self, sifting: Sifting) -> Tally: ...


@dataclass(frozen=True, slots=True)
class _Plan:
    filters: tuple[Late, ...]
    properties: Mapping[str, Mapping[str, str]]
    sides: tuple[type[Side], ...]
    goal: Mapping[str, float]
    form: str = "json"


_BY_HEADERS = (OverlaySql, ConfluentSql, SubjectScan)
_BY_JSON = (OverlaySql, OrjsonSql, SubjectScan)
_BY_AVRO = (OverlaySql, FastavroSql, JsonSql)
_BY_PROTOBUF = (OverlaySql, ProtobufSql, JsonSql)
_MANY = (OverlaySql, OneFilter)

PLANS: Mapping[str, _Plan] = {
    "16%/headers": _Plan((MANY,), HEADERS, _BY_HEADERS, {"confluent": 6.0, "subject": 0.67}),
    "2.5%/headers": _Plan((SOME,), HEADERS, _BY_HEADERS, {}),
    "0.1%/headers": _Plan((FEW,), HEADERS, _BY_HEADERS, {"confluent": 8.0, "subject": 0.67}),
    "16%/json": _Plan((MANY,), JSON, _BY_JSON, {"orjson": 4.0}),
    "0.1%/json": _Plan((FEW,), JSON, _BY_JSON, {"orjson": 4.0}),
    "16%/avro": _Plan((MANY,), JSON, _BY_AVRO, {"json": 0.25}, "avro"),
    "0.1%/avro": _Plan((FEW,), JSON, _BY_AVRO, {"json": 0.25}, "avro"),
    "16%/protobuf": _Plan((MANY,), JSON, _BY_PROTOBUF, {"json": 0.25}, "protobuf"),
    "0.1%/protobuf": _Plan((FEW,), JSON, _BY_PROTOBUF, {"json": 0.25}, "protobuf"),
    "100 filters": _Plan(HUNDRED, HEADERS, _MANY, {"one": 0.2}),
    "100 equal": _Plan((MANY,) * 100, HEADERS, _MANY, {"one": 0.77}),
}


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases of the bench, each as soon as it is measured. Raises WrongAnswer."""

    def run(side: Side, sifting: Sifting) -> Tally:
        tally = side.run(sifting)
        _check(dataset, side.name, sifting, tally)
        return tally

    schema, compiled = avro.make_schema(dataset.table), protobuf.compile_message(dataset.table)
    schemas = {"avro": schema, "protobuf": protobuf.make_schema(compiled)}
    encoders = {"avro": avro.make_encoder(schema), "protobuf": protobuf.make_encoder(compiled)}
    values = {"json": ValuesConfig()} | {
        form: ValuesConfig.model_validate({"format": form, "schema": each}) for form, each in schemas.items()
    }
    dataset.publish(CODEC, progress.count(f"publishing {CODEC}"))
    for form, encode in encoders.items():
        dataset.publish(CODEC, progress.count(f"publishing {CODEC} {form}"), form=form, encode=encode)
    as_json, little_json = dataset.plan(CODEC, SELECTIVITIES["33%"]), dataset.plan_warm_up(CODEC)
    for case, plan in PLANS.items():
        sides = [make() for make in plan.sides if settings.wants_side(make.name)]
        work = dataset.plan(CODEC, SELECTIVITIES["33%"], plan.form)
        sifting = Sifting(work, plan.filters, plan.properties, values[plan.form], as_json)
        warm_up(sides, run, sifting.shorten(dataset.plan_warm_up(CODEC, plan.form), little_json), progress)
        yield measure_case("sql", case, sides, run, sifting, plan.goal, settings.rounds, progress)


def _check(dataset: Dataset, side: str, sifting: Sifting, tally: Tally) -> None:
    """Raises WrongAnswer when a side did not read what it says or did not find what is there."""
    expected = count_late(dataset, sifting.filters, sifting.work.records)
    if tally.records != sifting.work.records or tally.matched not in (None, expected):
        raise WrongAnswer(
            f"{side} on {sifting.work.topic}: {tally.matched} of {tally.records} records pass {sifting.filters[0].sql},"
            f" the data set says {expected} of {sifting.work.records}. Run this side alone (--only) to look into it"
        )
