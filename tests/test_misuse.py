"""What a user does by mistake: nothing is lost, nothing counts twice, nothing ends in a traceback."""

import gzip
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


def test_what_is_no_log_is_said_with_what_it_is(tracekit: Command, log: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_bytes(log.read_bytes())
    (tmp_path / "utf16.log").write_text(log.read_text(), encoding="utf-16")
    (tmp_path / "bare.log").write_text(log.read_text(), encoding="utf-16-le")
    for command, name in (
        ("top", "top.csv"),
        ("events", "events.csv"),
        ("convert", "t.pftrace"),
        ("convert", "t.json"),
    ):
        form = ["--format", "csv"] if name.endswith("csv") else []
        refused(tracekit(command, log, "-o", tmp_path / name, *form), 0)
    for name, says in (
        ("plain.gz", "not packed"),
        ("utf16.log", "UTF-16"),
        ("bare.log", "UTF-16"),
        ("top.csv", "table that tracekit wrote"),
        ("events.csv", "table that tracekit wrote"),
        ("t.pftrace", "is a trace"),
        ("t.json", "is a trace"),
    ):
        refused(tracekit("top", tmp_path / name), 3, name, says)
    # Beside a good log it is a fault, not a remark: a worker is missing.
    refused(tracekit("top", log, tmp_path / "utf16.log", "--strict"), 4, "UTF-16", "[no-log]")


def test_a_trace_has_the_format_of_its_name(tracekit: Command, log: Path, tmp_path: Path) -> None:
    for name, begins in (("t.json", '{"displayTimeUnit'), ("t.speedscope.json", '{"$schema"'), ("t.folded", "w;")):
        refused(tracekit("convert", log, "-o", tmp_path / name), 0)
        assert (tmp_path / name).read_text().startswith(begins), name
    refused(
        tracekit("convert", log, "-o", tmp_path / "t.folded", "--layout", "sequential"), 2, "flame graph", "has none"
    )


def test_only_traces_are_opened(tracekit: Command, log: Path, tmp_path: Path) -> None:
    from tracekit.errors import UsageError
    from tracekit.trace.serve import TraceServer

    for name in ("t.json", "t.pftrace", "t.folded", "t.speedscope.json"):
        refused(tracekit("convert", log, "-o", tmp_path / name), 0)
    refused(tracekit("convert", log, "-o", tmp_path / "c.pftrace", "--compress"), 0)
    (tmp_path / "t.pftrace.gz").write_bytes(gzip.compress((tmp_path / "t.pftrace").read_bytes()))
    for name in ("t.json", "t.pftrace", "c.pftrace", "t.pftrace.gz"):
        TraceServer(tmp_path / name, port=0).close()
    (tmp_path / "empty").touch()
    for path, says in (
        (log, "is no trace"),
        (tmp_path / "t.folded", "is no trace"),
        (tmp_path / "empty", "is no trace"),
    ):
        with pytest.raises(UsageError, match=says):
            TraceServer(path, port=0)
    with pytest.raises(UsageError, match="flame graph for"):
        TraceServer(tmp_path / "t.speedscope.json", port=0)


@pytest.mark.parametrize("command", ["report", "record", "convert"])
@pytest.mark.parametrize("filters", [["--steps", "1000:"], ["--where", "op=NONE"]])
def test_nothing_left_is_said_by_all(
    tracekit: Command, log: Path, tmp_path: Path, command: str, filters: list[str]
) -> None:
    target = tmp_path / "out.pftrace"
    refused(tracekit(command, log, *filters, "-o", target), 0, "no row is left")


@pytest.mark.parametrize("chosen", ["9:5", "5:5", ":0"])
def test_steps_that_cannot_be_are_refused(tracekit: Command, log: Path, tmp_path: Path, chosen: str) -> None:
    target = tmp_path / "out.pftrace"
    refused(tracekit("convert", log, "--steps", chosen, "-o", target), 2, "no step is from")
    assert not target.exists()


@pytest.mark.parametrize("command", ["budget", "report"])
def test_a_throughput_of_decoding_is_not_set_against_prefill(
    tracekit: Command, log: Path, samples: Path, tmp_path: Path, command: str
) -> None:
    target = tmp_path / "out"
    bench = samples / "bench_rpc.json"
    refused(tracekit(command, log, "--bench", bench, "--phase", "prefill", "-o", target), 2, "has none of")
    assert not target.exists()
