"""The README's Python runs as it stands, but for the model's name and the missing GPU."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import trl

from ryarn import tiny

README = Path(__file__).parents[1] / "README.md"
MODEL = "Qwen/Qwen2.5-7B-Instruct"


# TRL's own defaults, and a machine without a GPU.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    code = "\n".join(blocks)
    assert MODEL in code
    model, tokenizer = tiny.build("qwen2")
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path / "model")
    row = '{"prompt": "Where is Ann?", "completion": "In the hall."}\n'
    (tmp_path / "rows.jsonl").write_text(row * 3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trl, "SFTConfig", partial(trl.SFTConfig, use_cpu=True))
    names: dict[str, object] = {}
    exec(code.replace(MODEL, str(tmp_path / "model")), names)
    losses = [e for e in names["trainer"].state.log_history if "train_loss" in e]  # type: ignore[attr-defined]
    assert len(losses) == 1
    assert (tmp_path / "runs" / "qwen" / "ryarn.json").is_file()
