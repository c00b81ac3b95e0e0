"""What a user does by mistake: nothing is lost, nothing counts twice, nothing ends in a traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., object]
TOTAL_NS = 489_251_000  # of llama_rpc_worker0.log: a plain sum over its lines


@pytest.fixture
def log(samples: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(samples / "llama_rpc_worker0.log", tmp_path / "w.log"))


def refused(done: object, code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr  # type: ignore[attr-defined]
    assert "Traceback" not in done.stderr  # type: ignore[attr-defined]
    for word in words:
        assert word in done.stderr  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", [["convert"], ["events"], ["top", "--format", "csv"], ["steps"], ["layers"]])
def test_a_log_is_never_written_over(tracekit: Command, log: Path, command: list[str]) -> None:
    before = log.read_bytes()
    (log.parent / "link.log").symlink_to(log)
    for target in (log, log.parent / "link.log"):
        refused(tracekit(*command, log, "-o", target), 2, "is the log that is read")
    assert log.read_bytes() == before


def test_one_log_by_two_paths_counts_once(tracekit: Command, log: Path) -> None:
    (log.parent / "link.log").symlink_to(log)
    done = tracekit("top", "./w.log", log, "link.log", "--format", "json", cwd=log.parent)
    (table,) = json.loads(done.stdout)["tables"]  # type: ignore[attr-defined]
    assert sum(r["total_ns"] for r in table["rows"]) == TOTAL_NS


def test_one_name_is_for_one_log(tracekit: Command, log: Path) -> None:
    other = Path(shutil.copy(log, log.parent / "v.log"))
    refused(tracekit("top", log, other, "--worker", f"a={log}", "--worker", f"a={other}"), 2, "one name")
    refused(tracekit("top", log, "--worker", f"a={log}", "--worker", f"b={log}"), 2, "one name")


@pytest.mark.parametrize(
    "command", [["top", "--by", "op,layer,device,shape"], ["layers"], ["convert", "-o", "t.pftrace"]]
)
def test_numbers_that_fit_nowhere(tracekit: Command, tmp_path: Path, command: list[str]) -> None:
    huge = "9" * 20
    (tmp_path / "w.log").write_text(f"[SYCL_OP_TIMING] dev={huge} op=MUL name=Q-{huge} ne={huge}x1x1x1 us=5\n")
    refused(tracekit(*command, "w.log", cwd=tmp_path), 0)


@pytest.mark.parametrize("speed", ["nan", "inf", "1e-320", "0", "-3"])
def test_speeds_that_are_none(tracekit: Command, log: Path, speed: str) -> None:
    refused(tracekit("budget", log, f"--tok-s={speed}"), 2, "expected tokens per second")


def test_a_benchmark_without_numbers(tracekit: Command, log: Path) -> None:
    (log.parent / "b.json").write_text('[{"avg_ts": "x", "n_gen": 1}]')
    refused(tracekit("budget", log, "--bench", log.parent / "b.json"), 2, "holds no number")


@pytest.mark.parametrize("least", ["nan", "-5", "inf"])
def test_durations_that_are_none(tracekit: Command, log: Path, least: str) -> None:
    refused(tracekit("convert", log, "-o", log.parent / "t.pftrace", f"--min-dur={least}"), 2)
    assert not (log.parent / "t.pftrace").exists()


def test_only_refused_records_is_nothing_recognised(tracekit: Command, tmp_path: Path) -> None:
    (tmp_path / "w.log").write_text("[SYCL_OP_TIMING] dev=0 op=MUL name=x ne=1x1x1x1 us=nan\n" * 3)
    refused(tracekit("top", tmp_path / "w.log"), 3, "w.log:1", "none of 3 records")


@pytest.mark.parametrize("filters", [["--steps", "1000:"], ["--skip-steps", "9999"], ["--where", "op=NONE"]])
def test_an_empty_selection_is_said(tracekit: Command, log: Path, filters: list[str]) -> None:
    refused(tracekit("top", log, *filters), 0, "no row is left")


def test_no_budget_without_steps(tracekit: Command, samples: Path) -> None:
    refused(tracekit("budget", samples / "vllm_summary_only.log", "--tok-s", "10"), 1, "no step was found")
