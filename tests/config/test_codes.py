from __future__ import annotations

import pytest

from overlay.config import ConsumerConfig, Profile, check_consumer, fill_defaults
from overlay.config.checks import Violation
from overlay.config.codes import ERRORS
from overlay.subject import Pattern
from tests.config.wire_cases import BAD, GOOD, NAMES, PULL, PUSH
from tests.support.wire import from_wire

SUBJECTS = (Pattern.parse("a.>"), Pattern.parse("b"))


def check(config: ConsumerConfig, profile: Profile = Profile.GATEWAY) -> list[Violation]:
    return list(check_consumer(fill_defaults(config), SUBJECTS, profile))


@pytest.mark.parametrize(("code", "label"), [(10138, 10136), (10136, 10134), (10137, 10135)])
def test_three_errors_have_both_numbers(code: int, label: int) -> None:
    assert ERRORS[code].label == f"{code}, in ADR-34 {label}"
    assert [error.err_code for error in ERRORS.values() if error.adr34 == label] == [code]


def test_the_table_has_every_number_once() -> None:
    assert len([error for error in ERRORS.values() if error.adr34]) == 3
    assert all(number == error.err_code for number, error in ERRORS.items())
    assert ERRORS[10081].label == "10081"


@pytest.mark.parametrize(("durable", "name", "code"), NAMES)
def test_names_are_checked(durable: str, name: str, code: int) -> None:
    found = check(ConsumerConfig(stream="S", durable_name=durable, name=name, deliver_subject="out"))
    assert [violation.error.err_code for violation in found] == [code]


def test_defaults_are_filled_in_once() -> None:
    for config in GOOD:
        filled = fill_defaults(from_wire("S", config))
        assert fill_defaults(filled) == filled


def test_the_profiles_differ_in_three_rules() -> None:
    pull_none = from_wire("S", PULL | {"ack_policy": "none"})
    outside = from_wire("S", PUSH | {"filter_subject": "zork"})
    own = from_wire("S", PUSH | {"deliver_subject": "b"})
    assert [check(config) for config in (pull_none, outside)] == [[], []]
    assert [found.error.err_code for found in check(own)] == [10081]
    assert [found.error.err_code for found in check(pull_none, Profile.FILE)] == [10084]
    assert [found.error.err_code for found in check(outside, Profile.FILE)] == [10093]
    assert check(own, Profile.FILE) == []


def test_every_violation_names_a_field() -> None:
    for config in BAD:
        known = {name: value for name, value in config.items() if name in ConsumerConfig.model_fields}
        try:
            parsed = from_wire("S", known)
        except ValueError:
            continue
        found = check(parsed, Profile.FILE)
        assert all(violation.path[0] in ConsumerConfig.model_fields for violation in found), config
