"""Torn llm-scaler records: nothing true is lost or changed, nothing is invented, nobody is blamed on a guess."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
import polars as pl
import pytest
from hypothesis import given, settings
from torn_writer import DOWN, UP, Truth, interleaved, torn

from tracekit.parsers.torn import is_number, is_torn, rebuild
from tracekit.reading import read


def frame(text: str) -> pl.DataFrame:
    rows = text.removesuffix("\n").split("\n")
    return pl.DataFrame({"line": pl.Series(range(1, len(rows) + 1), dtype=pl.UInt32), "text": rows})


def ns(text: str) -> int:
    return round(float(text) * 1e6)


@dataclass(frozen=True)
class Score:
    recovered: float  # part of the true values that are there
    invented: int
    total: float  # sum of the values, relative to the truth
    attributed: float
    wrong: float  # part of all records whose device is told and false


def score(text: str, truth: list[Truth]) -> Score:
    found = rebuild(frame(text))
    assert found is not None
    events = found.events
    true, seen = Counter(ns(t.text) for t in truth), Counter(events["dur_ns"].to_list())
    owners = Counter((ns(t.text), t.device) for t in truth)
    told = Counter(r for r in events.select("dur_ns", "device").iter_rows() if r[1] is not None)
    return Score(
        (true & seen).total() / len(truth),
        (seen - true).total(),
        events["dur_ns"].sum() / sum(ns(t.text) for t in truth),
        told.total() / len(truth),
        (told - owners).total() / len(truth),
    )


def part_torn(text: str) -> float:
    intact = r'^\[llm-scaler\]\[moe-kernel\] device=-?\d+ kernel="[^"\[]+" wait_ms=[0-9.e+-]+$'
    return 1 - float(frame(text).select(pl.col("text").str.contains(intact).mean()).item())


@pytest.mark.parametrize(
    ("processes", "records", "keep", "attributed"),
    [(4, 800, 0.98, 0.85), (4, 600, 0.9, 0.55), (2, 800, 0.7, 0.7), (4, 300, 0.7, 0.35)],
)
def test_drawn_interleavings(processes: int, records: int, keep: float, attributed: float) -> None:
    found = score(*interleaved(processes, records, keep))
    assert found.recovered >= 0.995
    assert found.invented == 0
    assert abs(found.total - 1) <= 0.005
    assert found.attributed >= attributed
    assert found.wrong <= 0.001


def test_processes_that_really_share_a_pipe() -> None:
    text, truth = torn(4, 800, 0.02)
    assert part_torn(text) > 0.02
    found = score(text, truth)
    assert found.recovered >= 0.995
    assert found.invented == 0
    assert found.attributed >= 0.5  # how often writers meet differs from machine to machine
    assert found.wrong <= 0.001


def test_one_process_is_never_torn() -> None:
    text, truth = interleaved(1, 200, 1.0)
    assert not is_torn(frame(text))
    assert rebuild(frame(text)) is None
    assert len(truth) == 200


@pytest.mark.parametrize("kernels", [(UP, DOWN, "moe topk softmax int4"), ("a b", "c d", "e f", "g h")])
def test_more_kernels(kernels: tuple[str, ...]) -> None:
    found = score(*interleaved(3, 150, 0.97, kernels))
    assert found.recovered >= 0.99
    assert found.invented == 0
    assert found.wrong <= 0.001


def test_eight_processes() -> None:
    found = score(*interleaved(8, 40, 0.985))
    assert found.recovered >= 0.98
    assert found.invented == 0
    assert found.wrong <= 0.001


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.floats(0.9, 0.99))
def test_whatever_the_order_nothing_is_invented(seed: int, processes: int, keep: float) -> None:
    text, truth = interleaved(processes, 80, keep, seed=seed)
    found = rebuild(frame(text))
    if found is None:
        return
    true = Counter(ns(t.text) for t in truth)
    assert not Counter(found.events["dur_ns"].to_list()) - true


def test_text_of_other_programs_between_the_pieces(tmp_path: Path) -> None:
    text, truth = interleaved(4, 200, 0.95)
    rows = text.split("\n")
    for at in range(50, len(rows), 50):
        rows.insert(at, f"(Worker_TP1 pid=81) INFO 05-09 12:34:{at % 60:02d} [x.py:{at}] step {at} took 0.25 s")
    log = tmp_path / "w.log"
    log.write_text("\n".join(rows))
    run = read(log)
    events = run.events.collect()
    assert events.height >= 0.99 * len(truth)
    assert not Counter(events["dur_ns"].to_list()) - Counter(ns(t.text) for t in truth)
    coverage = run.coverage.collect().row(0, named=True)
    assert coverage["recovered"] == events["recovered"].sum() > 0
    assert coverage["records"] + coverage["recovered"] + coverage["rejected"] == len(truth)


@pytest.mark.parametrize(("text", "printed"), [("0.04465", True), ("2.05121", True), ("12", True), ("9.1e-05", True),
    ("0.0446500", False), ("0.00001", False), ("1234567", False), ("01", False), ("1.", False)])  # fmt: skip
def test_how_a_stream_prints_a_number(text: str, *, printed: bool) -> None:
    assert is_number(text) == printed
    if printed:
        assert f"{float(text):g}" == text
