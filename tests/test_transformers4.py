"""Exports read by transformers 4: the same frequencies, logits and tokens as by transformers 5."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from environments import python_of, run_in
from export_runs import SHAPES, WINDOW, make_base, make_run
from ryarn.export import export, probe

pytestmark = pytest.mark.slow
READ = """
import json, sys
from transformers import AutoConfig, AutoTokenizer, __version__
config, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoConfig, AutoTokenizer))
print(json.dumps({
    "version": __version__, "scaling": config.rope_scaling, "theta": config.rope_theta,
    "window": config.max_position_embeddings, "limit": tokenizer.model_max_length,
    "tokens": tokenizer("<|im_start|>user 12")["input_ids"],
    "special": tokenizer.all_special_tokens,
}))
"""


@pytest.mark.parametrize("base", [*SHAPES, "tiny:llama"])
def test_transformers_4_reads_the_same(
    base: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    python_of("transformers4")
    where = make_base(tmp_path / "base", SHAPES[base], tokenizer) if base in SHAPES else base
    out = export(make_run(tmp_path / "run", where), tmp_path / "out").folder
    (tmp_path / "read.py").write_text(READ)
    seen = json.loads(run_in("transformers4", tmp_path / "read.py", out).splitlines()[-1])
    window = WINDOW if base in SHAPES else 4096
    assert seen["version"].startswith("4.")
    assert seen["window"] == seen["limit"] == 4 * window
    assert seen["scaling"]["factor"] == 4
    assert seen["scaling"]["original_max_position_embeddings"] == window
    again = AutoTokenizer.from_pretrained(out)
    assert seen["tokens"] == again("<|im_start|>user 12")["input_ids"]
    # transformers 5 adds an end-of-text token of its own to every Qwen 2 tokenizer.
    assert set(seen["special"]) == set(again.all_special_tokens) - {"<|endoftext|>"}

    request, answer = tmp_path / "request.npz", tmp_path / "answer.npz"
    ids = np.arange(64)[None] * 3 % 250
    np.savez(request, ids=ids, positions=np.linspace(0, 4 * window - 1, 64).astype(int)[None])
    run_in("transformers4", Path(probe.__file__), out, request, answer)
    theirs = dict(np.load(answer))
    mine = probe.measure(probe.load(out), ids, np.load(request)["positions"])
    assert np.abs(mine["logits"] - theirs["logits"]).max() < 1e-4 * mine["logits"].std()
    ropes = [
        sorted(value.tolist() for key, value in found.items() if key.startswith("rope "))
        for found in (mine, theirs)
    ]
    assert np.allclose(*ropes, rtol=1e-6, atol=0)
