"""`tracekit record`: the lab's own numbers come out of logs made to them."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

from tracekit import record
from tracekit.manifest import load

#: The published probe with K, Q and V offloaded: what follows from the logs and from the benchmark's file.
PUBLISHED = {
    "tokSOutWithTiming": 3.802188,
    "workerTotalsMs": {"rpc-b70-0": 60.418, "rpc-b70-1": 62.087, "rpc-b70-2": 64.27, "rpc-b70-3": 64.093},
    "topBuckets": ["MUL_MAT", "MOE_FUSED_UP_GATE", "ROPE", "CPY", "SOFT_MAX", "MUL_MAT_ID"],
}
WORDS = {
    "label": "layer mode p0/n1 with GGML_SYCL_OP_TIMING=1 and -nkvo 0",
    "warning": "Timing mode synchronizes every SYCL op and is not a valid throughput result.",
    "interpretation": "The synchronized p0/n1 kernel mix is very similar to the older -nkvo 1 timing.",
}
ONE_OP = "[SYCL_OP_TIMING] dev=0 op=MUL name=x ne=1x1x1x1 us=5\n"


def recorded(tracekit: Command, *args: str | Path) -> dict[str, Any]:
    done = tracekit("record", *args)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["schema"], found["version"]) == (record.SCHEMA, record.VERSION)
    return found


def test_the_published_probe(tracekit: Command, samples: Path) -> None:
    made = samples / "generated"
    words = [part for key, text in WORDS.items() for part in (f"--{key}", text)]
    benches = ["--timed-bench", made / "bench_minimax_kqv_offload_timed.jsonl"]
    benches += ["--bench", made / "bench_minimax_kqv_offload.jsonl"]
    logs = made / "a_minimax_layer_kqv_offload"
    found = recorded(tracekit, logs, *words, *benches, "--name", "KqvOffloadOn", "--outcome", "kept")
    probe = found["timingProbeKqvOffloadOn"]
    assert {key: probe[key] for key in (*PUBLISHED, *WORDS)} == PUBLISHED | WORDS
    assert probe["budget"]["outsideMs"] == pytest.approx(12.138, abs=5e-4)
    assert found["outcome"] == "kept"
    (run,) = found["runs"]
    assert (run["tokSOut"], run["stddevTokSOut"]) == (16.383602, 0.1086)
    assert run["samplesTokSOut"] == [16.2585, 16.4391, 16.4532]
    assert (run["promptTokens"], run["outputTokens"]) == (0, 64)


def test_the_budget_is_that_of_decode_as_budget_has_it(tracekit: Command, samples: Path) -> None:
    logs, bench = (samples / "llama_rpc_worker0.log", samples / "llama_rpc_worker1.log"), samples / "bench_rpc.json"
    probe = recorded(tracekit, *logs, "--timed-bench", bench)["timingProbe"]
    budget, notes = probe["budget"], probe["notes"]
    assert [budget[k] for k in ("steps", "stepMs", "impliedMs", "outsideMs")] == pytest.approx(
        [33, 33.896, 36.424, 2.527], abs=1e-3
    )
    said = tracekit("budget", *logs, "--bench", bench, "--format", "json")
    (other,) = json.loads(said.stdout)["budgets"]
    assert (other["steps"], other["outside_ns"] / 1e6) == (budget["steps"], budget["outsideMs"])
    assert any("33 steps of each worker, of the decode steps alone" in note for note in notes)
    without = recorded(tracekit, *logs)["timingProbe"]
    assert without["budget"]["steps"] == 36
    assert not any("decode" in note for note in without["notes"])


def test_kernel_waits_are_the_published_ones(tracekit: Command, samples: Path) -> None:
    found = recorded(tracekit, samples / "generated" / "b_moe_kernel_waits.log")
    assert found["timingProbe"] is None
    up, down = sorted(found["trace"]["kernels"], key=lambda k: -k["avgWaitMs"])
    assert (up["kernelWaitSamples"], up["avgWaitMs"], up["medianWaitMs"]) == (992, 0.181263, 0.04448)
    assert (up["p95WaitMs"], up["maxWaitMs"]) == (0.542222, 8.24559)
    assert (down["avgWaitMs"], down["p95WaitMs"], down["maxWaitMs"]) == (0.027518, 0.04275, 0.109271)
    assert found["trace"]["kernelWaitSamples"] == 1984
    assert found["trace"]["minWaitMs"] == min(up["minWaitMs"], down["minWaitMs"])


def test_waits_are_no_cost(tracekit: Command, samples: Path) -> None:
    found = recorded(tracekit, samples / "llama_rpc_worker0.log")["timingProbe"]
    top = json.loads(tracekit("top", samples / "llama_rpc_worker0.log", "--format", "json").stdout)["tables"][0]
    assert found["workerTotalsMs"]["llama_rpc_worker0"] == top["cost_ns"] / 1e6


def test_a_selection_and_the_count_of_buckets(tracekit: Command, samples: Path) -> None:
    log = samples / "llama_rpc_worker0.log"
    whole = recorded(tracekit, log, "--top", "3")["timingProbe"]
    part = recorded(tracekit, log, "--phase", "decode")["timingProbe"]
    assert len(whole["topBuckets"]) == len(whole["buckets"]) == 3
    assert part["budget"]["steps"] == 33
    assert 0 < part["workerTotalsMs"]["llama_rpc_worker0"] < whole["workerTotalsMs"]["llama_rpc_worker0"]


STEP_LOG = "vllm_step_qwen36_tp4_eager_moe_20260611d.rank0.log"


@pytest.mark.parametrize("log", ["vllm_bench_skip16_every8_rank0.log", STEP_LOG])
def test_a_workers_cost_is_known_where_that_of_its_parts_is_not(tracekit: Command, samples: Path, log: str) -> None:
    probe = recorded(tracekit, samples / log, "--top", "24")["timingProbe"]
    top = json.loads(tracekit("top", samples / log, "--format", "json").stdout)["tables"][0]
    assert probe["workerTotalsMs"] == {"rank 0": top["cost_ns"] / 1e6}
    totals = [bucket["totalMs"] for bucket in probe["buckets"]]
    assert totals == sorted(totals, reverse=True)
    assert "gpu_model_runner.model_forward" in [b["op"] for b in probe["buckets"] if b["selfMs"] is None]
    assert any("ordered by their total" in note for note in probe["notes"])


def test_two_workers_are_each_asked_for(tracekit: Command, samples: Path, tmp_path: Path) -> None:
    log = (samples / STEP_LOG).read_text()
    other = tmp_path / "other.log"
    other.write_text(log.replace('"rank":"0"', '"rank":"1"'))
    both = recorded(tracekit, samples / STEP_LOG, other)["timingProbe"]
    alone = recorded(tracekit, other)["timingProbe"]["workerTotalsMs"]["rank 1"]
    assert list(both["workerTotalsMs"].values()) == [alone, alone]


def test_calls_of_no_length_are_known_to_take_nothing(tracekit: Command, tmp_path: Path) -> None:
    (tmp_path / "zero.log").write_text("".join(ONE_OP.replace("MUL", op).replace("us=5", "us=0") for op in "ABC"))
    probe = recorded(tracekit, tmp_path / "zero.log")["timingProbe"]
    assert (probe["workerTotalsMs"], probe["topBuckets"]) == ({"zero": 0.0}, ["A", "B", "C"])


def test_all_reduces_join_the_record(tracekit: Command, samples: Path, tmp_path: Path) -> None:
    probe = tmp_path / "xccl.json"
    probe.write_text(json.dumps([{"label": "minimax_hidden_fp16", "bytes": 6144, "avgMs": 0.015159}]))
    found = recorded(tracekit, samples / "llama_rpc_client.log", "--collectives", probe)
    assert found["collectives"] == [{"label": "minimax_hidden_fp16", "bytes": 6144, "avgMs": 0.015159}]
    assert found["artifacts"][-1]["bytes"] == probe.stat().st_size


def captured(tracekit: Command, samples: Path, folder: Path, *options: str) -> Path:
    """Capture a program that prints timing lines on stderr, if told to, and llama-bench's result on stdout."""
    lines = "".join(ONE_OP.replace("us=5", f"us={n}") for n in range(1, 4))
    code = "import os, sys; 'GGML_SYCL_OP_TIMING' in os.environ and "
    code += f"sys.stderr.write({lines!r}); print(open({str(samples / 'bench_rpc.json')!r}).read())"
    run = ("run", "--no-check", "--preset", "ggml-sycl", "--name", "client", "-o", folder, *options)
    done = tracekit(*run, "--env", "MY_TOKEN=hush", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def capture(tracekit: Command, samples: Path, tmp_path: Path) -> Path:
    return captured(tracekit, samples, tmp_path / "cap")


def test_a_pairs_clean_run_is_the_run_without_timing(tracekit: Command, samples: Path, tmp_path: Path) -> None:
    pair = captured(tracekit, samples, tmp_path / "pair", "--pair")
    found = recorded(tracekit, pair)
    assert [run["what"] for run in found["runs"]] == ["prefill", "decode"]
    assert {run["json"] for run in found["runs"]} == {str(pair / "clean" / "client.stdout.log")}
    assert found["timingProbe"]["json"] == str(pair / "timed" / "client.stdout.log")


def test_a_capture_tells_what_ran(tracekit: Command, capture: Path) -> None:
    found = recorded(tracekit, capture)
    manifest = load(capture)
    assert manifest is not None
    assert (found["outcome"], found["complete"]) == ("ok", True)
    assert found["command"].startswith(sys.executable + " -c ")
    assert found["environment"]["GGML_SYCL_OP_TIMING"] == "1"
    assert "hush" not in json.dumps(found)
    probe = found["timingProbe"]
    assert (probe["workerTotalsMs"], probe["tokSOutWithTiming"]) == ({"client": 0.006}, 27.454699)
    assert probe["json"] == str(capture / "client.stdout.log")
    paths = [a["path"] for a in found["artifacts"]]
    assert str(capture / "manifest.json") in paths
    assert {b["path"] for b in manifest.binaries} <= set(paths)


def test_two_captures_are_two_records(tracekit: Command, capture: Path, tmp_path: Path) -> None:
    shutil.copytree(capture, tmp_path / "other")
    done = tracekit("record", capture, tmp_path / "other")
    assert done.returncode == 2
    assert "a record is of one capture" in done.stderr


def test_two_engines_are_two_records(tracekit: Command, samples: Path) -> None:
    logs = (samples / "llama_rpc_client.log", samples / "vllm_eager_tp1.log")
    done = tracekit("record", *logs)
    assert done.returncode == 2
    assert "a record is of one engine" in done.stderr
    assert recorded(tracekit, *logs, "--where", "dialect=ggml*")["timingProbe"]["topBuckets"] == ["GET_ROWS"]


def test_hostile_names_stay_data(tracekit: Command, tmp_path: Path) -> None:
    log = tmp_path / 'a"\n<b>.log'
    log.write_bytes(ONE_OP.replace("name=x", 'name=</script>"\\').encode() + b"\xff\xfe\n")
    found = recorded(tracekit, log)
    assert found["timingProbe"]["workerTotalsMs"] == {'a"\n<b>': 0.005}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--name", "../x"], 2, "expected letters and digits"),
        (["--bench", "none.json"], 2, "cannot be opened"),
        (["--timed-bench", "w.log"], 1, "no whole JSON"),
        (["--collectives", "b.json"], 2, "holds no all-reduce"),
        (["-o", "w.log"], 2, "is the log that is read"),
        (["--bench", "b.json", "-o", "b.json"], 2, "is the log that is read"),
    ],
)
def test_wrong_usage_is_said(tracekit: Command, tmp_path: Path, args: list[str], code: int, words: str) -> None:
    (tmp_path / "w.log").write_text(ONE_OP)
    (tmp_path / "b.json").write_text('[{"avg_ts": 2.0, "n_gen": 1}]')
    done = tracekit("record", "w.log", *args, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert (tmp_path / "w.log").read_text() == ONE_OP


def test_nothing_recognised(tracekit: Command, samples: Path) -> None:
    done = tracekit("record", samples / "vllm_plain.log")
    assert (done.returncode, done.stdout) == (3, "")
