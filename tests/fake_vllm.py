"""A package `vllm` that computes nothing: the worker's real code runs against it, quickly.

It answers with the last tokens of the prompt, the first one twice, then an end token. Its RoPE
table is that of the model's config, made by other code than the one under test.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

SOURCE = """
import json, math, os
from importlib import import_module
from pathlib import Path

TROUBLE = json.loads(os.environ.get("FAKE_VLLM", "{}"))


def note(entry):
    with open(os.environ["FAKE_VLLM_LOG"], "a") as log:
        log.write(json.dumps(entry) + "\\n")


class Cells(list):
    def double(self):
        return self
    def tolist(self):
        return list(self)


class Table:
    def __init__(self, rope, rotary, window):
        factor = rope.get("factor", 1.0) * TROUBLE.get("factor", 1.0)
        theta, original = rope["rope_theta"], rope.get("original_max_position_embeddings", window)
        def dim(turns):
            return rotary * math.log(original / turns / 2 / math.pi) / math.log(theta) / 2
        low, high = max(math.floor(dim(32)), 0), min(math.ceil(dim(1)), rotary - 1)
        self.scale = (0.1 * math.log(factor) + 1) * TROUBLE.get("attention", 1.0)
        self.speeds = []
        for pair in range(rotary // 2):
            share = min(max((pair - low) / max(high - low, 0.001), 0), 1)
            self.speeds.append(theta ** (-2 * pair / rotary) * (1 - share + share / factor))
        self.shape = (TROUBLE.get("rows", window), rotary)
    def __getitem__(self, position):
        turns = [position * speed for speed in self.speeds]
        return Cells(self.scale * f(turn) for f in (math.cos, math.sin) for turn in turns)


class Rotary:
    def __init__(self, table):
        self.cos_sin_cache = table
    def named_buffers(self, recurse):
        return []


class Model:
    def __init__(self, config):
        rope = config["rope_parameters"]
        rotary = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.rotary = Rotary(Table(rope, rotary, config["max_position_embeddings"]))
    def named_modules(self, remove_duplicate=True):
        if TROUBLE.get("blind"):
            return []
        return [(f"model.layers.{n}.self_attn.rotary_emb", self.rotary) for n in range(2)]


class Output:
    def __init__(self, key, tokens):
        self.request_id, self.finished = key, True
        self.outputs = [type("", (), {"token_ids": tokens})()]


class Engine:
    def __init__(self):
        self.waiting, self.count = [], 0
    def add_request(self, key, prompt, params, lora_request=None):
        ids, lora = prompt["prompt_token_ids"], lora_request and lora_request.path
        note({"request": {"params": vars(params), "lora": lora, "tokens": len(ids)}})
        self.waiting.append((key, ids, params))
    def has_unfinished_requests(self):
        return bool(self.waiting)
    def step(self):
        self.count += 1
        if self.count > TROUBLE.get("survives", 10 ** 9):
            raise RuntimeError("CUDA out of memory")
        # The last one first: answers come in any order.
        key, ids, params = self.waiting.pop()
        return [Output(key, [ids[-3], *ids[-3:], params.stop_token_ids[0], 1][:params.max_tokens])]


class LLM:
    def __init__(self, worker_extension_cls, **arguments):
        print("vLLM talks on stdout")
        note({"arguments": arguments})
        if TROUBLE.get("start"):
            raise ValueError(TROUBLE["start"])
        config = json.loads((Path(arguments["model"]) / "config.json").read_text())
        self.config = {**config, **arguments.get("hf_overrides", {})}
        module, name = worker_extension_cls.split(".")
        self.view = type("Worker", (getattr(import_module(module), name),), {})()
        self.view.get_model = lambda: Model(self.config)
        self.llm_engine = Engine()
    def collective_rpc(self, method, args):
        return [getattr(self.view, method)(*args)] * 2


class SamplingParams:
    def __init__(self, **settings):
        vars(self).update(settings)
"""


def install(folder: Path) -> dict[str, str]:
    """Write the package; the environment variables with which a Python finds it."""
    package = folder / "fake" / "vllm"
    (package / "lora").mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    (package / "sampling_params.py").write_text("class RequestOutputKind:\n    FINAL_ONLY = 2\n")
    (package / "lora" / "__init__.py").write_text("")
    (package / "lora" / "request.py").write_text(
        "class LoRARequest:\n    def __init__(self, name, _, path):\n        self.path = path\n"
    )
    return {
        "PYTHONPATH": os.pathsep.join([str(folder / "fake"), os.environ.get("PYTHONPATH", "")]),
        "FAKE_VLLM_LOG": str(folder / "fake.log"),
    }


def log(folder: Path, kind: str) -> list[dict[str, object]]:
    """What it was told: its `arguments`, or each `request`."""
    lines = (folder / "fake.log").read_text().splitlines()
    return [entry[kind] for entry in map(json.loads, lines) if kind in entry]
