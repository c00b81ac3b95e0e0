"""Regions of vLLM nest: the tree from the order of completion, and self time."""

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import polars as pl
from hypothesis import given, settings

from tracekit.bucketing import buckets
from tracekit.enrich import label_self_ns, nest, region_classes
from tracekit.reading import read


def tree(*rows: tuple[str, int]) -> list[tuple[str, int, int]]:
    """Nest (label, ns) rows in completion order; return label, depth, self time."""
    labels = [label for label, _ in rows]
    nesting = nest(region_classes(pl.Series(labels)), np.array([ns for _, ns in rows], np.int64))
    return list(zip(labels, nesting.depth.tolist(), nesting.self_ns.tolist(), strict=True))


def test_what_prints_before_a_region_and_may_stand_in_it_stands_in_it() -> None:
    assert tree(("m.attn.qkv_proj", 10), ("m.attn.rope", 5), ("m.attn.total", 40), ("m.layer.total", 100)) == [
        ("m.attn.qkv_proj", 2, 10),
        ("m.attn.rope", 2, 5),
        ("m.attn.total", 1, 25),
        ("m.layer.total", 0, 60),
    ]


def test_the_embeddings_all_reduce_is_not_the_first_layers() -> None:
    reduce = "all_reduce:(1, 256):torch.bfloat16"
    rows = tree((reduce, 3), ("m.input_layernorm", 10), ("m.layer.total", 100), ("runner.forward", 200))
    assert [(label, depth) for label, depth, _ in rows] == [
        (reduce, 1),
        ("m.input_layernorm", 2),
        ("m.layer.total", 1),
        ("runner.forward", 0),
    ]
    assert rows[-1][2] == 200 - 100 - 3


def test_what_does_not_fit_is_not_inside() -> None:
    rows = tree(("m.attn.rope", 90), ("m.attn.total", 40))
    assert rows == [("m.attn.rope", 0, 90), ("m.attn.total", 0, 40)]


def test_a_router_inside_the_experts_is_found_by_the_time() -> None:
    inside = [("m.moe.router", 30), ("m.moe.fused_experts", 50), ("m.moe.experts_total", 100), ("m.moe.total", 110)]
    assert [depth for _, depth, _ in tree(*inside)] == [2, 2, 1, 0]
    beside = [("m.moe.router", 30), ("m.moe.fused_experts", 50), ("m.moe.experts_total", 60), ("m.moe.total", 110)]
    assert [depth for _, depth, _ in tree(*beside)] == [1, 2, 1, 0]


def test_a_label_without_a_place_leaves_the_tree_around_it_whole() -> None:
    """It once cut off all that had printed before it."""
    rows = [
        ("m.attn.rope", 5),
        ("m.attn.total", 40),
        ("novel thing", 7),
        ("m.layer.total", 100),
        ("runner.forward", 120),
    ]
    assert [(depth, own) for _, depth, own in tree(*rows)] == [(3, 5), (2, 35), (2, 7), (1, 53), (0, 20)]


def test_labels_without_a_place_are_told(tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    labels = ("m.attn.rope", "novel thing", "m.layer.total", "gpu_model_runner.forward")
    lines = [f"[vllm-xpu-timing] rank=0 label={label} count=1 last_ms=0.00000{n}" for n, label in enumerate(labels, 1)]
    log.write_text("\n".join(lines) + "\n")
    [found] = read(log).findings.collect().to_dicts()
    assert (found["severity"], found["code"], found["line"]) == ("note", "unplaced-regions", 2)
    assert "novel thing" in found["message"]


def test_the_norm_behind_the_layers_is_in_no_layer_where_only_totals_are_known() -> None:
    """With less self time than the final norm takes, a layer was once taken for one whose calls were skipped."""
    labels = ["runner.forward", "m.layer.total", "m.input_layernorm", "m.final_norm"]
    rows = pl.DataFrame({"stream": "s", "worker": "w", "run": 0, "name": labels, "category": "other",
                         "total_ns": [1000, 500, 490, 400]})  # fmt: skip
    assert label_self_ns(rows)["self_ns"].to_list() == [100, 10, 490, 400]


def test_a_projection_stands_in_the_block_that_its_label_names() -> None:
    """Both blocks of a dense layer hold projections: where only totals are known, the label decides."""
    labels = ["m.attn.total", "m.mlp.total", "m.attn.o_proj", "m.mlp.gate_up_proj", "m.mlp.down_proj"]
    rows = pl.DataFrame({"stream": "s", "worker": "w", "run": 0, "name": labels, "category": "other",
                         "total_ns": [100, 90, 10, 20, 30]})  # fmt: skip
    assert label_self_ns(rows)["self_ns"].to_list() == [90, 40, 10, 20, 30]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["runner.forward", "m.layer.total", "m.attn.total", "m.attn.rope", "m.input_layernorm",
                 "all_reduce:(1, 2):torch.float32", "m.moe.total", "unknown"]
            ),
            st.integers(0, 10**6),
        ),
        max_size=40,
    )
)  # fmt: skip
def test_self_times_always_add_up_to_the_outermost_regions(rows: list[tuple[str, int]]) -> None:
    nesting = nest(
        region_classes(pl.Series([r[0] for r in rows], dtype=pl.String)), np.array([r[1] for r in rows], np.int64)
    )
    outermost = sum(ns for (_, ns), depth in zip(rows, nesting.depth, strict=True) if depth == 0)
    assert nesting.self_ns.sum() == outermost
    # Rounding of what is printed: a nanosecond a child.
    assert (nesting.self_ns >= -len(rows)).all()
    inside = np.flatnonzero(nesting.parent >= 0)
    assert (nesting.parent[inside] > inside).all()


def test_a_real_step_is_a_whole_tree(samples: Path) -> None:
    frame = read(samples / "vllm_eager_tp1.log").events.filter(pl.col("worker") == "rank 0").collect()
    forward = frame.filter(pl.col("name") == "gpu_model_runner.model_forward")
    assert round(frame["dur_ns"].sum() / 1e6) == 272
    assert round(forward["dur_ns"].sum() / 1e6) == 69
    depths = dict(frame.group_by(pl.col("name").cast(pl.String)).agg(pl.col("depth").unique()).iter_rows())
    assert depths["qwen3_moe.layer.total"] == [1]
    assert depths["qwen3_moe.attn.core"] == [3]
    assert depths["attn.impl_forward"] == [4]
    assert depths["qwen3_moe.moe.fused_experts"] == [4]
    runner = [n for n, d in depths.items() if d == [0]]
    assert all(n.startswith("gpu_model_runner.") for n in runner)
    model = frame.filter(~pl.col("name").cast(pl.String).is_in([n for n in runner if "forward" not in n]))
    model = model.filter(pl.col("name") != "gpu_model_runner.compute_logits")
    assert model["self_ns"].sum() == forward["dur_ns"].sum()


def test_self_time_of_summaries_by_the_hierarchy(samples: Path) -> None:
    """What the summary tells of a run is what the events of the same kind of run tell: the same tree."""
    table = buckets(read(samples / "vllm_summary_only.log"), by=["name"])[0]
    assert set(table.frame["basis"]) == {"summary"}
    own = {r["name"]: (r["total_ns"], r["self_ns"]) for r in table.frame.to_dicts()}
    children = ("input_layernorm", "attn.total", "post_attention_layernorm", "moe.total")
    total, self_ns = own["qwen3_moe.layer.total"]
    assert self_ns == total - sum(own[f"qwen3_moe.{c}"][0] for c in children)
    assert abs(table.frame["share"].sum() - 1) < 1e-9


def test_waiting_for_other_processes_is_no_cost(samples: Path) -> None:
    table = buckets(read(samples / "vllm_eager_tp1.log"), by=["name"])[0]
    wait = table.frame.filter(pl.col("name") == "llm_engine.get_output").row(0, named=True)
    assert wait["share"] is None
    assert wait["total_ns"] > table.cost_ns
