"""Log-probabilities of llama.cpp for given tokens: run by the serving environment's Python.

`python llama_cpp_probe.py FILE.gguf REQUEST.npz ANSWER.npz`. The request has rows of token ids,
texts to tokenize, and how many last positions of each row are wanted. The file alone says the RoPE.
"""

from __future__ import annotations

import json
import sys

import llama_cpp
import numpy as np


def plain_kernels() -> None:
    """Turn the repacking of weights off: its kernels crash on some CPUs with AMX."""
    defaults = llama_cpp.llama_model_default_params

    def changed() -> llama_cpp.llama_model_params:
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    llama_cpp.llama_cpp.llama_model_default_params = changed
    llama_cpp.llama.llama_cpp.llama_model_default_params = changed


def main(path: str, request: str, answer: str) -> None:
    asked = np.load(request)
    rows = json.loads(str(asked["rows"]))
    wanted = int(asked["wanted"])
    plain_kernels()
    model = llama_cpp.Llama(
        path,
        n_ctx=max(map(len, rows)),
        n_batch=256,
        n_threads=1,
        n_threads_batch=1,
        # What is compared is the RoPE: the cache rounds to 16 bits otherwise.
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        flash_attn=False,
        verbose=False,
    )
    found = {}
    for number, row in enumerate(rows):
        model.reset()
        start = len(row) - wanted
        chunks = [row[: start + 1], *([token] for token in row[start + 1 :])]
        logits = []
        for chunk in chunks:
            model.eval(chunk)
            seen = llama_cpp.llama_get_logits_ith(model.ctx, -1)
            logits.append(np.ctypeslib.as_array(seen, (model.n_vocab(),)).copy())
        found[f"logits{number}"] = np.stack(logits)
    tokens = [
        model.tokenize(text.encode(), add_bos=False, special=True)
        for text in json.loads(str(asked["texts"]))
    ]
    np.savez(
        answer,
        tokens=json.dumps(tokens),
        metadata=json.dumps({k: v for k, v in model.metadata.items() if "rope" in k}),
        context=model._model.n_ctx_train(),
        **found,
    )


if __name__ == "__main__":
    main(*sys.argv[1:4])
