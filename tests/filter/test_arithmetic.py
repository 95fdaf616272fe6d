"""Arithmetic of messages, row by row: exact whole numbers, doubles, and what has no answer."""

from __future__ import annotations

from tests.filter.messages import check


def test_whole_numbers_and_doubles_compare_exactly() -> None:
    check(
        {
            "9007199254740993 = 9007199254740992.0": False,
            "big = 9007199254740992.0": False,
            "big > 9007199254740992.0": True,
            "9007199254740992.0 < big": True,
            "9007199254740992 = 9007199254740992.0": True,
            "max < 9223372036854775808.0": True,
            "u = 18446744073709551615": True,
            "huge > 1.7E308": True,
            "1 < 2.5": True,
        }
    )


def test_whole_numbers_do_not_overflow() -> None:
    check(
        {
            "9223372036854775807 + 1": 9223372036854775808,
            "max + 1": 2**63,
            "max * max": (2**63 - 1) ** 2,
            "-max - 2": -(2**63) - 1,
            "i + 1": 6,
            "i - 7": -2,
            "i * -3": -15,
            "-i": -5,
            "+i": 5,
            "huge + 1": 10**400 + 1,
        }
    )


def test_mixed_arithmetic_is_of_doubles() -> None:
    check({"i + 0.5": 5.5, "2 * 1.5": 3.0, "1.0 - 1": 0.0, "-1.5": -1.5, "big + 0.0": 9007199254740992.0})


def test_division_is_always_real() -> None:
    check(
        {
            "5 / 2": 2.5,
            "100 / 10": 10.0,
            "100 / 10 = 10": True,
            "7 / -2": -3.5,
            "18446744073709551615 / 1 = 18446744073709551615": False,
            "5 / 0": None,
            "5 / 0.0": None,
            "5.0 / 0": None,
            "0 / 0": None,
            "1 / -0.0": None,
        }
    )


def test_the_rest_is_of_whole_numbers_and_has_the_sign_of_the_dividend() -> None:
    check(
        {
            "7 % 5": 2,
            "7 % -5": 2,
            "-7 % 5": -2,
            "-7 % -5": -2,
            "i % 5": 0,
            "5.0 % 2": None,
            "5 % 2.0": None,
            "(4 / 2) % 2": None,
            "5 % 0": None,
            "huge % 7": 10**400 % 7,
        }
    )


def test_arithmetic_of_what_is_no_number_is_unknown() -> None:
    check(
        dict.fromkeys(
            [
                *(
                    "+s",
                    "-flag",
                    "s + 1",
                    "'a' + 'b'",
                    "flag + flag",
                    "absent * 2",
                    "1 - absent",
                    "-absent",
                    "[nan] + 1",
                ),
                *("(i = 5) + 1", "+s = 'London'", "flag + flag = 1", "number * 1 = 2"),
            ]
        )
    )


def test_overflow_of_doubles_is_unknown_and_nothing_raises() -> None:
    check(
        dict.fromkeys(
            [
                *("1.0E308 * 10", "-1.0E308 * 10.0", "1.0E308 + 1.0E308", "absent * (1.0E308 * 10.0)"),
                *("1.7E308 / 1.0E-10", "huge / 2", "huge + 1.0", "1.0 - huge", "huge / huge", "2.0 * huge"),
            ]
        )
    )
    check({"FALSE AND 1.0E308 * 10 > 1": False, "TRUE OR huge / 2 = 1": True, "5.0E-324 / 2 = 0": True})
