"""Greedy tokens and log-probabilities of vLLM: run by the serving environment's Python.

`python vllm_probe.py FOLDER REQUEST.npz ANSWER.npz`. The request has rows of token ids and how many
tokens each is gone on with. Nothing is said of RoPE or window: the folder alone does.
"""

from __future__ import annotations

import json
import sys

import numpy as np

LIKELIEST = 20


def main(folder: str, request: str, answer: str) -> None:
    from vllm import LLM, SamplingParams

    asked = np.load(request)
    rows = json.loads(str(asked["rows"]))
    llm = LLM(folder, dtype="float32", enforce_eager=True, seed=0)
    wanted = SamplingParams(
        temperature=0, max_tokens=int(asked["wanted"]), logprobs=LIKELIEST, ignore_eos=True
    )
    prompts = [{"prompt_token_ids": row} for row in rows]
    outputs = llm.generate(prompts, wanted, use_tqdm=False)
    found = {}
    for number, output in enumerate(outputs):
        [best] = output.outputs
        found[f"tokens{number}"] = np.array(best.token_ids)
        ranked = [
            sorted(place.items(), key=lambda item: -item[1].logprob)[:LIKELIEST]
            for place in best.logprobs
        ]
        found[f"ids{number}"] = np.array([[token for token, _ in place] for place in ranked])
        found[f"logprobs{number}"] = np.array(
            [[value.logprob for _, value in place] for place in ranked]
        )
    np.savez(answer, window=llm.llm_engine.model_config.max_model_len, **found)


if __name__ == "__main__":
    main(*sys.argv[1:4])
