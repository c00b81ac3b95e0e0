"""Every dialect: what is printed in its grammar is read back whole, and nobody else claims it."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given, settings

import tracekit.parsers
from tracekit.dialect import Dialect
from tracekit.errors import TracekitError
from tracekit.parsers import DIALECTS, catalogue
from tracekit.reading import Run, read

ROOT = Path(__file__).parent.parent

MARKERS = [d.marker for d in DIALECTS]
# Whatever a program may put into a name: any character but line ends, which end the record, and a marker.
TEXT = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=63).filter(
    lambda s: not any(m in s for m in MARKERS)
)
HOSTILE = st.sampled_from(
    ["", " ", " ne=", " ne=1x1x1x1 us=5", "a us=7 b", " us=3 x=4", "x count=2 last_ms=0.500000", "(copy of (view)"]
)
NAMES = st.one_of(TEXT, HOSTILE, st.tuples(TEXT, HOSTILE).map("".join))
WORDS = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", min_size=1, max_size=20)
NS = st.integers(0, 10**15)


def read_text(tmp_path: Path, text: str) -> Run:
    log = tmp_path / "w.log"
    log.write_bytes(text.encode())
    return read(log)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 9), WORDS, NAMES, st.integers(0, 10**11)), min_size=1, max_size=5), st.data())
def test_ggml_events_come_back_whatever_their_name(
    folder: Path, events: list[tuple[int, str, str, int]], data: st.DataObject
) -> None:
    shape = "x".join(map(str, data.draw(st.lists(st.integers(0, 10**9), min_size=4, max_size=4))))
    text = "".join(f"[SYCL_OP_TIMING] dev={d} op={o} name={n} ne={shape} us={u}\n" for d, o, n, u in events)
    run = read_text(folder, text)
    frame = run.events.select("device", "op", "name", "shape", "dur_ns").collect()
    assert frame.rows() == [(d, o, n, shape, u * 1000) for d, o, n, u in events]
    assert run.rejects.collect().is_empty()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["0", "3", "pid812"]),
    NAMES.filter(lambda n: "\0" not in n[-1:]),
    st.integers(1, 2**31),
    NS,
    st.sampled_from(["", " step=3", " a=b c=1.5"]),
)
def test_vllm_regions_come_back_whatever_their_label(
    folder: Path, rank: str, label: str, count: int, ns: int, more: str
) -> None:
    ms = f"{Decimal(ns) / 10**6:.6f}"
    run = read_text(folder, f"[vllm-xpu-timing] rank={rank} label={label} count={count} last_ms={ms}{more}\n")
    frame = run.events.select("rank", "pid", "name", "call", "dur_ns").collect()
    expected_rank, expected_pid = (None, 812) if rank == "pid812" else (int(rank), None)
    assert frame.rows() == [(expected_rank, expected_pid, label, count, ns)]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(-1, 7), st.text(st.characters(exclude_characters='\n\r"[', exclude_categories=["Cs"]), min_size=1), NS
)
def test_llm_scaler_waits_come_back(folder: Path, device: int, kernel: str, ns: int) -> None:
    ms = f"{ns / 1e6:g}"  # six significant digits: what the default output of a C++ double prints
    run = read_text(folder, f'[llm-scaler][moe-kernel] device={device} kernel="{kernel}" wait_ms={ms}\n')
    assert run.events.select("device", "name", "dur_ns").collect().rows() == [(device, kernel, round(float(ms) * 1e6))]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**6), NS, NS)
def test_summary_rows_come_back(folder: Path, calls: int, total: int, top: int) -> None:
    def six(ns: int) -> str:
        return f"{Decimal(ns) / 10**6:.6f}"

    mean = total // calls
    row = f"rank=1 label=a b: (c) count={calls} total_ms={six(total)} avg_ms={six(mean)} max_ms={six(top)}"
    run = read_text(folder, "".join(f"[vllm-xpu-timing-summary] {x}\n" for x in ("begin", row, "end")))
    frame = run.summaries.select("rank", "name", "calls", "total_ns", "mean_ns", "max_ns").collect()
    assert frame.rows() == [(1, "a b: (c)", calls, total, mean, top)]
    coverage = run.coverage.collect().row(0, named=True)
    assert (coverage["records"], coverage["frame_lines"], coverage["rejected"]) == (1, 2, 0)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_a_dialect_reads_its_sample_and_no_other_does(tmp_path: Path, dialect: Dialect) -> None:
    run = read_text(tmp_path, dialect.sample + "\n")
    coverage = run.coverage.collect().filter(pl.col("records") > 0)
    assert coverage["dialect"].to_list() == [dialect.name]
    others = tuple(d for d in DIALECTS if d is not dialect)
    alone = read(tmp_path / "w.log", dialects=others)
    assert alone.coverage.collect()["records"].sum() == 0


def test_no_line_of_a_real_log_is_claimed_twice(samples: Path) -> None:
    for log in sorted(samples.glob("*.log*")):
        together = {r["dialect"]: r["records"] for r in read(log).coverage.collect().to_dicts()}
        for dialect in DIALECTS:
            alone = read(log, dialects=[dialect]).coverage.collect()["records"].sum()
            assert alone == together.get(dialect.name, 0), (log.name, dialect.name)


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([d.sample.encode() for d in DIALECTS]),
        st.sampled_from([m.encode() for m in MARKERS]),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"\0", b"\x1b[1;36m(Worker_TP1 pid=812)\x1b[0;0m ", b' us=5 us=6"']),
    ),
    max_size=12,
).map(b"".join)


@settings(max_examples=120, deadline=None)
@given(PIECES)
def test_any_bytes_are_read_and_every_marker_is_accounted_for(folder: Path, content: bytes) -> None:
    log = folder / "any.log"
    log.write_bytes(content)
    run = read(log)
    events = run.events.collect().height
    for row in run.coverage.collect().to_dicts():
        if row["dialect"] is None:
            continue
        marker = next(d.marker for d in DIALECTS if d.name == row["dialect"])
        told = row["records"] + row["rejected"] + row["quoted"] + row["frame_lines"]
        assert told == content.decode("utf-8", "replace").count(marker)
    assert events <= sum(content.count(m.encode()) for m in MARKERS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Qcur-0 ne=1x1x1x1", "'us=' is missing"),
        ("[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Qcur-0 us=5", "'ne=' is missing"),
        ("[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Q ne=1x1x1x1 us=-5", "does not fit the grammar"),
        ("[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Q ne=1x1x1x1 us=1.5", "does not fit the grammar"),
        ("[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Q ne=1x1x1x1 us=99999999999999999999", "does not fit the grammar"),
        ("[SYCL_OP_TIMING]", "'dev=' is missing"),
        ('[llm-scaler][moe-kernel] device=0 kernel="moe', "'\" wait_ms=' is missing"),
        ("[vllm-xpu-timing] rank=0 label=x count=3", "'last_ms=' is missing"),
    ],
)
def test_a_marker_without_the_grammar_is_a_reject_with_line_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    run = read_text(tmp_path, f"prose\n{text}\n")
    row = run.rejects.collect().row(0, named=True)
    assert row["line"] == 2
    assert reason in row["reason"]
    assert text.startswith(row["text"])
    assert run.events.collect().is_empty()
    assert "rejected" in run.findings.collect()["code"].to_list()


@pytest.mark.parametrize(
    "text",
    [
        'write(f"[vllm-xpu-timing] rank={rank()} label={label} count={c} last_ms={ms:.6f}")',
        'fprintf(stderr, "[SYCL_OP_TIMING] dev=%d op=%s name=%s", d, o, n);',
        "The marker [SYCL_OP_TIMING] opens each line.",
        "grep '[llm-scaler][moe-kernel]' log",
    ],
)
def test_quoted_markers_are_notes_not_events(tmp_path: Path, text: str) -> None:
    run = read_text(tmp_path, text + "\n")
    assert run.events.collect().is_empty()
    assert run.rejects.collect().is_empty()
    assert run.coverage.collect()["quoted"].to_list() == [1]
    assert run.findings.collect()["severity"].to_list() == ["note"]


def test_glued_records_prefixes_and_colours(tmp_path: Path) -> None:
    sample = "[vllm-xpu-timing] rank=1 label=a count=1 last_ms=0.000001"
    text = (
        f"\x1b[1;36m(Worker_TP1 pid=812)\x1b[0;0m INFO 05-09 12:34:56 [x.py:1] {sample}\x1b[0m\n"
        f"{sample}{sample}(EngineCore pid=7) {sample.replace('rank=1', 'rank=pid7')}\n"
        f"it/s]\r{sample}\r\n"
        f"```{sample}```\n"
        f"run.log:12:{sample}\n"
    )
    frame = read_text(tmp_path, text).events.select("line", "seq", "rank", "pid", "dur_ns").collect()
    assert frame.rows() == [
        (1, 0, 1, 812, 1),
        (2, 1, 1, None, 1),
        (2, 2, 1, None, 1),
        (2, 3, None, 7, 1),
        (4, 4, 1, None, 1),
        (5, 5, 1, None, 1),
        (6, 6, 1, None, 1),
    ]


def test_trailing_pairs_of_the_preload_instrument(tmp_path: Path) -> None:
    line = "[SYCL_OP_TIMING] dev=0 op=MUL name=x-3 ne=1x1x1x1 us=1 v=1 graph=7 t0_ns=123456789 ns=1499 later=x\n"
    frame = read_text(tmp_path, line).events.select("dur_ns", "start_ns", "layer").collect()
    assert frame.rows() == [(1499, 123456789, 3)]


def test_two_dialects_with_one_marker_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def clash(**_: Any) -> list[Any]:
        class Entry:
            name = "mine"
            load: Callable[[], Dialect] = staticmethod(lambda: DIALECTS[0])

        return [Entry()]

    monkeypatch.setattr(tracekit.parsers, "entry_points", clash)
    with pytest.raises(TracekitError, match="same name: ggml-sycl"):
        catalogue()
