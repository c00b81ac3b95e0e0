"""Layer and category rules: every trap that a name sets."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tracekit import rules
from tracekit.enrich import category, layer
from tracekit.errors import UsageError


def layer_of(name: str, family: str = "ggml") -> int | None:
    found: int | None = pl.DataFrame({"name": [name]}).select(layer(family)).item()
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.7.attn_q.weight", 7),
        ("model.layers.17.self_attn.o_proj", 17),
        ("layers.3.mlp", 3),
        ("cache_k_l8 (view) (permuted)", 8),
        ("cache_v_l61 (view)", 61),
        ("cache_r_l2", 2),
        ("ffn_norm_2-0 (reshaped)", 0),
        ("Qcur_pos-8 (view) (permuted)", 8),
        ("__fattn__-8", 8),
        ("ffn_moe_weighted-12", 12),
        ("cache_k_l3 (view) (copy of Kcur-5 (view))", 3),
        ("node_9 (copy of Kcur-5)", None),
        ("mtp_direct_argmax_unroll_token_0", None),
        ("SYCL0#attn_inp_kq_mask#0", None),
        ("node_1715", None),
        ("result_norm", None),
        ("norm", None),
        ("token_embd.weight", None),
        ("", None),
        ("x-99999999", None),
    ],
)
def test_layer_of_a_tensor(name: str, expected: int | None) -> None:
    assert layer_of(name) == expected


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("all_reduce:row_parallel:model.layers.17.self_attn.o_proj:(1, 3072):torch.float16", 17),
        ("all_reduce:(1, 3072):torch.float16", None),
        ("gemm-8 (fp16)", None),
    ],
)
def test_layer_of_a_region(label: str, expected: int | None) -> None:
    assert layer_of(label, "vllm-xpu") == expected


@pytest.mark.parametrize(
    ("family", "op", "name", "expected"),
    [
        ("ggml", "MUL_MAT", "Qcur-0", "matmul"),
        ("ggml", "MUL_MAT", "kq-3", "attention"),
        ("ggml", "MUL_MAT", "ffn_moe_logits-3", "moe"),
        ("ggml", "MUL_MAT_ID", "ffn_moe_down-3", "moe"),
        ("ggml", "MOE_FUSED_UP_GATE", "ffn_moe_gate_par-3", "moe"),
        ("ggml", "SOFT_MAX", "kq_soft_max_ext-3", "attention"),
        ("ggml", "SOFT_MAX", "ffn_moe_probs-3", "moe"),
        ("ggml", "ARGSORT", "ffn_moe_argsort-3", "moe"),
        ("ggml", "ARGSORT", "node_9", "sampling"),
        ("ggml", "MUL", "attn_norm-3", "norm"),
        ("ggml", "MUL", "node_9", "elementwise"),
        ("ggml", "CPY", "cache_k_l3 (view) (copy of Kcur-3)", "kv-cache"),
        ("ggml", "CPY", "node_4", "elementwise"),
        ("ggml", "SET_ROWS", "cache_v_l3 (view)", "kv-cache"),
        ("ggml", "RESHAPE", "Qcur-0", "view"),
        ("ggml", "GET_ROWS", "inp_embd", "embedding"),
        ("ggml", "A_NEW_OP", "x", "other"),
        ("llm-scaler", "moe ws up routed cutlass int4", "moe ws up routed cutlass int4", "moe"),
        ("vllm-xpu", "", "all_reduce:(1, 3072):torch.float16", "collective"),
        ("vllm-xpu", "", "minimax.attn.qk_norm", "norm"),
        ("vllm-xpu", "", "minimax.attn.rope", "rope"),
        ("vllm-xpu", "", "minimax.attn.kv_attention", "attention"),
        ("vllm-xpu", "", "minimax.attn.delayed_residual_allreduce", "collective"),
        ("vllm-xpu", "", "llm_scaler_moe_u4:M1", "moe"),
        ("vllm-xpu", "", "xpu_moe.gemm1_w8a8", "moe"),
        ("vllm-xpu", "", "runner.preprocess", "host"),
        ("vllm-xpu", "", "gpu_model_runner.sample", "sampling"),
        ("vllm-xpu", "", "llm_engine.get_output", "wait"),
        ("vllm-xpu", "", "gpu_model_runner.model_forward", "other"),
    ],
)
def test_category(family: str, op: str, name: str, expected: str) -> None:
    assert pl.DataFrame({"op": [op], "name": [name]}).select(category(family)).item() == expected


def test_every_category_used_is_in_the_taxonomy() -> None:
    assert {r.category for r in rules.category_rules()} <= set(rules.categories())
    assert set(rules.NOT_COST) <= set(rules.categories())


@pytest.fixture
def own_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a directory whose rule files are read instead of ours, until the test ends."""
    readers = (rules.layer_rules, rules.category_rules, rules.declared_regions, rules.regions)
    monkeypatch.setenv(rules.VARIABLE, str(tmp_path))
    for reader in readers:
        reader.cache_clear()
    yield tmp_path
    for reader in readers:
        reader.cache_clear()


def test_rules_of_ones_own_are_read_instead(own_rules: Path) -> None:
    (own_rules / "layers.toml").write_text("[[rule]]\npattern = 'L(\\d+)'\n")
    assert layer_of("L5") == 5
    assert layer_of("blk.7.x") is None


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("layers.toml", "[[rule]]\npattern = 'no group'\n", "exactly one group"),
        ("layers.toml", "[[rule]]\npattern = '('\n", "pattern"),
        ("layers.toml", "not toml", "layers.toml"),
        ("categories.toml", "categories = ['a']\n[[rule]]\ncategory = 'b'\n", "unknown category b"),
        ("categories.toml", "categories = ['a']\n[[rule]]\nop = 'x'\ncategory = 'a'\n", "match everything"),
        ("regions.toml", "[[region]]\nname = 'a'\nlabel = 'a'\ninside = ['z']\n", "unknown z"),
        (
            "regions.toml",
            "[[region]]\nname='a'\nlabel='a'\ninside=['b']\n[[region]]\nname='b'\nlabel='b'\ninside=['a']\n",
            "circle",
        ),
    ],
)
def test_a_wrong_rule_file_is_named_with_what_is_wrong(own_rules: Path, file: str, content: str, message: str) -> None:
    (own_rules / file).write_text(content)
    ask = {"layers.toml": rules.layer_rules, "categories.toml": rules.category_rules, "regions.toml": rules.regions}
    with pytest.raises(UsageError, match=message):
        ask[file]()
