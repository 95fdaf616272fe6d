from __future__ import annotations

import pickle

import pytest

from overlay.client.control import refusals
from overlay.client.control.refusals import (
    REFUSALS,
    ConsumerAlreadyExists,
    OverlappingFilterSubjects,
    Refused,
    read_error,
)
from overlay.config.codes import ERRORS


def test_every_error_has_one_exception() -> None:
    assert REFUSALS.keys() == {*ERRORS, 10014}
    assert len({refusal.__name__ for refusal in REFUSALS.values()}) == len(REFUSALS)
    for err_code, refusal in REFUSALS.items():
        assert refusal.err_code == err_code
        assert getattr(refusals, refusal.__name__) is refusal


def test_an_error_of_a_response() -> None:
    error = read_error({"code": 400, "err_code": 10148, "description": "consumer already exists", "hint": "look"})
    assert type(error) is ConsumerAlreadyExists
    assert str(error) == "consumer already exists: look (JetStream 10148)"
    assert (error.code, error.err_code, error.description, error.hint) == (
        400,
        10148,
        "consumer already exists",
        "look",
    )


def test_both_numbers_are_shown() -> None:
    assert str(OverlappingFilterSubjects("overlap")) == "overlap (JetStream 10138, in ADR-34 10136)"


def test_an_unknown_error_code() -> None:
    error = read_error({"code": 418, "err_code": 99999, "description": "teapot"})
    assert type(error) is Refused
    assert (error.code, error.err_code, str(error)) == (418, 99999, "teapot (JetStream 99999)")


@pytest.mark.parametrize("err_code", [10148, 99999])
def test_errors_travel_between_processes(err_code: int) -> None:
    error = read_error({"code": 400, "err_code": err_code, "description": "text", "hint": "hint"})
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.err_code, copy.code, copy.hint) == (str(error), err_code, 400, "hint")


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="Zork"):
        _ = refusals.Zork
