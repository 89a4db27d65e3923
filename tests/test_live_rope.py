"""An engine's live RoPE against the one that was trained: what is seen, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ryarn.errors import UserError
from ryarn.export.live import Wanted, WantedRopes, check_live
from ryarn.yarn import Yarn, rope_inv_freq

POSITIONS = (0, 1, 8191, 16383)
YARN = Yarn(100000.0, 64, 8192, 2.0)
WANTED = Wanted(YARN.inv_freq(), YARN.attention_scaling)
PLAIN = Wanted(rope_inv_freq(100000.0, 64), 1.0)
ONE = WantedRopes({None: WANTED}, (), POSITIONS)
LAYERED = WantedRopes(
    {"full_attention": WANTED, "sliding_attention": PLAIN},
    ("sliding_attention", "full_attention"),
    POSITIONS,
)


def table(wanted, dtype=np.float32, paths=("model.layers.0.self_attn.rotary_emb",)):
    """A table as vLLM makes it."""
    phases = np.outer(np.float32(POSITIONS), wanted.inv_freq.astype(np.float32))
    rows = np.concatenate([np.cos(phases), np.sin(phases)], 1) * np.float32(wanted.attention_factor)
    return {"paths": list(paths), "size": 16384, "rows": rows.astype(dtype).tolist()}


def changed(**keys):
    return {**copy.deepcopy(table(WANTED)), **keys}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_trained_rope_passes_in_either_precision(dtype):
    check_live([[table(WANTED, dtype)], [table(WANTED, dtype)]], ONE)


def buffers(wanted, name="rotary_emb.inv_freq", **keys):
    speeds = wanted.inv_freq.astype(np.float32).tolist()
    return {"paths": [name], "inv_freq": speeds, "attention_factor": wanted.attention_factor} | keys


def test_modules_of_transformers_are_read_too():
    check_live([[buffers(WANTED)]], ONE)
    full, other = "rotary_emb.full_attention_inv_freq", "rotary_emb.sliding_attention_inv_freq"
    check_live([[buffers(WANTED, full), buffers(PLAIN, other)]], LAYERED)
    with pytest.raises(UserError, match=r"sliding_attention_inv_freq has other frequencies"):
        check_live([[buffers(WANTED, full), buffers(WANTED, other)]], LAYERED)
    with pytest.raises(UserError, match=r"attention factor 1\.0000, not 1\.0693"):
        check_live([[buffers(WANTED, attention_factor=1.0)]], ONE)
    with pytest.raises(UserError, match="none of the layer types full_attention, sliding"):
        check_live([[buffers(WANTED)]], LAYERED)


@pytest.mark.parametrize("factor", [1.0, 1.5, 1.95, 4.0])
def test_another_factor_is_refused_with_module_and_position(factor):
    yarn = Yarn(100000.0, 64, 8192, factor)
    # With the attention factor of training: the frequencies alone must give it away.
    other = Wanted(yarn.inv_freq(), WANTED.attention_factor)
    with pytest.raises(
        UserError, match=r"another RoPE than was trained: model\.layers\.0.*at posi"
    ):
        check_live([[table(other)]], ONE)


def test_every_worker_is_looked_at():
    with pytest.raises(UserError, match="another RoPE"):
        check_live([[table(WANTED)], [table(PLAIN)]], ONE)


def test_an_attention_factor_that_is_ignored_is_named():
    ignored = Wanted(WANTED.inv_freq, 1.0)
    with pytest.raises(UserError, match=r"attention factor 1\.0000, not 1\.0693"):
        check_live([[table(ignored)]], ONE)


def test_a_table_that_is_too_short_or_of_another_size_is_refused():
    rows = table(WANTED)["rows"]
    with pytest.raises(UserError, match="ends at 8192, before position 16383"):
        check_live([[changed(size=8192, rows=[*rows[:3], None])]], ONE)
    with pytest.raises(UserError, match="rotates 32 dimensions, not 64"):
        check_live([[changed(rows=[row[:32] for row in rows])]], ONE)


def test_each_layer_must_have_the_rope_of_its_type():
    first, second = (f"model.layers.{n}.self_attn.rotary_emb" for n in range(2))
    check_live([[table(PLAIN, paths=[first]), table(WANTED, paths=[second])]], LAYERED)
    with pytest.raises(UserError, match=r"layers\.0.*\(sliding_attention\)"):
        check_live([[table(WANTED, paths=[first, second])]], LAYERED)
    with pytest.raises(UserError, match=r"layers\.1.*\(full_attention\)"):
        check_live([[table(PLAIN, paths=[first, second])]], LAYERED)
    with pytest.raises(UserError, match="belongs to no layer"):
        check_live([[table(WANTED, paths=["model.rotary_emb"])]], LAYERED)


def test_what_can_not_be_seen_is_refused():
    with pytest.raises(UserError, match="nobody can tell which RoPE answers"):
        check_live([[]], ONE)
