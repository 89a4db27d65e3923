"""The README of an adapter's folder: how to load it right, since plain PEFT loses its YaRN."""

from __future__ import annotations

from pathlib import Path

from ryarn.contract import Contract


def write_readme(folder: Path, final: Path) -> None:
    """Write `README.md` over the one that PEFT leaves, from the folder's contract.

    Args:
        folder: Where the adapter lies now.
        final: Where it will lie.
    """
    contract = Contract.load(folder)
    name = final.as_posix()
    run = final.parent.as_posix() if final.name == "adapter" else name
    if contract.eval_factor is None:
        rope = "It runs on the base's own RoPE."
    else:
        rope = (
            f"It runs under YaRN, factor {contract.eval_factor:g} on a window of "
            f"{contract.base.original_length} tokens. PEFT does not save that: on the plain base, "
            "`PeftModel.from_pretrained` gives no error and fluent nonsense."
        )
    text = f"""---
library_name: peft
tags: [ryarn, yarn, lora]
---

# LoRA adapter, method `{contract.method}`

{rope} Load it with these two lines, which also refuse any base but `{contract.base.name}`:

```python
import ryarn
model, tokenizer = ryarn.load("{name}")
```

To run it where ryarn is not installed, in transformers, vLLM or llama.cpp:

```sh
ryarn export {run} --to exported
```

`ryarn.json` says what it was trained under.
"""
    (folder / "README.md").write_text(text, encoding="utf-8")
