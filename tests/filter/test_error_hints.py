"""What people write when they mean something else: each slip gets the hint that it needs.

slips.py and unexpected.py share this table, because a person does not know which of the two will answer.
"""

from __future__ import annotations

import pytest

from overlay.errors import FilterSyntaxError
from overlay.filter.fields import MISSING_FUNCTIONS, OPERATORS
from overlay.filter.parse import parse

SLIPS = {
    # words in the wrong case
    "carrier and x": "write AND",
    "carrier Or x": "write OR",
    "not x": "write NOT",
    "x like 'a%'": "write LIKE",
    "x in (1)": "write IN",
    "x is NULL": "write IS",
    "x IS null": "write NULL",
    "x = true": "write TRUE",
    "x LIKE 'a' escape '!'": "write ESCAPE",
    "x > utc()": "write UTC()",
    "date = 1": "a property of that name is written [date]",
    # operators of other languages
    "a == 'JFK'": "equality is written =",
    "a => 1": "write >=",
    "a =< 1": "write <=",
    "a && b": "write AND",
    "a || b": "write OR",
    "!a": "write NOT",
    "a & b": "write AND",
    "a = = 1": "one symbol without blanks",
    "a < > 1": "one symbol without blanks",
    "a ≠ 1": "write <>",
    "a ≥ 1": "write >=",
    "a = 5 \N{MINUS SIGN} 1": "write -",
    "a // 2 = 1": "one /",
    "a /* all */ = 1": "no comments",
    "a = 5 -- five of them": "no comments",
    "a = 1;": "leave the semicolon out",
    "a ~ 'x'": "LIKE",
    "a BETWEEN 1 AND 2": "x >= 1 AND x <= 2",
    "a NOT BETWEEN 1 AND 2": "x >= 1 AND x <= 2",
    "a between 1 AND 2": "x >= 1 AND x <= 2",
    "a ILIKE 'x'": "no ILIKE",
    "a contains 'x'": "LIKE '%abc%'",
    "a eq 5": "write =",
    "a XOR b": "AND NOT",
    "SELECT * FROM flights WHERE a = 1": "without SELECT",
    "WHERE a = 1": "without WHERE",
    # NULL
    "a = NULL": "a IS NULL",
    "a <> NULL": "a IS NOT NULL",
    "[two words] = NULL": "[two words] IS NULL",
    "1 + a = NULL": "IS NULL",
    "a IN (NULL)": "NULL is no value",
    "(a) IS NULL": "no parentheses",
    "a + 1 IS NULL": "no arithmetic",
    "a IS TRUE": "write = TRUE",
    "a IS NOT FALSE": "",
    # quotes
    "a = 'JFK": "close it with '",
    'a = "JFK': 'close it with "',
    "a = 'JFK\" AND b = 1": "has to end with '",
    "a = \"JFK'": 'has to end with "',
    "(a = 'JFK\")": "has to end with '",
    "a = 'O'Hare'": "'O''Hare'",
    "a = 'it\\'s'": "'O''Hare'",
    "a = \u201cJFK\u201d": "strings stand in ' or \"",
    "a = \u2018JFK\u2019": "strings stand in ' or \"",
    "a = `JFK`": "strings stand in ' or \"",
    "a = 'x' 'y'": "cannot be joined",
    "[a = 1": "end with ]",
    "a] = 1": "]]",
    "[a[b] = 1": "[[",
    # numbers
    "a = .5": "write 0.5",
    "a = 5.": "write 5.0",
    "a = 5E2": "write 5.0E2",
    "a = 5e2": "write 5.0E2",
    "a = 1.5e3": "write 1.5E3",
    "a = 1.5e-3": "write 1.5E-3",
    "a = 5L": "write 5",
    "a = 5.0f": "write 5.0",
    "a = 5_000": "write 5000",
    "a = 0xab": "0x4142",
    "a = 0x123": "0x4142",
    "a = 0X41": "0x4142",
    "1st = 1": "[1st]",
    "a = 1.0E400": "1.7976931348623157E308",
    "a = --5": "one sign only",
    # names
    "p.sbject = 'a'": "did you mean p.subject?",
    "properties.message-id = 'a'": "properties.message_id",
    "p.absolute-expiry-time > 5": "p.absolute_expiry_time",
    "p.carrier = 'a'": "application properties: carrier",
    "h.durable = TRUE": "only priority is open",
    "h.prio = 1": "did you mean h.priority?",
    "property.subject = 'a'": "did you mean properties.subject?",
    "prop.subject = 'a'": "did you mean properties.subject?",
    "Properties.subject = 'a'": "did you mean properties.subject?",
    "application-properties.x = 1": "did you mean application_properties.x?",
    "foo.bar = 1": "[foo.bar]",
    "m.x = 1": "filters see header",
    "delivery-annotations.x = 1": "filters see header",
    "a-p.subject = 'x'": "a - p.subject",
    "a.b.c = 1": "[a.b]",
    "a.[x] = 1": "stands alone",
    "p . subject = 'x'": "no blanks around the point",
    "größe = 1": "[größe]",
    "_x = 1": "[_x]",
    "$x = 1": "in brackets",
    "dep delay > 5": "[dep delay]",
    "{dep_delay} > 5": "without braces",
    "a = :x": "no parameters",
    "a = ?": "no parameters",
    "a\N{NO-BREAK SPACE}= 1": "write a space",
    # functions
    "LOWER(x) = 'a'": "x IN ('abc', 'ABC')",
    "upper(x) = 'A'": "x IN ('abc', 'ABC')",
    "LEFT(x, 1) = 'A'": "LIKE 'abc%'",
    "SUBSTRING(x, 1, 2) = 'A'": "LIKE '__abc%'",
    "EXISTS(x)": "IS NOT NULL",
    "DATE '2020-01-01' < x": "milliseconds",
    "x = NAN": "IS NULL",
    "length(x) = 5": "no function length",
    "UTC > 5": "write UTC()",
    "UTC(5) > 5": "",
    # the shape of an expression
    "a = b = c": "do not chain",
    "1 < a < 5": "a < b AND b < c",
    "a IN ()": "at least one item",
    "a IN (1,)": "no comma at its end",
    "a IN 1": "x IN ('a', 'b')",
    "a LIKE b": "a string in quotes",
    "a LIKE ('x')": "without parentheses",
    "a LIKE 'x!' ESCAPE '!'": "write it twice",
    "a LIKE 'x' ESCAPE 'ab'": "ESCAPE '!'",
    "a LIKE 'x' ESCAPE ''": "leave ESCAPE out",
    "(a = 1": "without its )",
    "a = 1)": "without its (",
    "a = NOT b": "(NOT x)",
    "a, b": "lists stand behind IN",
    "": "write a condition",
    "  \n": "write a condition",
}


@pytest.mark.parametrize("text", SLIPS)
def test_hints(text: str) -> None:
    with pytest.raises(FilterSyntaxError) as error:
        parse(text)
    if SLIPS[text]:
        assert SLIPS[text] in error.value.hint
    assert error.value.message and "\n" not in error.value.message + error.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a AND", "found the end of the expression, expected a value: a field, a number"),
        ("(a", "found the end of the expression, expected an operator or )"),
        ("a IN (1", "found the end of the expression, expected an operator, a comma or )"),
        ("a b", "found b, expected an operator or the end"),
        ("a IS 5", "found 5, expected NULL or NOT NULL"),
        ("a NOT 5", "found 5, expected LIKE or IN"),
        ("a LIKE 5", "found 5, expected a string in quotes"),
        ("a IN 5", "found 5, expected ("),
        ("UTC(5)", "found 5, expected )"),
        ("a LIKE 'x' 'y'", "found 'y', expected an operator or the end"),
    ],
)
def test_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(FilterSyntaxError) as error:
        parse(text)
    assert error.value.message.startswith(expected)


@pytest.mark.parametrize("word", sorted(OPERATORS | MISSING_FUNCTIONS))
def test_every_reserved_word_has_a_hint(word: str) -> None:
    with pytest.raises(FilterSyntaxError) as error:
        parse(word.lower())
    assert f"[{word.lower()}]" in error.value.hint
