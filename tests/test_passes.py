"""Passes in real logs of ggml: exact on whole logs, on any cut and in any batches; damage is told."""

import gzip
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passes_made import Row, found, numbered

SAMPLES = Path(__file__).parent.parent / "samples"
RECORD = re.compile(r"\[SYCL_OP_TIMING\] dev=\d+ op=(\S+) name=(.*) ne=(\d+)x(\d+)x(\d+)x(\d+) us=\d+")
#: What was run: the batch of each pass, and its operations.
RAN = {
    "ik_gemma270m_cpu.log": ([16] + [1] * 16, 492),
    "llama_rpc_worker0.log": ([32] * 3 + [1] * 33, 403),
    "llama_rpc_worker1.log": ([32] * 3 + [1] * 33, 325),
    "llama_rpc_client.log": ([32] * 3 + [1] * 33, 2),
    "sycl_cpu_gemma270m.log.gz": ([6] + [1] * 16, 817),
}
NAMES = st.sampled_from(sorted(RAN))


@cache
def rows_of(name: str) -> tuple[npt.NDArray[np.int64], pl.DataFrame]:
    data = (SAMPLES / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode("utf-8", "replace")
    rows: list[Row] = [(m[1], m[2], int(m[3]), int(m[4]), int(m[5]), int(m[6])) for m in RECORD.finditer(text)]
    return numbered(rows)


def truth(name: str, start: int = 0, end: int | None = None) -> npt.NDArray[np.int64]:
    heads, _ = rows_of(name)
    steps = np.arange(len(heads))[start:end] // RAN[name][1]
    return steps - steps[:1]


@pytest.mark.parametrize("name", RAN)
def test_whole_logs(name: str) -> None:
    heads, table = rows_of(name)
    widths, operations = RAN[name]
    passes, finder = found(heads, table)
    assert len(heads) == operations * len(widths)
    assert (passes.step == truth(name)).all()
    assert (passes.tokens == np.repeat(widths, operations)).all()
    assert (passes.phase == np.where(passes.tokens > 1, 2, 1)).all()
    assert not passes.run.any()
    assert finder.widths == widths
    assert list(finder.findings()) == []


@pytest.mark.parametrize("name", RAN)
def test_a_cut_front_or_end_at_any_row_of_a_pass_costs_no_step_border(name: str) -> None:
    heads, table = rows_of(name)
    operations = RAN[name][1]
    for cut in range(0, 2 * operations, 1 if operations < 400 else 7):
        for start, end in ((cut, None), (0, len(heads) - cut)):
            passes, finder = found(heads[start:end], table)
            assert (passes.step == truth(name, start, end)).all(), (start, end)
            codes = [f.code for f in finder.findings() if f.severity == "fault"]
            assert codes == (["cut-step"] if cut % operations else []), (start, end)


@pytest.mark.parametrize("name", RAN)
def test_what_a_cut_piece_cannot_tell_of_its_batch_is_not_known(name: str) -> None:
    heads, table = rows_of(name)
    widths, operations = RAN[name]
    for cut in range(1, operations, 5):
        passes, _ = found(heads[cut:], table)
        assert passes.tokens[0] in (-1, widths[0]), cut


@settings(deadline=None, max_examples=40)
@given(
    NAMES,
    st.integers(0, 2000),
    st.integers(0, 2000),
    st.lists(st.integers(0, 3000), max_size=12),
)
def test_batches_do_not_matter(name: str, front: int, end: int, sizes: Sequence[int]) -> None:
    heads, table = rows_of(name)
    heads = heads[front % len(heads) : len(heads) - end % len(heads)]
    whole, finder = found(heads, table)
    parts, other = found(heads, table, np.cumsum(sizes).tolist())
    for column in ("step", "run", "tokens", "phase", "layer", "inferred"):
        assert (getattr(whole, column) == getattr(parts, column)).all(), column
    assert list(finder.findings()) == list(other.findings())


def test_row_by_row_is_as_good_as_all_at_once() -> None:
    heads, table = rows_of("llama_rpc_worker1.log")
    heads = heads[100:2500]
    whole, _ = found(heads, table)
    single, _ = found(heads, table, range(1, len(heads)))
    assert (whole.step == single.step).all()
    assert (whole.phase == single.phase).all()


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(sorted(set(RAN) - {"llama_rpc_client.log"})),
    st.integers(0, 1 << 30),
    st.sampled_from([1, 2, 5, 40, 200, 324, 402, 411, 900]),
    st.booleans(),
)
def test_a_lost_or_repeated_block_is_told_and_spoils_only_its_own_steps(
    name: str, place: int, size: int, lost: bool
) -> None:
    heads, table = rows_of(name)
    operations = RAN[name][1]
    # Behind the prompts: of a prompt's part no output may be wanted.
    at = 4 * operations + place % (len(heads) - 8 * operations)
    index = np.arange(len(heads))
    index = np.concatenate((index[:at], index[at + size :]) if lost else (index[: at + size], index[at:]))
    passes, finder = found(heads[index], table)
    assert [f for f in finder.findings() if f.severity == "fault"]
    starts = np.flatnonzero(np.diff(passes.step, prepend=-1))
    true = np.flatnonzero(index % operations == 0)
    near = (at - operations, at + size + 2 * operations)
    for here, there in ((starts, true), (true, starts)):
        away = here[(here < near[0]) | (here > near[1])]
        assert np.isin(away, there).all()


def test_messages_name_the_step_and_what_it_lacks() -> None:
    heads, table = rows_of("llama_rpc_worker0.log")
    (lost,) = found(np.delete(heads, slice(5000, 5040)), table)[1].findings()
    assert lost.code == "odd-step"
    assert lost.message.startswith("step 12 lacks 40 of 403 operations within it")
    assert lost.line == 12 * 403 + 1
    (twice,) = found(np.insert(heads, 5040, heads[5000:5040]), table)[1].findings()
    assert twice.message.startswith("step 12 has 40 operations twice")
    (end,) = found(heads[:-3], table)[1].findings()
    assert (end.code, end.message) == ("cut-step", "the log ends within a step: 400 of 403 operations")
    (front,) = found(heads[100:], table)[1].findings()
    assert (front.code, front.message) == ("cut-step", "the log begins within a step: 303 of 403 operations")


def test_a_run_that_breaks_off_and_another_behind_it_are_two_runs() -> None:
    heads, table = rows_of("llama_rpc_worker0.log")
    cut = 30 * 403 + 77
    passes, finder = found(np.concatenate((heads[:cut], heads)), table)
    assert (passes.step[cut:] == truth("llama_rpc_worker0.log")).all()
    assert (passes.run == np.repeat([0, 1], [cut, len(heads)])).all()
    (fault,) = finder.findings()
    assert fault.code == "appended-runs"
    assert "step 30 breaks off after 77 of 403 operations" in fault.message


def test_the_same_run_twice_is_said_to_be_so() -> None:
    heads, table = rows_of("ik_gemma270m_cpu.log")
    _, finder = found(np.concatenate((heads, heads)), table)
    assert [f.code for f in finder.findings()] == ["appended-runs"]


def test_a_known_restart_begins_a_run() -> None:
    heads, table = rows_of("ik_gemma270m_cpu.log")
    passes, _ = found(np.concatenate((heads, heads)), table, restart=len(heads))
    assert (passes.run == np.repeat([0, 1], len(heads))).all()
    assert (passes.step == np.tile(truth("ik_gemma270m_cpu.log"), 2)).all()


def test_attention_gets_the_layer_of_its_neighbours() -> None:
    heads, table = rows_of("llama_rpc_worker0.log")
    passes, _ = found(heads, table)
    op = table["op"].cast(pl.String).gather(pl.Series(heads))
    attention = (op == "FLASH_ATTN_EXT").to_numpy()
    assert passes.inferred[attention].all()
    assert (passes.layer[attention] == np.tile(np.arange(10), 36)).all()
    assert (passes.layer[:3] == -1).all()  # the embedding's scaling is no layer's
