"""See that an export computes what the adapter run computes: in a new process, without ryarn."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ryarn.errors import SelfTestError
from ryarn.export import probe
from ryarn.export.served import Served
from ryarn.trust import is_trusted

REFERENCE, ANSWER = "reference.npz", "answer.npz"
_TOKENS, _STRETCHES = 64, 4

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "f32": 1e-3, "f16": 0.02, "q8_0": 0.2}
"""Largest difference allowed, by what the weights are stored in."""


@dataclass(frozen=True)
class Row:
    """One row of the comparison.

    Attributes:
        reach: Its last position.
        difference: Root mean square over all logits of the row, in their standard deviations.
    """

    reach: int
    difference: float


_TEXT = (
    "In the spring the two sisters walked along the river to the old mill. Anna carried the "
    "basket, and Maria the letters that their uncle had sent from the city. The miller was out. He "
    "had gone to the market with 12 sacks of flour, so they sat down under the tree and read. What "
    "did the letters say? First, that the house on the hill would be sold; second, that a ship "
    "with 300 passengers had come in late; and third, that nobody knew where the key was. "
    "Anna laughed. She had found it a week ago, behind the clock in the kitchen."
)


def rows(served: Served, tokenizer: Any) -> tuple[Any, Any]:
    """Tokens and positions to compare at: within 64 tokens, the original window, the whole one.

    A row of 64 tokens whose positions reach far costs what a short row costs, and sees the same
    phases as a text of that length.

    Returns:
        Token ids and positions, int64, shape [3, tokens] each.
    """
    text = tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
    tokens = min(_TOKENS, served.original_length)
    reaches = [tokens - 1, served.original_length - 1, served.window - 1]
    starts = np.linspace(0, max(len(text) - tokens, 0), len(reaches)).astype(int)
    ids = [np.resize(text[start:], tokens) for start in starts]
    return np.stack(ids), np.stack([_spread(reach, tokens) for reach in reaches])


def _spread(reach: int, tokens: int) -> Any:
    """Positions in a few stretches, the first from 0 on, the last up to `reach`.

    Words in stretches read like text with pages missing. Tokens that stand each alone do not, and
    rounding then moves the logits of a real model several times as far.
    """
    stretches = np.array_split(np.arange(tokens), _STRETCHES)
    starts = np.linspace(0, reach + 1 - len(stretches[-1]), _STRETCHES).astype(int)
    return np.concatenate(
        [start + np.arange(len(part)) for start, part in zip(starts, stretches, strict=True)]
    )


def write_reference(folder: Path, model: Any, tokenizer: Any, served: Served) -> None:
    """Save what the adapter run computes, a PEFT model in float32."""
    ids, positions = rows(served, tokenizer)
    measured = probe.measure(model.get_base_model(), ids, positions)
    np.savez(folder / REFERENCE, ids=ids, positions=positions, **measured)


def check(folder: Path, stored: str) -> list[Row]:
    """Load an export in a new process and compare.

    Args:
        folder: The export, with the reference in it; the reference is removed when all is well.
        stored: What the weights are stored in, a key of `TOLERANCE`.

    Raises:
        SelfTestError: It does not load, its RoPE is another, or its logits are too far off.
    """
    ask_new_process(folder)
    reference, answer = dict(np.load(folder / REFERENCE)), dict(np.load(folder / ANSWER))
    found = compare(reference, answer)
    worst = max(row.difference for row in found)
    # Written so that a difference that is no number fails.
    if not worst <= TOLERANCE[stored]:
        raise SelfTestError(
            f"the export in {folder} computes something else than the adapter: logits differ "
            f"by {worst:.2g} standard deviations, more than {TOLERANCE[stored]:g} for {stored}"
        )
    (folder / REFERENCE).unlink()
    (folder / ANSWER).unlink()
    return found


def ask_new_process(folder: Path) -> None:
    """Let a new Python process load an export and write what it computes beside the reference.

    Raises:
        SelfTestError: It does not load; the process's last line is given.
    """
    # As many threads as here: sums in another order differ in the last bits.
    program = (
        f"import runpy, sys, torch; torch.set_num_threads({torch.get_num_threads()}); "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    arguments = [probe.__file__, *map(str, (folder, folder / REFERENCE, folder / ANSWER))]
    arguments += ["--trust-remote-code"] if is_trusted() else []
    run = subprocess.run(
        [sys.executable, "-I", "-c", program, *arguments], capture_output=True, text=True
    )
    if run.returncode:
        reason = (run.stderr.strip() or f"exit code {run.returncode}").splitlines()[-1]
        raise SelfTestError(f"the export in {folder} does not load in a new process: {reason}")


def compare(reference: dict[str, Any], answer: dict[str, Any]) -> list[Row]:
    """Compare what two models measured.

    Raises:
        SelfTestError: Their RoPEs differ.
    """
    ropes = sorted(key for key in reference if key.startswith("rope "))
    for key in ropes:
        if key not in answer or not np.allclose(reference[key], answer[key], rtol=1e-5, atol=0):
            raise SelfTestError(
                f"the export's RoPE differs from the adapter's in {key.removeprefix('rope ')}: it "
                "would serve other frequencies or another attention factor"
            )
    found = []
    for where, mine, theirs in zip(
        reference["positions"], reference["logits"], answer["logits"], strict=True
    ):
        difference = np.sqrt(np.square(mine - theirs).mean()) / mine.std()
        found.append(Row(int(where[-1]), float(difference)))
    return found
