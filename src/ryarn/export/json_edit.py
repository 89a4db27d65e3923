"""Set a key in JSON text and leave every other byte as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def set_key(text: str, path: Sequence[str], value: Any) -> str:
    """Set one key of a JSON object, where it stands or at the object's end.

    A key that has the value already is left alone: `1e-05` does not become `0.00001`.

    Args:
        text: JSON text whose top level is an object.
        path: Keys from the top level down; all but the last must be there.
        value: What to set, a JSON value.

    Returns:
        The text with that one value changed.

    Raises:
        KeyError: A key on the way is missing.
        json.JSONDecodeError: The text is not JSON.
    """
    start = _skip(text, 0)
    for key in path[:-1]:
        start = _members(text, start)[key][0]
    members = _members(text, start)
    margin = "  " * len(path)
    written = json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{margin}")
    if path[-1] in members:
        begin, end = members[path[-1]]
        if json.loads(text[begin:end]) == value:
            return text
        return text[:begin] + written + text[end:]
    entry = f"\n{margin}{json.dumps(path[-1])}: {written}"
    if members:
        end = max(end for _, end in members.values())
        return f"{text[:end]},{entry}{text[end:]}"
    return f"{text[: start + 1]}{entry}\n{margin[2:]}{text[_skip(text, start + 1) :]}"


def _members(text: str, start: int) -> dict[str, tuple[int, int]]:
    """Key to where its value begins and ends, for the object that begins at `start`."""
    if text[start : start + 1] != "{":
        raise json.JSONDecodeError("expected an object", text, start)
    found: dict[str, tuple[int, int]] = {}
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        found[key] = (begin, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
