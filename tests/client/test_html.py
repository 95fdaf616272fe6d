"""HTML for notebooks: every text of it is foreign, and none of it becomes a tag, an attribute or a command."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from overlay.client.control.consumer_info import read_info
from overlay.client.html import MOST_CHARACTERS, write_line, write_sheet, write_table
from overlay.client.texts import make_printable, show_content
from tests.client.control.test_control import make_answer

TAGS = {"table", "thead", "tbody", "tr", "th", "td", "i", "p"}
HOSTILE = "<script>alert(1)</script><img src=x onerror='a'>\"&amp;\x1b[2J\u202e\ud800"
texts = st.text(st.characters(), max_size=30) | st.sampled_from([HOSTILE, "</td>", "&lt;", ""])


class Page(HTMLParser):
    """The rows of the tables of a page, and its paragraphs. Raises for a tag or an attribute that is none of ours."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self.lines: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS and {name for name, _ in attrs} <= {"style"}
        assert all(value in ("text-align:left", "text-align:right") for _, value in attrs)
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "p":
            self.lines.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] == "p":
            self.lines[-1] += data
        else:
            self.rows[-1][-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def cut(text: str) -> str:
    return make_printable(text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…")


@given(st.lists(st.tuples(texts, st.none() | texts, texts), min_size=1, max_size=4))
def test_what_a_table_shows_is_its_texts(rows: list[tuple[str, str | None, str]]) -> None:
    names = [HOSTILE, "n", rows[0][0]]
    page = Page(write_table(names, rows, numbers=["n"]))
    assert page.rows == [[*map(cut, names)], *([cut("null" if text is None else text) for text in row] for row in rows)]


@given(st.lists(st.tuples(texts, texts)), texts)
def test_what_sheets_and_lines_show(pairs: list[tuple[str, str]], line: str) -> None:
    page = Page(write_sheet(pairs) + write_line(line))
    assert page.rows == [[cut(name), cut(value)] for name, value in pairs if value]
    assert page.lines == ([make_printable(line)] if line else [])


def test_long_texts_are_cut() -> None:
    (_, (cell,)) = Page(write_table(["a"], [["x" * 500]])).rows
    assert cell == "x" * 99 + "…"


def test_control_characters_are_escapes() -> None:
    assert make_printable("a\x1b[2J\n\u202e\ud800é漢") == "a\\x1b[2J\\n\\u202e\\ud800é漢"
    assert show_content(b"\xff\x00a\xc3\xa9") == "\\xff\\x00aé"
    assert show_content(HOSTILE.encode("utf-8", "surrogatepass")).isprintable()


def test_a_consumer_is_a_sheet_of_its_state_and_settings() -> None:
    info = read_info(make_answer(consumer_sequence=4000, positions={"s-0": 9}, state="running", reason=HOSTILE))
    rows = dict(Page(info._repr_html_()).rows)
    assert (rows["consumer"], rows["state"], rows["reason"]) == ("S/c", "running", cut(HOSTILE))
    assert rows["delivered"] == "4,000, up to stream sequence 9" and rows["to come"] == "not known"
    assert rows["filter_subject"] == "t.a"


def test_columns_that_are_aligned_may_come_once() -> None:
    assert write_table(("a", "b"), [("1", "2")], iter(["a", "b"])).count("text-align:right") == 4
