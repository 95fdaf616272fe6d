"""Secrets of overlay.yaml: no message repeats one, wherever it was written by mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.config import load_service
from overlay.credentials import SECRETS
from overlay.errors import ConfigError

SECRET = "hunter2hunter2hunter2"
NAMES = (*SECRETS, "token", "admin_token")
HEAD = "kafka:\n  bootstrap.servers: a:1\n"


def refuse(folder: Path, text: str) -> str:
    """Return all messages about an overlay.yaml, empty if it is sound."""
    file = folder / "overlay.yaml"
    file.write_text(text)
    try:
        load_service(file, {})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "text",
    [
        f"kafka: [{{sasl.password: {SECRET}}}]\n",
        f"{HEAD}http: [{{token: {SECRET}}}]\n",
        f"{HEAD}  ssl.ca.location: {{ssl.key.password: {SECRET}}}\n",
        # a misspelt name among the settings
        f"kafka: [{{sasl.pasword: {SECRET}}}]\n",
        # a text where there should be fields
        f"kafka: |\n  sasl.password: {SECRET}\n",
        f"{HEAD}http: 'token: {SECRET}'\n",
        # what YAML takes for something else than a value
        f"{HEAD}  sasl.password: !{SECRET}\n",
        f"{HEAD}  sasl.password: !!{SECRET}\n",
        f"{HEAD}  sasl.password: !{SECRET}!x y\n",
        f"{HEAD}  sasl.password: *{SECRET}\n",
        f"{HEAD}  sasl.password: {{1: x, {SECRET}: 1, {SECRET}: 2}}\n",
        f"{HEAD}  sasl.password: {{!a {SECRET}: 2}}\n",
        f"{HEAD}  sasl.password: {{{SECRET}: {{<<: 1}}}}\n",
        f"{HEAD}  sasl.password: '${{{SECRET} 1}}'\n",
        f"{HEAD}  sasl.password: {{{SECRET}: '${{NOT_SET}}'}}\n",
        f"{HEAD}  sasl.password: {'9' * 200}{SECRET}: 1\n",
    ],
)
def test_a_secret_that_stands_in_the_wrong_place_is_not_shown(tmp_path: Path, text: str) -> None:
    message = refuse(tmp_path, text)
    assert message
    assert SECRET not in message


def test_an_anchor_that_is_used_again_shows_no_line(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    assert refuse(tmp_path, f"{HEAD}  sasl.password: &a {SECRET}\n  sasl.username: &a {SECRET}\n")
    assert SECRET not in "".join(str(each.message) for each in recwarn)


WRAPPED = st.recursive(
    st.sampled_from(("1", SECRET, f"'{SECRET}'", f"!{SECRET}", f"!!{SECRET} 1", f"*{SECRET}", f"&{SECRET}", f"!!int {SECRET}",
                     f"!!bool {SECRET}", f"!{SECRET}!x", f"'${{{SECRET}'", f"'${{ {SECRET}}}'", f"'$${{ {SECRET}'")),
    lambda inner: st.lists(inner, min_size=1, max_size=2).map(lambda parts: f"[{', '.join(parts)}]")
    | st.tuples(st.sampled_from((SECRET, f"? {SECRET}", f"!a {SECRET}", "1", "<<", "token")), inner, inner).map(
        lambda parts: f"{{{parts[0]}: {parts[1]}, {parts[0]}: {parts[2]}}}"
    )
    | st.tuples(st.sampled_from((SECRET, "a")), inner).map(lambda parts: f"{{{parts[0]}: {parts[1]}}}"),
    max_leaves=3,
)  # fmt: skip
"""What may stand under a secret's name, as YAML in one line."""
AROUND = st.lists(
    st.sampled_from(("[{}]", "[1, {}]", "{{a: {}}}", "{{sasl.password: {}}}", "{{ssl.ca.location: {}}}", "{{listen: {}}}",
                     "{{kafka: {}}}")),
    max_size=3,
)  # fmt: skip
PLACES = (HEAD + "  {}\n", HEAD + "http: {}\n", HEAD + "shards: {}\n", HEAD + "topics: {{reply_to: {}}}\n", HEAD + "x: {}\n",
          HEAD + "  client.id: {}\n", HEAD + "requests: {{pending: {}}}\n", "kafka: {}\n", "{}\n")  # fmt: skip
"""Where in overlay.yaml it is put, all with a name that is a secret's further in."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), AROUND, st.sampled_from(NAMES), WRAPPED)
def test_no_message_has_what_stands_under_a_secrets_name(
    tmp_path: Path, place: str, around: list[str], name: str, value: str
) -> None:
    text = f"{{{name}: {value}}}"
    for each in around:
        text = each.format(text)
    written = place.format(text)
    message = refuse(tmp_path, written)
    assert SECRET not in message, json.dumps(written)
