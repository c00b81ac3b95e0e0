"""Arrival stamps of a capture: each line has the time of the read that brought its last byte."""

from pathlib import Path

import polars as pl
import pytest
from trace_check import read_trace

import tracekit as tk
from tracekit.stamps import MAGIC, RECORD, VERSION

LINE = b"[SYCL_OP_TIMING] dev=0 op=MUL name=x-0 ne=1x1x1x1 us=%d\n"


def stamps(*records: tuple[int, int]) -> bytes:
    """Write a sidecar as docs/capture.md lays it out."""
    header = MAGIC + VERSION.to_bytes(4, "little") + (64).to_bytes(4, "little") + bytes(48)
    return header + b"".join(RECORD.pack(*r) for r in records)


def test_lines_arrive_when_their_last_byte_does(tmp_path: Path) -> None:
    text = b"it/s]\r" + LINE % 1 + b"prose\r\n" + LINE % 2 + LINE % 3
    second, third = text.index(b"us=2"), text.index(b"us=3")
    (tmp_path / "w.log").write_bytes(text)
    (tmp_path / "w.log.stamps").write_bytes(stamps((0, 1_000_000), (second, 5_000_000), (third, 9_000_000)))
    events = tk.read(tmp_path / "w.log").events.select("line", "dur_ns", "arrival_ns").collect()
    assert events.rows() == [(2, 1000, 1_000_000), (4, 2000, 5_000_000), (5, 3000, 9_000_000)]


def test_a_trace_is_laid_out_by_arrival(tmp_path: Path) -> None:
    (tmp_path / "w.log").write_bytes(LINE % 100 + LINE % 200)
    (tmp_path / "w.log.stamps").write_bytes(stamps((0, 1_000_000), (60, 9_000_000)))
    report = tk.write_trace(tk.read(tmp_path / "w.log"), tmp_path / "t.pftrace")
    assert report.layout == "arrival"
    first, second = sorted(read_trace(tmp_path / "t.pftrace").operations(), key=lambda s: s.start_ns)
    assert (first.dur_ns, second.dur_ns) == (100_000, 200_000)
    assert second.end_ns - first.end_ns == 8_000_000


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "is no file of arrival stamps"), (stamps(), "do not cover"), (stamps((9, 1)), "do not")]
)
def test_damaged_stamps_cost_the_times_and_nothing_else(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "w.log").write_bytes(b"a\n" + LINE % 1 + LINE % 2)
    (tmp_path / "w.log.stamps").write_bytes(content)
    run = tk.read(tmp_path / "w.log")
    assert run.events.select("dur_ns", "arrival_ns").collect().rows() == [(1000, None), (2000, None)]
    (fault,) = run.findings.filter(pl.col("code") == "stamps-damaged").collect().to_dicts()
    assert fault["severity"] == "fault"
    assert str(tmp_path / "w.log.stamps") in fault["message"]
    assert says in fault["message"]


def test_stamps_that_end_before_the_log_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "w.log").write_bytes(LINE % 1 * 30_000)
    (tmp_path / "w.log.stamps").write_bytes(stamps((0, 5)))
    found = tk.read(tmp_path / "w.log").findings.filter(pl.col("code") == "stamps-damaged").collect()
    assert "is cut, nothing is stamped from byte 1,048,576 on" in found["message"][0]
