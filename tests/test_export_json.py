"""Setting one key in JSON text: every other byte stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ryarn.export.json_edit import set_key

TEXT = """{
  "eps": 1e-05,
  "a":  [1,2],
  "inner": {
    "x": 1.0, "é": "\\u00e9"
  },
  "z": null
}
"""


def test_a_value_is_replaced_and_all_else_stays() -> None:
    assert set_key(TEXT, ["z"], 7) == TEXT.replace("null", "7")


def test_a_nested_value_is_replaced_where_it_stands() -> None:
    assert set_key(TEXT, ["inner", "x"], 2) == TEXT.replace("1.0", "2")


def test_a_value_that_is_there_keeps_its_spelling() -> None:
    assert set_key(TEXT, ["eps"], 0.00001) == TEXT
    assert set_key(TEXT, ["a"], [1, 2]) == TEXT


def test_a_new_key_goes_to_the_end_of_its_object() -> None:
    changed = set_key(TEXT, ["inner", "new"], {"k": 1})
    assert changed.startswith(TEXT[: TEXT.index('"\\u00e9"') + len('"\\u00e9"')])
    assert json.loads(changed)["inner"] == {"x": 1.0, "é": "é", "new": {"k": 1}}
    assert changed.endswith(TEXT[TEXT.index('\n  },\n  "z"') :])
    assert '\n    "new": {\n      "k": 1\n    }' in changed


@pytest.mark.parametrize("text", ["{}", "{ }\n", "{\n}\n"])
def test_an_empty_object_gets_its_first_key(text: str) -> None:
    assert json.loads(set_key(text, ["k"], "v")) == {"k": "v"}


@pytest.mark.parametrize("value", [None, True, -1.5, 'a}"{,', [], {}, {"n": [{"m": None}]}])
def test_any_value_reads_back(value: Any) -> None:
    for path in (["a"], ["new"], ["inner", "é"], ["inner", "new"]):
        changed = json.loads(set_key(TEXT, path, value))
        expected = json.loads(TEXT)
        holder = expected if len(path) == 1 else expected["inner"]
        holder[path[-1]] = value
        assert changed == expected


def test_a_missing_section_is_no_place() -> None:
    with pytest.raises(KeyError):
        set_key(TEXT, ["nowhere", "k"], 1)
    with pytest.raises(json.JSONDecodeError):
        set_key(TEXT, ["a", "k"], 1)
