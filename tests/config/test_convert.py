"""From text and plain values to the types of fields; YAML without its traps."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recollect.config.convert import Loader, convert, number, plain_value, to_yaml
from recollect.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("300_000", 300_000),
        ("300k", 300_000),
        ("1m", 1_000_000),
        ("2.3M", 2_300_000),
        ("1.005k", 1005),
        ("1b", 10**9),
        ("3e5", 300_000),
        ("010", 10),
        ("-3", -3),
        ("+4", 4),
        (".5", 0.5),
        ("1e-4", 1e-4),
        ("-1.5e3", -1500),
        ("inf", math.inf),
        ("-.inf", -math.inf),
        ("1e400", math.inf),
    ],
)
def test_numbers(text, expected):
    assert number(text) == expected


@pytest.mark.parametrize("text", ["", "k", "abc", "1e", "0x10", "1:30", "--3", "1 2", "_", "٣", "1e5k3"])
def test_no_numbers(text):
    with pytest.raises(ValueError, match="is no number"):
        number(text)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("300k", int, 300_000),
        (3e5, int, 300_000),
        ("1e-4", float, 1e-4),
        (1, float, 1.0),
        ("none", float | None, None),
        (None, float | None, None),
        ("on", bool, True),
        ("No", bool, False),
        (False, bool, False),
        ("auto", Literal["auto"] | bool, "auto"),
        ("true", Literal["auto"] | bool, True),
        ("none", Literal["none", "full"], "none"),
        ("none", str | None, None),
        ("none", str, "none"),
        ("5", str | None, "5"),
        ("128,64", tuple[int, ...], (128, 64)),
        ("(64,)", tuple[int, ...], (64,)),
        ("[]", tuple[int, ...], ()),
        ("none", tuple[int, ...], ()),
        ([1, "2"], tuple[int, ...], (1, 2)),
        (64, tuple[int, ...], (64,)),
        ("a, b", tuple[str, ...], ("a", "b")),
        ("1,x", tuple[int, str], (1, "x")),
        ({"a": 1}, dict[str, Any], {"a": 1}),
    ],
)
def test_to_the_type_of_a_field(value, hint, expected):
    found = convert(value, hint, "--x")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        ("1.5", int, "--x 1.5: it needs a whole number, such as 300000, 3e5 or 300k"),
        ("1e999999999", int, "--x 1e999999999: it needs a whole number"),
        (True, int, "--x True: it needs a whole number"),
        ("fast", float | None, "--x fast: it needs a number or none, such as 0.001"),
        ("", int, "--x '': it needs a whole number"),
        ("maybe", bool, "--x maybe: choose one of true, false"),
        ("ful", Literal["none", "full"], r"--x ful: choose one of none, full \(did you mean 'full'\?\)"),
        (5, str, "--x 5: it needs text: put it in quotes"),
        ("1,b", tuple[int, ...], "--x 1,b: it needs a list, each a whole number, such as 128,128"),
        ("1,2,3", tuple[int, str], "--x 1,2,3: it needs a list"),
        ("x", dict[str, Any], "--x x: it needs a dict"),
    ],
)
def test_what_does_not_fit_is_told(value, hint, message):
    """S003-17: refused with the flag, the value and what would do."""
    with pytest.raises(ConfigError, match=message):
        convert(value, hint, "--x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4", 1e-4),
        ("010", 10),
        ("300_000", 300_000),
        ("-3", -3),
        (".inf", math.inf),
        ("true", True),
        ("null", None),
        ("on", "on"),
        ("no", "no"),
        ("0x1F", "0x1F"),
        ("1:30", "1:30"),
        ("2026-11-15", "2026-11-15"),
        ("[1, 2]", [1, 2]),
        ("{a: 1}", {"a": 1}),
        ("'5'", "5"),
        ("a: b", "a: b"),
        ("- a", "- a"),
        ("{a", "{a"),
        ("{a: 1, a: 2}", "{a: 1, a: 2}"),
        ("", ""),
        ("!!python/object:os.system x", "!!python/object:os.system x"),
    ],
)
def test_values_without_a_type(text, expected):
    found = plain_value(text)
    assert found == expected
    assert type(found) is type(expected)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(plain)
@settings(deadline=None)
@example("\n")
@example(["a\nb", "\x85", "\u2028 #", {"a": "\ufeff\x7f"}])
def test_what_is_written_is_read_back(value):
    text = to_yaml(value)
    assert "\n" not in text
    found = yaml.load(text, Loader=Loader)
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "text", ["on", "no", "010", "1e-4", "1_000", "1:30", "null", "~", "2026-11-15", "<<"]
)
def test_text_that_looks_like_something_else_is_quoted(text):
    """Also for other readers, that follow YAML 1.1."""
    assert to_yaml(text) == f"'{text}'"
    assert yaml.safe_load(to_yaml(text)) == text


@given(st.floats(allow_nan=False))
@settings(deadline=None)
def test_floats_are_floats_for_other_readers_too(value):
    assert yaml.safe_load(to_yaml(value)) == value
