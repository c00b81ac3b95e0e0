"""What commands take from a capture besides its logs: how workers share a step, how the run ended, samples, pairs."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tracekit as tk
from tests.made_up import MadeUp, events
from tests.trace_check import read_trace
from tracekit import counters, manifest
from tracekit.captured import captures
from tracekit.errors import NothingRecognisedError
from tracekit.manifest import Capture, Log, Manifest, Moment, Outcome, Process

Command = Callable[..., Any]
PASS = ["GET_ROWS name=inp_embd", "MUL_MAT name=Qcur-{0}", "MUL_MAT name=Qcur-{1}"]


def log(steps: int, first_layer: int = 0, us: int = 100) -> str:
    ops = [op.format(first_layer, first_layer + 1) for op in PASS[(first_layer > 0) :]]
    return "".join(f"[SYCL_OP_TIMING] dev=0 op={op} ne=1024x1x1x1 us={us}\n" for _ in range(steps) for op in ops)


def capture(folder: Path, logs: dict[str, str], **changed: Any) -> Path:
    """Make a capture directory by hand, its timing lines on stderr; `changed` are fields of its manifest."""
    folder.mkdir(parents=True)
    processes = []
    for name, text in logs.items():
        (folder / f"{name}.stderr.log").write_text(text)
        (folder / f"{name}.stdout.log").write_text("done\n")
        out = Log(f"{name}.stdout.log", "", "stdout", 5, 1, 0)
        err = Log(f"{name}.stderr.log", "", "stderr", len(text), text.count("\n"), text.count("TIMING"))
        processes.append(Process(name, [name], "/", f"/bin/{name}", {}, [], True, logs=[out, err]))
    plain: dict[str, Any] = {
        "tracekit": "0", "name": "it", "presets": ["ggml-sycl"], "timed": True, "topology": "pipeline",
        "end": next(iter(logs)), "command": [], "cwd": "/", "started": Moment(0, 0), "ended": Moment(1, 1),
        "outcome": Outcome("ok", "it ended", 0), "capture": Capture(), "processes": processes, "host": {},
    }  # fmt: skip
    manifest.save(Manifest(**(plain | changed)), folder)
    return folder


def budgets(done: Any) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["budgets"]
    return found


@pytest.mark.parametrize(("topology", "per_step_ms"), [("pipeline", 0.5), ("parallel", 0.3)])
def test_the_manifest_says_how_workers_share_a_step(
    tracekit: Command, tmp_path: Path, topology: str, per_step_ms: float
) -> None:
    cap = capture(tmp_path / "cap", {"a": log(9), "b": log(9, 5)}, topology=topology)
    (found,) = budgets(tracekit("budget", cap, "--format", "json"))
    assert (found["topology"], found["per_step_ns"]) == (topology, per_step_ms * 1e6)
    (table,) = tk.buckets(tk.read(cap), ["dialect"])
    assert table.frame["per_step_ns"].to_list() == [per_step_ms * 1e6]
    # What the user says comes first.
    other = "parallel" if topology == "pipeline" else "pipeline"
    (found,) = budgets(tracekit("budget", cap, "--topology", other, "--format", "json"))
    assert found["topology"] == other


def test_without_stamps_a_trace_is_laid_out_by_the_manifest(tmp_path: Path) -> None:
    for topology, layout in (("pipeline", "pipeline"), ("parallel", "ranks")):
        cap = capture(tmp_path / topology, {"a": log(9), "b": log(9)}, topology=topology)
        report = tk.write_trace(tk.read(cap), tmp_path / "t.pftrace")
        assert (report.layout, "manifest says" in report.reason) == (layout, True)


def test_captures_that_disagree_say_nothing(tmp_path: Path) -> None:
    one = capture(tmp_path / "one", {"a": log(9)})
    two = capture(tmp_path / "two", {"b": log(9)}, topology="parallel")
    assert tk.read([one]).topology == "pipeline"
    assert tk.read([one, two]).topology is None


@pytest.mark.parametrize(
    ("changed", "code", "says"),
    [
        ({"outcome": Outcome("failed", "a ended with status 3", 3)}, "run-failed", "a ended with status 3"),
        ({"outcome": Outcome("stalled", "no output for 9 s", 143)}, "run-stalled", "was stopped: no output for 9 s"),
        ({"outcome": Outcome("interrupted", "SIGINT", 130)}, "run-interrupted", "was interrupted: SIGINT"),
        ({"outcome": None, "ended": None}, "run-unfinished", "still on, or was killed"),
        ({"capture": Capture(complete=False, stopped="the disk is full")}, "capture-incomplete", "the disk is full"),
    ],
)
def test_a_run_that_is_not_whole_is_a_fault(
    tracekit: Command, tmp_path: Path, changed: dict[str, Any], code: str, says: str
) -> None:
    cap = capture(tmp_path / "cap", {"a": log(9)}, **changed)
    for arguments in (["top"], ["layers"], ["budget"], ["steps"], ["convert", "-o", tmp_path / "t.pftrace"]):
        done = tracekit(arguments[0], cap, *arguments[1:], "--strict")
        assert done.returncode == 4, done.stderr
        (line,) = [line for line in done.stderr.splitlines() if f"[{code}]" in line]
        assert line.startswith("fault: ")
        assert says in line


def test_a_whole_run_has_no_fault_and_its_quiet_logs_are_no_news(tmp_path: Path) -> None:
    assert tk.read(capture(tmp_path / "cap", {"a": log(9)})).findings.collect().is_empty()


def test_a_log_that_was_cut_afterwards_is_a_fault(tmp_path: Path) -> None:
    cap = capture(tmp_path / "cap", {"a": log(9)})
    (cap / "a.stderr.log").write_text(log(8))
    found = tk.read(cap / "a.stderr.log").findings.collect()
    assert "capture-changed" in found["code"].to_list()


def test_a_damaged_manifest_does_not_hide_the_logs(tracekit: Command, tmp_path: Path) -> None:
    cap = capture(tmp_path / "cap", {"a": log(9)})
    (cap / manifest.FILE).write_text("{")
    done = tracekit("top", cap)
    assert done.returncode == 0
    assert "27" in done.stdout
    assert "how the run went is not known" in done.stderr


def test_a_manifest_of_other_logs_says_nothing(tmp_path: Path) -> None:
    cap = capture(tmp_path / "cap", {"a": log(9)}, outcome=None)
    (cap / "other.log").write_text(log(9))
    assert captures([str(cap / "other.log")]) == []


def pair(folder: Path, printed: str, **clean: Any) -> Path:
    capture(folder / "clean", {"a": ""}, role="clean", timed=False, **clean)
    (folder / "clean" / "a.stdout.log").write_text(printed)
    capture(folder / "timed", {"a": log(9)}, role="timed")
    runs = [
        {"role": r, "directory": r, "outcome": "ok", "duration_ns": n}
        for r, n in (("clean", 10**9), ("timed", 3 * 10**9))
    ]
    (folder / manifest.PAIR_FILE).write_text(json.dumps({"schema": "tracekit-pair", "version": 1, "runs": runs}))
    return folder


TABLE = """| model | size | test | t/s |
| ----- | ---: | ---: | --: |
| it    | 1 GB | pp32 | 9000.00 ± 1.00 |
| it    | 1 GB | tg16 | 1000.00 ± 5.00 |
"""
JSON = json.dumps([{"n_prompt": 32, "n_gen": 0, "avg_ts": 9.0}, {"n_prompt": 0, "n_gen": 16, "avg_ts": 1000.0}])
SERVED = "=====\nRequest throughput (req/s):   1.0\nOutput token throughput (tok/s):         1000.00\n"


@pytest.mark.parametrize("printed", [TABLE, JSON, SERVED])
def test_a_pair_is_its_timed_run_against_its_clean_throughput(tracekit: Command, tmp_path: Path, printed: str) -> None:
    folder = pair(tmp_path / "p", printed)
    done = tracekit("budget", folder, "--format", "json")
    (found,) = budgets(done)
    assert (found["per_step_ns"], found["implied_ns"], found["outside_ns"]) == (300_000, 1_000_000, 700_000)
    assert "1000 tokens per second of decoding by the clean run" in done.stderr
    assert "it took 3.0 s, the clean one 1.0 s (3.00 times)" in done.stderr
    top = tracekit("top", folder)
    assert "diagnostic: not throughput" in top.stdout
    assert top.stdout == tracekit("top", folder / "timed").stdout


def test_a_pair_without_a_known_throughput_says_so(tracekit: Command, tmp_path: Path) -> None:
    done = tracekit("budget", pair(tmp_path / "p", "42\n"), "--format", "json")
    assert budgets(done)[0]["implied_ns"] is None
    assert "note: no throughput of the pair's clean run" in done.stderr
    failed = Outcome("failed", "it died", 1)
    done = tracekit("budget", pair(tmp_path / "q", TABLE, outcome=failed), "--format", "json")
    assert budgets(done)[0]["implied_ns"] is None
    assert "did not end well" in done.stderr


def test_a_clean_run_points_to_the_timed_one(tmp_path: Path) -> None:
    folder = pair(tmp_path / "p", TABLE)
    with pytest.raises(NothingRecognisedError, match="clean run of a pair has no timing record"):
        tk.read(folder / "clean").require_records()
    shutil.rmtree(folder / "timed")
    with pytest.raises(NothingRecognisedError, match="a pair without a timed run"):
        tk.read(folder)


def test_a_decode_throughput_is_set_against_decode_steps(tracekit: Command, tmp_path: Path) -> None:
    prompt = log(1, us=5000).replace("1024x1x1x1", "1024x32x1x1")
    (tmp_path / "a.log").write_text(prompt + log(9))
    (tmp_path / "b.json").write_text(JSON)
    (found,) = budgets(tracekit("budget", tmp_path / "a.log", "--bench", tmp_path / "b.json", "--format", "json"))
    assert (found["steps"], found["tokens_per_step"], found["per_step_ns"]) == (9, 1.0, 300_000)


def samples(folder: Path, rows: list[tuple[int, str, str, str, float]]) -> pl.DataFrame:
    lines = [",".join(counters.COLUMNS), *(f'{t},{d},"{q}",{u},{v}' for t, d, q, u, v in rows)]
    (folder / counters.FILE).write_text("\n".join(lines) + "\n")
    return counters.read_counters(folder)


ROWS = [
    (500, "0000:03:00.0", "power card", "W", 10.0),
    (900, "0000:03:00.0", "power card", "W", 20.0),
    (900, "0000:0a:00.0", "power card", "W", 5.0),
    (1000, "0000:03:00.0", "frequency tile0/gt0/freq0", "MHz", 2400.0),
    (1800, "0000:03:00.0", "power card", "W", 30.0),
    (9000, "0000:03:00.0", "power card", "W", 99.0),
]


def test_samples_become_counter_tracks_where_times_are_real(tmp_path: Path) -> None:
    # Two operations of 500 ns that arrive at 1500 and 2500: the timeline is 1000 to 2500.
    frame = events([{"dur_ns": 500, "arrival_ns": at} for at in (1500, 2500)])
    source = MadeUp([frame], sensors=samples(tmp_path, ROWS))
    report = tk.write_trace(source, tmp_path / "t.pftrace")
    assert report.layout == "arrival"
    trace = read_trace(tmp_path / "t.pftrace")
    assert [name for name in trace.processes if name.startswith("GPU")] == ["GPU 0000:03:00.0", "GPU 0000:0a:00.0"]
    found = {
        (trace.tracks[track.parent].process, track.name): trace.counters[uuid]
        for uuid, track in trace.tracks.items()
        if track.counter and track.parent and trace.tracks[track.parent].process.startswith("GPU")
    }
    # What was last told before the beginning still holds there; what came after the end is left out.
    assert found == {
        ("GPU 0000:03:00.0", "frequency tile0/gt0/freq0"): [(0, 2400.0)],
        ("GPU 0000:03:00.0", "power card"): [(0, 20.0), (800, 30.0)],
        ("GPU 0000:0a:00.0", "power card"): [(0, 5.0)],
    }


def test_samples_are_left_out_where_times_are_not_real_and_that_is_said(tmp_path: Path) -> None:
    source = MadeUp([events([{}, {}])], sensors=samples(tmp_path, ROWS))
    report = tk.write_trace(source, tmp_path / "t.json")
    (note,) = report.notes
    assert "6 samples of power, frequency and temperature are left out: in layout sequential" in note
    trace = json.loads((tmp_path / "t.json").read_text())
    assert note in trace["otherData"].values()
    assert not [e for e in trace["traceEvents"] if "GPU" in str(e)]


def test_samples_of_a_capture_reach_the_trace(tmp_path: Path) -> None:
    """The whole way: a program that prints, a made-up card, one directory, one trace."""
    cap = capture(tmp_path / "cap", {"a": log(9)})
    count = len(log(9).splitlines())
    from tracekit import stamps

    ends = np.cumsum([len(line) + 1 for line in log(9).splitlines()])
    records = b"".join(
        stamps.RECORD.pack(int(start), 10**9 + n * 10**6) for n, start in enumerate([0, *ends[: count - 1].tolist()])
    )
    stamps.sidecar(cap / "a.stderr.log").write_bytes(stamps.header(stamps.anchor_now()) + records)
    samples(cap, [(10**9 + 5 * 10**6, "0000:03:00.0", "power card", "W", 42.0)])
    report = tk.write_trace(tk.read(cap), tmp_path / "t.json")
    assert report.layout == "arrival"
    trace = json.loads((tmp_path / "t.json").read_text())
    (point,) = [e for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "power card (W)"]
    # The first operation begins its 100 us before its stamp: that is zero.
    assert point["args"]["value"] == 42.0
    assert point["ts"] == 5000 + 100


def test_a_clean_run_that_was_timed_is_a_fault_and_no_throughput(tracekit: Command, tmp_path: Path) -> None:
    folder = pair(tmp_path / "p", TABLE)
    found = manifest.load(folder / "clean")
    assert found is not None
    found.processes[0].logs[1].timing_lines = 27
    manifest.save(found, folder / "clean")
    done = tracekit("budget", folder, "--format", "json")
    assert budgets(done)[0]["implied_ns"] is None
    assert "the clean run of the pair printed 27 timing lines: it is not clean" in done.stderr
    assert "by the clean run" not in done.stderr
    assert tracekit("budget", folder, "--strict").returncode == 4


def test_a_log_that_the_capture_did_not_write_is_a_fault(tmp_path: Path) -> None:
    cap = capture(tmp_path / "cap", {"a": log(9)})
    shutil.copy(cap / "a.stderr.log", cap / "copy.log")
    with gzip.open(cap / "a.stderr.log.gz", "wt") as packed:
        packed.write(log(9))
    found = tk.read(cap).findings.filter(pl.col("code") == "capture-strange").collect().to_dicts()
    assert [(f["severity"], f["count"]) for f in found] == [("fault", 2)]
    assert "not part of this capture" in found[0]["message"]
    assert "a.stderr.log.gz, copy.log" in found[0]["message"]


def test_a_log_that_was_packed_since_is_the_same_log(tmp_path: Path) -> None:
    cap = capture(tmp_path / "cap", {"a": log(9)})
    with gzip.open(cap / "a.stderr.log.gz", "wt") as packed:
        packed.write(log(9))
    (cap / "a.stderr.log").unlink()
    run = tk.read(cap)
    assert run.findings.collect().is_empty()
    assert (run.topology, run.events.collect().height) == ("pipeline", 27)


def test_a_removed_log_is_missing(tracekit: Command, tmp_path: Path) -> None:
    cap = capture(tmp_path / "cap", {"a": log(9), "b": log(9)})
    (cap / "b.stderr.log").unlink()
    codes = tk.read(cap).findings.collect().select("severity", "code", "message").rows()
    assert [c[:2] for c in codes if "capture" in c[1]] == [("fault", "capture-missing")]
    assert "missing: b.stderr.log" in codes[0][2]
    (cap / "a.stderr.log").unlink()
    done = tracekit("top", cap)
    assert done.returncode == 3
    assert "logs of this capture that are missing: a.stderr.log, b.stderr.log" in done.stderr
    for left in cap.glob("*.log"):
        left.unlink()
    done = tracekit("top", cap)
    assert done.returncode == 3
    assert "no log in this directory; missing of this capture: a.stdout.log" in done.stderr
