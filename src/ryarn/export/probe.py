"""What an exported folder computes, seen with transformers alone: run as a script, without ryarn.

`python probe.py FOLDER REQUEST.npz ANSWER.npz [--trust-remote-code]` loads the folder in a process
of its own. It imports nothing of ryarn, so that what it sees is what others will load.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


def measure(model: Any, ids: Any, positions: Any) -> dict[str, Any]:
    """Logits of some rows, and the RoPE that made them.

    Args:
        model: A causal language model.
        ids: Token ids, shape [rows, tokens].
        positions: Where the tokens stand, shape [rows, tokens].

    Returns:
        `logits` as float32, shape [rows, tokens, vocabulary], and for each rotary buffer its
        frequencies and the factor on cos and sin.
    """
    device = next(model.parameters()).device
    answer: dict[str, Any] = {}
    with torch.no_grad():
        rows = [
            model(
                input_ids=torch.as_tensor(row, device=device)[None],
                position_ids=torch.as_tensor(where, device=device)[None],
                # With a mask, transformers does not take gaps in positions for packed documents.
                attention_mask=torch.ones(1, len(row), dtype=torch.long, device=device),
                use_cache=False,
            ).logits[0]
            for row, where in zip(ids, positions, strict=True)
        ]
    answer["logits"] = torch.stack(rows).float().cpu().numpy()
    decoder = model.get_decoder()
    for path, module in decoder.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name.endswith("inv_freq") and not name.endswith("original_inv_freq"):
                prefix = name.removesuffix("inv_freq")
                scale = getattr(module, f"{prefix}attention_scaling", 1.0)
                answer[f"rope {path}.{name}"] = np.append(buffer.double().cpu().numpy(), scale)
    return answer


def load(folder: Path, is_trusted: bool = False) -> Any:
    """Load what lies in a folder: a whole model, an adapter beside its base, or a GGUF file.

    In float32: bfloat16 arithmetic alone can move logits more than a wrong merge does.

    Args:
        folder: The folder.
        is_trusted: Whether Python code in it may run.
    """
    from transformers import AutoModelForCausalLM

    gguf = next(folder.glob("*.gguf"), None)
    if gguf is not None:
        return load_gguf(gguf)
    if (folder / "base").is_dir():
        from peft import PeftModel

        base = AutoModelForCausalLM.from_pretrained(
            folder / "base", dtype=torch.float32, trust_remote_code=is_trusted
        )
        return PeftModel.from_pretrained(base, str(folder / "adapter")).get_base_model().eval()
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=is_trusted
    ).eval()


def load_gguf(path: Path) -> Any:
    """Load a GGUF file as float32, under the YaRN that its keys say.

    transformers' own reader drops those keys for most architectures.
    """
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    fields = GGUFReader(path).fields
    architecture = fields["general.architecture"].contents()

    def key(name: str, default: Any = None) -> Any:
        field = fields.get(f"{architecture}.rope.scaling.{name}")
        return default if field is None else field.contents()

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    if key("type") == "yarn":
        factor = float(key("factor"))
        default = 0.1 * float(np.log(factor)) + 1
        config.rope_parameters |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": int(key("original_context_length")),
            "attention_factor": default * float(key("attn_factor", 1.0)),
        }
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        config=config,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).eval()


def main(folder: Path, request: Path, answer: Path, is_trusted: bool = False) -> None:
    """Answer a request that lies in a file."""
    asked = np.load(request)
    np.savez(answer, **measure(load(folder, is_trusted), asked["ids"], asked["positions"]))


if __name__ == "__main__":
    source, request_file, answer_file = map(Path, sys.argv[1:4])
    main(source, request_file, answer_file, is_trusted="--trust-remote-code" in sys.argv)
