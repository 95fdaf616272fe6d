"""The lexical rules: the facts of section 3, and the longest match against a lexer that tries every length."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filter.fields import FIELDS, RESERVED, SECTIONS
from overlay.filter.limits import DEFAULT, Limits
from overlay.filter.nodes import Section
from overlay.filter.syntax import Slip
from overlay.filter.tokens import read_tokens


def read(text: str) -> list[tuple[str, str]]:
    return [(token.type, token.text) for token in read_tokens(text, DEFAULT)]


def split(text: str) -> list[str]:
    return [piece for _, piece in read(text)]


def is_refused(text: str) -> bool:
    try:
        read(text)
    except Slip as slip:
        assert 0 <= slip.at[0] <= slip.at[1] <= max(len(text), 1)
        assert slip.message
        return True
    return False


@pytest.mark.parametrize("blank", [" ", "\t", "\f", "\n", "\r", " \t\r\n\f "])
def test_blanks(blank: str) -> None:
    assert split(f"a{blank}={blank}1") == ["a", "=", "1"]


@pytest.mark.parametrize("blank", ["\v", "\xa0", "\u2003", "\u200b", "\ufeff", "\x00", "\x1c", "\x85", "\u2028"])
def test_other_blanks_are_illegal(blank: str) -> None:
    assert is_refused(f"a{blank}= 1")
    assert split(f"a = '{blank}'")[2] == f"'{blank}'"


def test_blanks_are_needed_only_where_two_tokens_would_read_as_one() -> None:
    assert split("='UK'AND x=5") == ["=", "'UK'", "AND", "x", "=", "5"]
    assert split("5AND b") == ["5", "AND", "b"]
    assert is_refused("5ANDb")
    assert split("0x41AND b") == ["0x41", "AND", "b"]
    assert split("1.5E2OR[b]") == ["1.5E2", "OR", "[b]"]


def test_there_are_no_comments() -> None:
    assert is_refused("a = /* x */ 5")
    assert split("a = 5 -- x") == ["a", "=", "5", "-", "-", "x"]


@pytest.mark.parametrize("word", ["AND", "OR", "NOT", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "FALSE", "UTC"])
def test_operator_words_are_upper_case(word: str) -> None:
    assert read(word) == [(word, word)]
    for other in (word.lower(), word.capitalize(), word[0].lower() + word[1:]):
        assert is_refused(other)
        assert is_refused(f"x = {other}")


@pytest.mark.parametrize("word", sorted(RESERVED))
def test_reserved_words_are_names_only_in_brackets_and_behind_a_point(word: str) -> None:
    for spelled in (word, word.capitalize()):
        assert is_refused(spelled)
        assert read(f"[{spelled}]") == [("NAME", f"[{spelled}]")]
        assert read(f"a.{spelled}") == [("NAME", f"a.{spelled}")]
        assert read(f"{spelled}_") == [("NAME", f"{spelled}_")]


@pytest.mark.parametrize("word", ["EXISTS", "LOWER", "UPPER", "LEFT", "RIGHT", "SUBSTRING", "DATE", "INF", "NAN"])
def test_words_without_a_meaning_are_refused(word: str) -> None:
    assert is_refused(word)
    assert is_refused(f"{word}(x) = 1")


def test_reserved_words_are_these() -> None:
    listed = "and or not like in is null escape true false exists nan inf lower upper left right substring utc date"
    assert set(listed.split()) == RESERVED
    assert read("between") == [("NAME", "between")]


@pytest.mark.parametrize("symbol", ["=", "<>", "!=", "<", ">", "<=", ">="])
def test_comparisons(symbol: str) -> None:
    assert read(symbol) == [("COMPARE", symbol)]


def test_symbols() -> None:
    assert [kind for kind, _ in read("+-*/%(),")] == [
        "PLUS",
        "MINUS",
        "STAR",
        "SLASH",
        "PERCENT",
        "LPAR",
        "RPAR",
        "COMMA",
    ]
    assert split("a<=b<>c>=d") == ["a", "<=", "b", "<>", "c", ">=", "d"]


@pytest.mark.parametrize("symbol", ["==", "=>", "=<", "||", "^", "&", ";", "&&", "|", "!", "~", "?", "//", "/*", "`a`"])
def test_symbols_of_other_languages(symbol: str) -> None:
    assert is_refused(f"a {symbol} b")


@pytest.mark.parametrize("text", ["0", "5", "007", "1" * 500, "18446744073709551616"])
def test_integers(text: str) -> None:
    assert read(text) == [("INTEGER", text)]


@pytest.mark.parametrize("text", ["1.0", "007.50", "1.2E3", "5.0E+2", "5.0E-2", "1.0E400"])
def test_floats(text: str) -> None:
    assert read(text) == [("FLOAT", text)]


@pytest.mark.parametrize(
    "text",
    ["5.", ".5", "5E2", ".5E2", "1.5e3", "1.0E", "5.0f", "5L", "5_000", "1.2.3", "1..2", "5e", "1.5E+", "1x", "1_"],
)
def test_what_is_no_number(text: str) -> None:
    assert is_refused(text)
    assert is_refused(f"x = {text}")
    assert is_refused(f"{text} = x")


@pytest.mark.parametrize("text", ["0x00", "0x4142", "0xAF09"])
def test_binary_constants(text: str) -> None:
    assert read(text) == [("BINARY", text)]


@pytest.mark.parametrize("text", ["0x", "0x1", "0x123", "0xab", "0xAb", "0xG1", "0X41", "0x4142a", "0x41_"])
def test_what_is_no_binary_constant(text: str) -> None:
    assert is_refused(text)


@pytest.mark.parametrize(
    "text",
    [
        "''",
        '""',
        "'a'",
        '"a"',
        "'it''s'",
        '"it\'s"',
        "'say \"hi\"'",
        '"a""b"',
        "'a\nb\tc\x00'",
        r"'\'",
        "'é😀'",
        "''''",
    ],
)
def test_strings(text: str) -> None:
    assert read(text) == [("STRING", text)]


@pytest.mark.parametrize("text", ["'", '"', "'a", "'a\"", "'a''", r"'a\''", "x = 'a' AND y = 'b"])
def test_strings_without_their_end(text: str) -> None:
    assert is_refused(text)


def test_strings_beside_each_other_stay_two() -> None:
    assert split("'a' 'b'") == ["'a'", "'b'"]


@pytest.mark.parametrize("text", ["a", "Z", "a1", "a_b", "A_1_", "between", "and_"])
def test_regular_names(text: str) -> None:
    assert read(text) == [("NAME", text)]


@pytest.mark.parametrize("text", ["_x", "x$", "1x", "größe", "é", "x?", "a@b", "a#", "имя"])
def test_what_is_no_regular_name(text: str) -> None:
    assert is_refused(text)


@pytest.mark.parametrize(
    "text", ["[a]", "[]", "[ ]", "[a b]", "[größe]", "[[[]", "[]]]", "[and]", "[p.to]", "[a'b\"c]"]
)
def test_names_in_brackets(text: str) -> None:
    assert read(text) == [("NAME", text)]


@pytest.mark.parametrize("text", ["[", "[a", "[a[b]", "[a]b]", "]", "[a]]", "[\t]", "[a\nb]", "[\x7f]", "[\x00]"])
def test_what_is_no_name_in_brackets(text: str) -> None:
    assert is_refused(text)


def test_names_with_a_section() -> None:
    for section in SECTIONS:
        kind = SECTIONS[section]
        fields = FIELDS.get(kind, {"anything": "", "A_1": "", "not": ""})
        for name in fields:
            assert read(f"{section}.{name}") == [("NAME", f"{section}.{name}")]


@pytest.mark.parametrize(
    "section",
    [
        *("delivery_annotations", "delivery-annotations", "d", "message_annotations", "message-annotations", "m"),
        *("footer", "f", "application-properties", "P", "Properties", "HEADER", "foo", "a-p", "p_"),
    ],
)
def test_closed_and_unknown_sections(section: str) -> None:
    assert is_refused(f"{section}.subject")


@pytest.mark.parametrize("text", ["h.durable", "h.ttl", "h.first_acquirer", "h.delivery_count", "header.Priority"])
def test_the_header_has_priority_alone(text: str) -> None:
    assert is_refused(text)


@pytest.mark.parametrize("text", ["p.foo", "p.message-id", "properties.Subject", "p.priority", "p.subject_"])
def test_unknown_fields(text: str) -> None:
    assert is_refused(text)


def test_the_section_is_the_longest_match() -> None:
    assert is_refused("a-p.subject")
    assert split("a - p.subject") == ["a", "-", "p.subject"]
    assert split("5-p.group_sequence") == ["5", "-", "p.group_sequence"]
    assert split("p.group_sequence-a") == ["p.group_sequence", "-", "a"]


@pytest.mark.parametrize("text", ["a .x", "a. x", "a.[x]", "a.b.c", "a.1", "a._x", "a..b", "p.", ".subject", "[a].b"])
def test_points(text: str) -> None:
    assert is_refused(text)


def test_half_a_surrogate_pair_is_no_character() -> None:
    assert is_refused("x = '\ud800'")
    assert is_refused("[\udfff] = 1")


@pytest.mark.parametrize("text", ["", " ", "\t\r\n\f "])
def test_empty_texts(text: str) -> None:
    assert is_refused(text)


def test_the_limit_of_characters_counts_code_points() -> None:
    assert len(read("'" + "😀" * 4094 + "'")) == 1
    assert is_refused("'" + "😀" * 4095 + "'")
    assert len(list(read_tokens("12345", Limits(length=5)))) == 1
    with pytest.raises(Slip, match="6 characters"):
        list(read_tokens("123456", Limits(length=5)))


def test_the_limit_of_tokens() -> None:
    assert len(read("+ " * 200)) == 200
    assert is_refused("+ " * 201)
    with pytest.raises(Slip) as error:
        list(read_tokens("a = 1 AND b", Limits(tokens=3)))
    assert error.value.at == (6, 9)


_KINDS = {
    "NAME": r"[A-Za-z][A-Za-z0-9_-]*\.[A-Za-z][A-Za-z0-9_]*|[A-Za-z][A-Za-z0-9_]*|\[([^][\x00-\x1f\x7f]|\[\[|\]\])*\]",
    "FLOAT": r"[0-9]+\.[0-9]+(E[+-]?[0-9]+)?",
    "BINARY": r"0x([0-9A-F][0-9A-F])+",
    "INTEGER": r"[0-9]+",
    "STRING": r"'([^']|'')*'|\"([^\"]|\"\")*\"",
    "COMPARE": r"<>|!=|<=|>=|=|<|>",
    "SYMBOL": r"[-+*/%(),]",
}
_FRAGMENTS = [
    "a",
    "p.",
    "-",
    "_",
    "x",
    "0",
    "5",
    ".",
    "E",
    "0x",
    "41",
    "AND",
    "'",
    "''",
    '"',
    "[",
    "]]",
    "]",
    " ",
    "<",
    "=",
]
_FRAGMENTS += ["p.subject", "a.b", "5.0", "'b'", "[c]", ">", "!=", "+", "e", "UTC", "like", "h.priority"]


def cut_longest(text: str) -> list[str] | None:
    """Every length is tried, the longest is taken; None where nothing fits."""
    pieces, at = [], 0
    while at < len(text):
        if text[at] in " \t\f\n\r":
            at += 1
            continue
        ends = [
            end for end in range(at + 1, len(text) + 1) if any(re.fullmatch(k, text[at:end]) for k in _KINDS.values())
        ]
        if not ends:
            return None
        pieces.append(text[at : ends[-1]])
        at = ends[-1]
    return pieces


@settings(deadline=None)
@given(st.lists(st.sampled_from(_FRAGMENTS), max_size=9).map("".join))
def test_the_longest_match_wins(text: str) -> None:
    try:
        found = split(text)
    except Slip:
        return
    assert found == cut_longest(text)


def test_application_properties_have_any_field() -> None:
    assert Section.APPLICATION not in FIELDS
