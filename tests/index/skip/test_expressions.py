"""What headers say of filters holds for every record: all chunks that can be made of a few records, and many filters."""

from __future__ import annotations

import os
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.config.stream import StreamConfig
from overlay.index.skip.derive import derive
from overlay.index.skip.probes import Answer, Part
from overlay.index.skip.prune import evaluate
from overlay.subject import escape_token
from tests.filter import strategies as some
from tests.index.partitions import Question, Record, load, seal
from tests.index.strategies import configs, filters

CASES = int(os.environ.get("OVERLAY_PLANS", "60"))
FILTERS = 12


@settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(configs(), st.data())
def test_answers_hold_for_every_record(made: tuple[some.Schema, StreamConfig], data: st.DataObject) -> None:
    schema, config = made
    said = data.draw(st.lists(some.messages(schema), min_size=4, max_size=4))
    records = []
    for offset, message in enumerate(said):
        subject = f"a.{offset}"
        carrier = message["application_properties"].get("carrier")
        if config.subject.header:
            message["properties"]["subject"] = subject
        elif config.subject.template:
            if not carrier:
                continue
            subject = f"s.{escape_token(carrier.encode())}.k"
        records.append(Record(offset, subject, 5, message))
    groups = [group for size in range(1, 5) for group in combinations(records, size)]
    # offsets do not matter here: each group is a chunk at a place of its own
    chunks = load(config, [seal(config, group, 10 * at, 10 * at + 10) for at, group in enumerate(groups)])
    now = data.draw(st.sampled_from((0, some.NOW)))
    for filter in data.draw(st.lists(filters(schema, config, said), min_size=FILTERS, max_size=FILTERS)):
        levels = evaluate(derive(config, filter=filter, now=now), chunks).levels
        question = Question(filter=filter)
        later = now + data.draw(st.sampled_from((0, 0, 1, 10**13)))
        for level, group in zip(levels, groups, strict=True):
            passing = [question.passes(Part.FILTER, record, config, later) for record in group]
            assert level != Answer.NO or not any(passing), filter.bound
            assert level != Answer.ALL or all(passing), filter.bound
