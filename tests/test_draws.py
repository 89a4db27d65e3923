"""Draws: a function of the address alone."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from ryarn.draws import generator, row_key
from ryarn.errors import UserError

ADDRESSES = [
    (0, 0, 0, 0),
    (7, 0, 0, 0),
    (0, 7, 0, 0),
    (0, 0, 7, 0),
    (0, 0, 0, 7),
    (1, 2, 3, 4),
    (42, 10_000, 2**128 - 1, 3),
]

# The first two outputs of PCG64, whose stream and seeding NumPy keeps stable: a change here means
# that no earlier run can be repeated.
GOLDEN: dict[tuple[int, ...], tuple[int, int]] = {
    (0, 0, 0, 0): (18_257_768_966_848_014_955, 14_346_379_979_781_832_458),
    (1, 2, 3, 4): (2_131_343_447_638_665_558, 1_903_006_202_268_943_692),
    (42, 10_000, 2**128 - 1, 3): (6_521_540_604_458_662_679, 208_505_975_157_733_051),
}


def bits(*address: int) -> tuple[int, int]:
    raw = generator(*address).bit_generator.random_raw(2)
    return int(raw[0]), int(raw[1])


@pytest.mark.parametrize("address", GOLDEN, ids=str)
def test_an_address_keeps_its_draw_from_release_to_release(address: tuple[int, ...]) -> None:
    assert bits(*address) == GOLDEN[address]


def test_document_defaults_to_the_first() -> None:
    assert bits(5, 6, 7) == bits(5, 6, 7, 0)


def test_order_and_number_of_calls_do_not_matter() -> None:
    forwards = {address: bits(*address) for address in ADDRESSES}
    np.random.default_rng(0).random(100)
    generator(1, 1, 1).random(100)
    backwards = {address: bits(*address) for address in reversed(ADDRESSES)}
    assert forwards == backwards


def test_another_process_draws_the_same() -> None:
    code = (
        "import json, sys\n"
        "from ryarn.draws import generator\n"
        "addresses = json.loads(sys.argv[1])[::-1]\n"
        "print(json.dumps([generator(*a).bit_generator.random_raw(2).tolist() for a in addresses]))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, json.dumps(ADDRESSES)],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = [tuple(raw) for raw in json.loads(process.stdout)][::-1]
    assert theirs == [bits(*address) for address in ADDRESSES]


def test_every_part_of_the_address_counts() -> None:
    near = list(itertools.product(range(4), repeat=4))  # all permutations of the parts among them
    # Where numbers of 32-bit words meet: joined without borders, these collide with one another.
    far = [
        (2**32, 0, 0, 0),
        (0, 2**32, 0, 0),
        (0, 0, 2**32, 0),
        (0, 0, 0, 2**32),
        (1 + 2**32, 2, 3, 0),
        (1, 1 + 2 * 2**32, 3, 0),
        (1, 2 + 3 * 2**32, 0, 0),
        (2**128 - 1, 0, 0, 0),
        (0, 2**64 - 1, 0, 0),
        (0, 0, 2**128 - 1, 0),
        (0, 0, 0, 2**64 - 1),
    ]
    drawn = {address: bits(*address) for address in near + far}
    assert len(set(drawn.values())) == len(near) + len(far)


@pytest.mark.parametrize("part", range(4))
def test_neighbours_in_each_part_draw_independently(part: int) -> None:
    addresses = [tuple(n if p == part else 11 for p in range(4)) for n in range(4001)]
    drawn = np.array([generator(*address).random() for address in addresses])
    # Pairs of neighbours fill the unit square evenly: neither value nor step is related.
    counts = np.histogram2d(drawn[:-1:2], drawn[1::2], bins=5, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(counts.ravel()).pvalue > 1e-4


def test_numpy_integers_are_the_same_address() -> None:
    assert bits(1, 2, 3, 4) == bits(*np.array([1, 2, 3, 4]))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ((-1, 0, 0, 0), "seed = -1: expected a whole number from 0 to 2"),
        ((2**128, 0, 0, 0), "seed = "),
        ((0, -1, 0, 0), "step = -1"),
        ((0, 2**64, 0, 0), "step = "),
        ((0, 0, -5, 0), "row = -5"),
        ((0, 0, 2**128, 0), "row = "),
        ((0, 0, 0, -1), "document = -1"),
        ((0, 0, 0, 2**64), "document = "),
    ],
)
def test_a_part_out_of_range_is_refused(address: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generator(*address)


def test_a_fraction_is_no_address() -> None:
    with pytest.raises(TypeError):
        generator(0, 1.5, 0)  # type: ignore[arg-type]


def test_row_key_is_the_published_hash() -> None:
    # `printf '\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0' | b2sum -l 128`, bytes read as little endian
    digest = bytes.fromhex("f59df9f51bfcb52f7ae49756810ec78b")
    assert row_key(np.array([1, 2])) == int.from_bytes(digest, "little")


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<i4", ">i4", "u2"])
def test_row_key_sees_ids_and_not_how_they_are_stored(dtype: str) -> None:
    ids = [5, 0, 15_164, 3]
    assert row_key(np.array(ids, dtype=dtype)) == row_key(np.array(ids))
    assert row_key(np.repeat(np.array(ids, dtype=dtype), 2)[::2]) == row_key(np.array(ids))


def test_row_key_differs_with_content_order_and_length() -> None:
    documents = [[], [0], [0, 0], [1], [1, 2], [2, 1], [1, 2, 0], [2**32 + 1, 2]]
    keys = {row_key(np.array(document, dtype=np.int64)) for document in documents}
    assert len(keys) == len(documents)
    assert all(0 <= key < 2**128 for key in keys)


def test_row_key_refuses_what_is_not_token_ids() -> None:
    with pytest.raises(TypeError):
        row_key(np.array([1.0, 2.0]))


def test_equal_documents_are_drawn_apart_by_number() -> None:
    key = row_key(np.array([1, 2, 3]))
    assert bits(0, 0, key, 0) != bits(0, 0, key, 1)
