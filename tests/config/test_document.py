from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.config.document import parse_document, read_document, show_path
from overlay.errors import ConfigError, FilePosition


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "f.yaml", "is empty"),
        ("# nothing\n", "f.yaml", "is empty"),
        ("---\n~\n", "f.yaml", "is empty"),
        ("- a\n- b\n", "f.yaml:1:1", "is not a mapping"),
        ("just a text\n", "f.yaml:1:1", "is not a mapping"),
        ("a: 1\nb: [1, 2\nc: 3\n", "f.yaml:3:2", "begun in line 2"),
        ("a: 1\n b: 2\n", "f.yaml:2:3", "is not YAML"),
        ('a: "open\n', "f.yaml:2:1", "is not YAML"),
        ("a:\n\tb: 1\n", "f.yaml:2:1", "a tab where YAML wants spaces"),
        ("a: 1\n---\na: 2\n", "f.yaml:2:1", "a second document"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1", "stands here a second time, first in line 1"),
        ("x:\n  a: 1\n  a: 2\n", "f.yaml:3:3", "x.a: stands here a second time"),
        ("a: &x 1\n<<: {b: 2}\n", "f.yaml:2:1", "merge keys"),
        ("a: *nowhere\n", "f.yaml:1:4", "is not YAML"),
        ("a: &x [*x]\n", "f.yaml:1:4", "an alias that contains itself"),
        ("1: a\n", "f.yaml:1:1", "the key 1 is not a text"),
        ("a: {true: 1}\n", "f.yaml:1:5", "the key true is not a text"),
        ("[a]: 1\n", "f.yaml:1:1", "the key a list or mapping is not a text"),
        ("a: !env HOME\n", "f.yaml:1:4", "the YAML tag !env is not supported"),
        ("a: \x07\n", "f.yaml", "is not YAML"),
        ('a: "\\ud800"\n', "f.yaml:1:4", "half of a surrogate pair"),
        ("a: " + "[" * 500, "f.yaml:1:24", "is nested too deeply"),
        ("".join(f"{' ' * n}a:\n" for n in range(30)), "f.yaml:20:20", "is nested too deeply"),
        ("a: " + "1" * 5000, "f.yaml:1:4", "a number too long"),
        ("a: !!int abc\n", "f.yaml:1:4", "the tag !!int does not fit this value"),
        ("a: !!int 1.5\n", "f.yaml:1:4", "the tag !!int does not fit"),
        ("a: !!float 1e\n", "f.yaml:1:4", "the tag !!float does not fit"),
        ("a: [1, !!bool maybe]\n", "f.yaml:1:8", "the tag !!bool does not fit"),
        ("a: !!bool yes\n", "f.yaml:1:4", "the tag !!bool does not fit"),
        ("a: !!null x\n", "f.yaml:1:4", "the tag !!null does not fit"),
        ("a: !!timestamp soon\n", "f.yaml:1:4", "the tag !!timestamp does not fit"),
        ("a: !!binary aGk=\n", "f.yaml:1:4", "the YAML tag !!binary is not supported"),
        ("a: !!int {b: 1}\n", "f.yaml:1:4", "the YAML tag !!int is not supported for a mapping"),
        ("a: !foo {b: 1}\n", "f.yaml:1:4", "the YAML tag !foo is not supported for a mapping"),
        ("a: !!set {b: ~}\n", "f.yaml:1:4", "the YAML tag !!set is not supported for a mapping"),
        ("a:\n  - !!map [b]\n", "f.yaml:2:5", "the YAML tag !!map is not supported for a list"),
        ("a: !!omap [b: 1]\n", "f.yaml:1:4", "the YAML tag !!omap is not supported for a list"),
        ("!foo {b: 1}\n", "f.yaml:1:1", "the YAML tag !foo is not supported for a mapping"),
        ("!!null x\n", "f.yaml:1:1", "the tag !!null does not fit"),
        ("!foo a: 1\n", "f.yaml:1:1", "the key a is not a text"),
        ("a: 1\nb: ! 12\n", "f.yaml:2:4", "a `!` without a name"),
        ("a: 0x_\n", "f.yaml:1:4", "is not a number"),
        ("a: ._\n", "f.yaml:1:4", "is not a number"),
        ("%YAML 1.1\n---\na: 12:30\n", "f.yaml:1:1", "is for another version"),
        ("# old\n%YAML 1.1\n---\na: yes\n", "f.yaml:2:1", "is for another version"),
        ("%YAML 1.3\n---\na: 1\n", "f.yaml:1:1", "is for another version"),
        (f"%YAML 1.{'1' * 5000}\n---\na: 1\n", "f.yaml:1:1", "is for another version"),
        ('a: "\\UFFFFFFFF"\n', "f.yaml:1:7", "an escape for no character"),
    ],
)
def test_what_is_no_config_file_is_refused_at_its_place(text: str, place: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document("f.yaml", text)
    assert str(caught.value).startswith(f"{place}: ")
    assert message in str(caught.value)


_KINDS: dict[str, tuple[type, ...]] = {
    "": (int, float, bool, type(None), str),
    "!!int": (int,),
    "!!float": (float,),
    "!!bool": (bool,),
    "!!null": (type(None),),
    "!!str": (str,),
    "!!timestamp": (str,),
    "!!binary": (),
    "!!merge": (),
    "!!map": (),
    "!a": (),
    "!": (),
}
_TEXTS = ("0x1f", "0x_", "0b1", "-0o17", "1_0", "12:30", ".5", "1e5", "._", "-.inf", "+.nan", "~", "null", "TRUE", "tRUE",
          "yes", "off", "2020-01-01", "=", "<<", "\u0663", "abc", "")  # fmt: skip


@given(
    st.sampled_from(sorted(_KINDS)),
    st.sampled_from(_TEXTS) | st.text("0123456789abox_.+-eE:~=", max_size=6),
    st.sampled_from(("{}", '"{}"', "'{}'")),
    st.sampled_from(
        ("a: {}\n", "a: [{}]\n", "%YAML 1.2\n---\na: {}\n", "%YAML 1.1\n---\na: {}\n", "%YAML 1.4\n---\na: {}\n")
    ),
)
def test_a_tagged_value_is_read_as_its_tag_says_or_refused_at_its_place(
    tag: str, text: str, quotes: str, file: str
) -> None:
    value = quotes.format(text)
    try:
        found = parse_document("f.yaml", file.format(f"{tag} {value}")).data["a"]
    except ConfigError as error:
        assert error.place.line and error.place.column
        return
    assert "1.1" not in file and "1.4" not in file
    (found,) = found if isinstance(found, tuple) else (found,)
    assert type(found) in _KINDS[tag]
    if isinstance(found, bool):
        assert text in ("true", "True", "TRUE", "false", "False", "FALSE")


def test_tags_that_fit_change_nothing() -> None:
    text = (
        "a: !!map {b: !!seq [!!int 0x1F, !!int '12', !!float 1, !!bool TRUE, !!null '', !!str 1, !!str ]}\n!!str 1: 2\n"
    )
    assert parse_document("f.yaml", text).data == {"a": {"b": (31, 12, 1.0, True, None, "1", "")}, "1": 2}


def test_an_anchor_may_be_used_again() -> None:
    assert parse_document("f.yaml", "a: &x 1\nb: &x 2\nc: *x\n").data == {"a": 1, "b": 2, "c": 2}


def test_many_aliases_of_aliases_end_in_an_error() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join(['*' + chr(ord(name) - 1)] * 9)}]\n" for name in "bcdefgh"
    )
    with pytest.raises(ConfigError, match="more than 100000 values"):
        parse_document("f.yaml", bomb)


def test_yaml_1_2_reads_words_as_texts() -> None:
    found = parse_document(
        "f.yaml", "a: [no, on, 12:30, 0o17, 0x1F, -3, 1_000, .5, true, ~, 2020-01-01T00:00:00Z]\n"
    ).data
    assert found == {"a": ("no", "on", "12:30", 15, 31, -3, 1000, 0.5, True, None, "2020-01-01T00:00:00Z")}


def test_places_are_those_of_keys_and_values() -> None:
    document = parse_document("f.yaml", "a: 1\nlist:\n  - x\n  - {y: 2}\n")
    assert document.place(("list", 1, "y")) == FilePosition("f.yaml", 4, 9)
    assert document.place(("list", 1, "y"), key=True) == FilePosition("f.yaml", 4, 6)
    assert document.place(("list", 7)) == document.place(("list",)) == FilePosition("f.yaml", 3, 3)
    assert document.place(("zork",)) == FilePosition("f.yaml", 1, 1)
    assert show_path(("filter", "values", 2, "x")) == "filter.values[2].x"


def test_a_byte_order_log_position_is_no_content(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(file).data == {"a": 1}


def test_other_encodings_are_refused_at_the_first_bad_byte(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"a: 1\nb: M\xfcnchen\n")
    with pytest.raises(ConfigError, match=r"f\.yaml:2:5: is not UTF-8"):
        read_document(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        read_document(tmp_path)
