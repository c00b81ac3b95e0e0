"""Workers side by side: spread, the slowest, what others wait, missing calls."""

import csv
import io
import json
from pathlib import Path

import pytest
from conftest import Command

from tracekit.balance import balance
from tracekit.errors import TracekitError, UsageError
from tracekit.reading import read
from tracekit.stepping import steps

_LABELS = ("gpu_model_runner.preprocess", "qwen3_moe.attn.total", "gpu_model_runner.model_forward")


def ranks(path: Path, attention: dict[int, list[float]], *, lost: int | None = None) -> Path:
    """Write a log of ranks whose attention takes so many ms in each step; all else is alike."""
    lines = []
    for step in range(len(attention[0])):
        for rank, times in attention.items():
            spent = {_LABELS[0]: 1.0, _LABELS[1]: times[step], _LABELS[2]: times[step] + 2.0}
            for label, ms in spent.items():
                if rank == lost and label == _LABELS[1] and step == 0:
                    continue
                count = step + (0 if rank == lost and label == _LABELS[1] else 1)
                lines.append(f"[vllm-xpu-timing] rank={rank} label={label} count={count} last_ms={ms:.6f}\n")
    path.write_text("".join(lines))
    return path


def test_the_slowest_and_what_others_wait(tmp_path: Path) -> None:
    log = ranks(tmp_path / "w.log", {0: [4.0, 4.0, 4.0, 7.0], 1: [6.0, 6.0, 6.0, 6.0], 2: [4.0, 4.0, 4.0, 4.0]})
    (found,) = balance(read(log))
    assert (found.workers, found.steps, found.topology) == (("rank 0", "rank 1", "rank 2"), 4, "parallel")
    row = found.frame.row(0, named=True)
    assert row["op"] == "qwen3_moe.attn.total"
    assert (row["slowest"], row["slowest_share"]) == ("rank 1", 0.75)
    # Three steps: 6 against 4 and 4; one: 7 against 6 and 4.
    assert row["wait_ns"] == round((3 * 4 + 4) / 4 * 1e6)
    assert row["spread_ns"] == round((3 * 2 + 3) / 4 * 1e6)
    assert [w["per_step_ns"] for w in row["workers"]] == [4_750_000, 6_000_000, 4_000_000]
    alike = found.frame.filter(found.frame["op"] == "gpu_model_runner.preprocess").row(0, named=True)
    assert (alike["wait_ns"], alike["spread"], alike["slowest"]) == (0, 0, None)
    total = found.total.row(0, named=True)
    assert total["wait_ns"] == row["wait_ns"]  # all else is alike
    assert total["mean_ns"] == pytest.approx(found.frame["mean_ns"].sum(), abs=3)


def test_missing_calls(tmp_path: Path) -> None:
    log = ranks(tmp_path / "w.log", {0: [4.0] * 5, 1: [4.0] * 5}, lost=1)
    (found,) = balance(read(log))
    row = found.frame.filter(found.frame["op"] == "qwen3_moe.attn.total").row(0, named=True)
    assert row["missing_calls"] == 1
    assert [w["calls"] for w in row["workers"]] == [5, 4]


def test_a_pipeline_waits_for_nobody(samples: Path) -> None:
    (found,) = balance(read(samples / "llama_rpc_worker*.log"), ["category"])
    assert found.topology == "pipeline"
    assert found.frame["wait_ns"].null_count() == found.frame.height
    assert any("in turn" in note for note in found.notes)
    (side_by_side,) = balance(read(samples / "llama_rpc_worker*.log"), ["category"], arrangement="parallel")
    assert side_by_side.frame["wait_ns"].null_count() == 0


def test_the_mean_of_a_step_is_that_of_the_steps(samples: Path) -> None:
    run = read(samples / "vllm_eager_tp2.log")
    (found,) = balance(run, ["layer", "category"])
    for worker in found.total["workers"][0]:
        mine = steps(run)
        mean = mine.filter(mine["worker"].cast(str) == worker["worker"])["dur_ns"].mean()
        assert worker["per_step_ns"] == pytest.approx(mean, abs=1)


def test_without_steps_means_are_compared(samples: Path) -> None:
    (found,) = balance(read(samples / "generated" / "b_moe_kernel_waits.log"))
    assert (found.per, found.steps, len(found.workers)) == ("call", 0, 4)
    assert found.total.is_empty()
    assert found.frame["slowest_share"].null_count() == found.frame.height
    row = found.frame.row(0, named=True)
    worst = max(w["per_step_ns"] for w in row["workers"])
    assert row["wait_ns"] == pytest.approx(sum(worst - w["per_step_ns"] for w in row["workers"]), abs=4)


@pytest.mark.parametrize("by", ["worker", "step", "rank", "op,stream"])
def test_what_tells_workers_apart_groups_nothing(samples: Path, by: str) -> None:
    with pytest.raises(UsageError, match="cannot be compared by"):
        balance(read(samples / "vllm_eager_tp2.log"), by.split(","))


def test_one_worker_has_no_balance(samples: Path) -> None:
    with pytest.raises(TracekitError, match="only llama_rpc_worker0"):
        balance(read(samples / "llama_rpc_worker0.log"))


def test_the_command(tracekit: Command, tmp_path: Path) -> None:
    log = ranks(tmp_path / "w.log", {0: [4.0] * 4, 1: [6.0] * 4})
    done = tracekit("balance", log)
    assert done.returncode == 0, done.stderr
    assert "balance of 2 workers (parallel; mean of 4 steps" in done.stdout
    line = next(text for text in done.stdout.splitlines() if text.startswith("qwen3_moe.attn.total"))
    assert line.split() == ["qwen3_moe.attn.total", "4.000", "6.000", "40.0", "rank", "1", "100", "2.000", "0"]
    assert "| op" in tracekit("balance", log, "--format", "markdown").stdout
    found = json.loads(tracekit("balance", log, "--format", "json").stdout)
    assert found["balances"][0]["rows"][0]["slowest"] == "rank 1"
    assert found["balances"][0]["total"]["wait_ns"] == 2_000_000
    (first, *_) = list(csv.DictReader(io.StringIO(tracekit("balance", log, "--format", "csv").stdout)))
    assert json.loads(first["workers"])[1]["per_step_ns"] == 6_000_000


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--by", "worker"], 2, "cannot be compared by worker"),
        (["--by", ""], 2, "nothing to group by"),
        (["--where", "worker=rank 0"], 1, "only rank 0"),
        (["--steps", "90:"], 1, "no worker has cost"),
    ],
)
def test_misuse(tracekit: Command, tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    log = ranks(tmp_path / "w.log", {0: [4.0] * 4, 1: [6.0] * 4})
    done = tracekit("balance", log, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
