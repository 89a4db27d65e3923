"""Bins of published MRCR rows, and the tokenizer that they are counted with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiktoken
import tiktoken.load
from mrcr_rows import byte_encoding

from ryarn.errors import UserError
from ryarn.tasks.mrcr_length import BINS, bin_of, count_tokens, load_encoding


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (0, None),
        (4095, None),
        (4096, 8192),
        (8192, 8192),
        (8193, 16384),
        (16384, 16384),
        (16385, 32768),
        (131_072, 131_072),
        (131_073, 262_144),
        (1_048_576, 1_048_576),
        (1_048_577, None),
    ],
)
def test_bins_hold_their_upper_end_and_the_first_its_lower_end_too(
    tokens: int, expected: int | None
) -> None:
    assert bin_of(tokens) == expected


def test_names_of_bins_are_thousands_of_1024() -> None:
    factors = {"k": 1024, "M": 1024 * 1024}
    assert {name: int(name[:-1]) * factors[name[-1]] for name in BINS} == BINS
    assert len(BINS) == 8


def test_contents_are_counted_and_nothing_beside_them() -> None:
    encoding = byte_encoding()
    assert count_tokens(encoding, ["abc", "", "\u00e9", "x" * 100], 10**6) == 3 + 2 + 100
    # what looks like a special token is text
    assert count_tokens(encoding, ["<|endoftext|>"], 10**6) == 13


def test_counting_stops_once_there_are_too_many() -> None:
    def texts() -> object:
        yield "x" * 8
        yield "x" * 8
        pytest.fail("counted on")

    assert count_tokens(byte_encoding(), texts(), 15) == 16  # type: ignore[arg-type]
    assert count_tokens(byte_encoding(), ["x" * 8, "x" * 8, "x"], 16) == 17


def test_without_tiktoken_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(UserError, match=r"pip install 'ryarn\[mrcr\]'"):
        load_encoding()


def test_without_its_file_it_says_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(path: str) -> bytes:
        raise OSError(f"no route\n to {path}")

    monkeypatch.setattr(tiktoken.load, "read_file", unreachable)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(UserError) as error:
        load_encoding()
    text = str(error.value)
    assert "\n" not in text
    assert "o200k_base.tiktoken" in text
    assert "TIKTOKEN_CACHE_DIR" in text


def test_the_file_is_looked_for_under_the_name_that_the_message_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    # A file of the right name but other content: tiktoken reads it, then asks the network.
    monkeypatch.setattr(
        tiktoken.load, "check_hash", lambda data, wanted: read.append(data) or False
    )
    monkeypatch.setattr(tiktoken.load, "read_file", lambda path: b"")
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with pytest.raises(UserError) as error:
        load_encoding()
    name = str(error.value).partition(" in a folder")[0].rpartition(" ")[2]
    (tmp_path / name).write_bytes(b"from the folder")
    with pytest.raises(UserError):
        load_encoding()
    assert read == [b"", b"from the folder", b""]
