"""Passes of made models: workers of a split, speculation, drafts, single layers, prompts in parts, mixed logs."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passes_made import Model, Row, found, numbered, split

MINIMAX = split(62, 4)
WHOLE = Model(range(30), embedding=True, head=True)
MTP = Model(range(4), embedding=True, head=True)
SMALL = Model(range(4), hidden=1024, embedding=True, head=True)
DECODE, PREFILL = 1, 2


def check(passes: list[list[Row]]) -> tuple[list[int], list[int], list[str]]:
    """Find the passes, all of one run; return their batches, phases and the codes of what was told."""
    heads, table = numbered([row for one in passes for row in one])
    result, finder = found(heads, table)
    assert (result.step == np.repeat(np.arange(len(passes)), [len(p) for p in passes])).all()
    starts = np.flatnonzero(np.diff(result.step, prepend=-1))
    return result.tokens[starts].tolist(), result.phase[starts].tolist(), [f.code for f in finder.findings()]


@pytest.mark.parametrize("worker", range(4))
@pytest.mark.parametrize("widths", [[1], [1, 1], [64, 1, 1, 1, 1], [7, 64, 1, 1, 1, 1]])
def test_each_worker_of_a_split_model(worker: int, widths: list[int]) -> None:
    tokens, phases, told = check([MINIMAX[worker].one_pass(w) for w in widths])
    assert tokens == widths
    assert phases == [PREFILL if w > 1 else DECODE for w in widths]
    assert told == []


@pytest.mark.parametrize(
    "model", [Model(range(5, 6)), Model(range(5, 6), head=True), Model(range(0, 30), shared_cache=True)]
)
def test_one_layer_alone_and_layers_that_look_at_an_earlier_cache(model: Model) -> None:
    widths = [40] + [1] * 9
    assert check([model.one_pass(w) for w in widths]) == (widths, [PREFILL] + [DECODE] * 9, [])


def test_speculation_keeps_its_width_and_is_decoding() -> None:
    widths = [40, 4, 4, 3, 1, 4, 2, 4, 4, 1, 1, 4]
    whole = [WHOLE.one_pass(40), *(WHOLE.one_pass(w, w) for w in widths[1:])]
    assert check(whole) == (widths, [PREFILL] + [DECODE] * 11, [])
    part = [MINIMAX[1].one_pass(w) for w in widths]
    # A worker without the output head cannot tell speculation from the repeats of a short prompt.
    phases = [PREFILL, *(DECODE if w == 1 else 0 for w in widths[1:])]
    assert check(part) == (widths, phases, ["unclear-phase"])
    repeats = [16, 16, 16, 1, 1, 1]
    assert check([MINIMAX[1].one_pass(w) for w in repeats])[1] == [PREFILL, 0, 0, DECODE, DECODE, DECODE]


def test_a_short_prompt_is_told_by_the_output_head() -> None:
    widths = [5, 1, 1, 3, 1, 1]
    assert check([WHOLE.one_pass(w) for w in widths])[1] == [PREFILL, DECODE, DECODE, PREFILL, DECODE, DECODE]
    assert check([MINIMAX[0].one_pass(w) for w in widths])[1] == [PREFILL, DECODE, DECODE, 0, DECODE, DECODE]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_of_a_prompt_without_output_are_whole_passes(parts: int) -> None:
    passes = [WHOLE.one_pass(512, 0)] * parts + [WHOLE.one_pass(100)] + [WHOLE.one_pass(1)] * 5
    tokens, phases, told = check(passes)
    assert tokens == [512] * parts + [100] + [1] * 5
    assert phases == [PREFILL] * (parts + 1) + [DECODE] * 5
    assert told == []


@pytest.mark.parametrize("draft", [MTP, SMALL], ids=["same width", "another width"])
@pytest.mark.parametrize("model", [WHOLE, MINIMAX[0], MINIMAX[2], MINIMAX[3]], ids=["whole", "w0", "w2", "w3"])
@pytest.mark.parametrize("drafted", [1, 3])
def test_a_draft_model_that_reuses_layer_numbers(draft: Model, model: Model, drafted: int) -> None:
    passes = [model.one_pass(40), draft.one_pass(40)]
    for _ in range(8):
        passes += [draft.one_pass(1)] * drafted + [model.one_pass(drafted + 1, drafted + 1)]
    tokens, phases, told = check(passes)
    assert tokens == [40, 40] + ([1] * drafted + [drafted + 1]) * 8
    assert phases == [PREFILL, PREFILL] + [DECODE] * (8 * (drafted + 1))
    assert told == ["draft-model"]


def test_another_model_behind_a_long_run_is_another_run() -> None:
    first = [SMALL.one_pass(w) for w in [40] + [1] * 20]
    second = [WHOLE.one_pass(w) for w in [40] + [1] * 5]
    heads, table = numbered([row for one in (*first, *second) for row in one])
    result, finder = found(heads, table)
    size = sum(map(len, first))
    assert (result.run == np.repeat([0, 1], [size, len(heads) - size])).all()
    assert result.step[size] == 0
    assert [f.code for f in finder.findings()] == ["appended-runs"]


def test_several_processes_in_one_log_are_said_to_be_unclear() -> None:
    rng = np.random.default_rng(7)
    one, two = ([row for w in [9] + [1] * 40 for row in m.one_pass(w)] for m in (WHOLE, SMALL))
    turns = rng.permutation(np.repeat([0, 1], [len(one), len(two)]))
    streams = iter(one), iter(two)
    heads, table = numbered([next(streams[t]) for t in turns.tolist()])
    _, finder = found(heads, table)
    assert "unclear-steps" in {f.code for f in finder.findings()}


def test_no_row_is_no_pass() -> None:
    heads, table = numbered([])
    result, finder = found(heads, table)
    assert len(result.step) == 0
    assert list(finder.findings()) == []


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 40),
    st.integers(1, 4),
    st.lists(st.sampled_from([1, 1, 1, 2, 5, 64, 512]), min_size=3, max_size=12),
    st.lists(st.integers(0, 4000), max_size=6),
    st.booleans(),
)
def test_any_split_any_batches_any_widths(
    layers: int, workers: int, widths: list[int], cuts: list[int], shared_cache: bool
) -> None:
    for model in split(layers, workers, shared_cache=shared_cache):
        passes = [model.one_pass(w) for w in widths]
        heads, table = numbered([row for one in passes for row in one])
        result, finder = found(heads, table, np.cumsum(cuts).tolist())
        assert (result.step == np.repeat(np.arange(len(passes)), [len(p) for p in passes])).all()
        assert finder.widths == widths
        printed = table["layer"].fill_null(-1).gather(heads).to_numpy()
        assert (result.layer[printed >= 0] == printed[printed >= 0]).all()
        assert not [f for f in finder.findings() if f.code in ("cut-step", "odd-step")]


def test_dimensions_that_are_no_numbers_tell_nothing() -> None:
    heads, table = numbered([row for w in (40, 1, 1) for row in WHOLE.one_pass(w)])
    lost = table.with_columns(pl.lit(None, dtype=pl.Int64).alias(f"ne{k}") for k in range(4))
    result, _ = found(heads, lost)
    assert result.step[-1] == 2
    assert (result.tokens == -1).all()
    assert not result.phase.any()


def test_rows_without_any_order_have_no_steps() -> None:
    rng = np.random.default_rng(11)
    rows: list[Row] = [("MUL", f"name {n}", 64, 1, 1, 1) for n in rng.integers(0, 500, 300_000)]
    heads, table = numbered(rows)
    whole, finder = found(heads, table)
    parts, _ = found(heads, table, range(0, len(heads), 70_001))
    assert (whole.step == parts.step).all()
    assert (whole.step[: 1 << 17] == -1).all()
    assert [(f.severity, f.code) for f in finder.findings()] == [("fault", "unclear-steps")]
