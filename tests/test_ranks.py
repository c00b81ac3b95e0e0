"""A process that prints its pid before it knows its rank is one worker, where the log proves it."""

from pathlib import Path

import pytest

import tracekit as tk

EARLY = "({0} pid=812) [vllm-xpu-timing] rank=pid812 label=decode.moe count=1 last_ms=2.000000\n"
LATER = "({0} pid={1}) [vllm-xpu-timing] rank={2} label=decode.moe count=1 last_ms=1.000000\n"


def workers(tmp_path: Path, text: str) -> dict[str, int]:
    log = tmp_path / "serve.log"
    log.write_text(text)
    (table,) = tk.buckets(tk.read(log), by=["worker"])
    return dict(table.frame.select("worker", "total_ns").iter_rows())


def test_records_before_the_rank_was_known_are_the_ranks(tmp_path: Path) -> None:
    text = EARLY.format("Worker_TP0") + LATER.format("Worker_TP0", 812, 0) + LATER.format("Worker_TP1", 813, 1)
    assert workers(tmp_path, text) == {"rank 0": 3_000_000, "rank 1": 1_000_000}
    frame = tk.read(tmp_path / "serve.log").events.collect()
    assert frame["rank"].to_list() == [0, 0, 1]
    assert frame["pid"].to_list() == [812, 812, 813]


@pytest.mark.parametrize(
    "others",
    [
        LATER.format("Worker_TP0", 900, 0),  # another process's rank
        LATER.format("Worker_TP0", 812, 0) + LATER.format("Worker_TP0", 812, 1),  # two ranks: it proves nothing
        LATER.format("Worker_TP0", 812, 0).partition(") ")[2],  # no prefix tells who printed it
    ],
)
def test_without_proof_they_stay_apart(tmp_path: Path, others: str) -> None:
    assert "pid812" in workers(tmp_path, EARLY.format("Worker_TP0") + others)
