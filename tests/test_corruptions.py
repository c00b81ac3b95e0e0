"""Planted corruptions: each raises its own fault; the originals raise none."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import tracekit.log
import tracekit.source
from tracekit.reading import read
from tracekit.stepping import steps

SAMPLES = Path(__file__).parent.parent / "samples"
REAL = [p for p in sorted(SAMPLES.glob("*.log*")) if not p.name.endswith(".json")]
VLLM = (SAMPLES / "vllm_eager_tp2.log").read_bytes()
WORKER = (SAMPLES / "llama_rpc_worker0.log").read_bytes()


def faults(*logs: Path) -> set[str]:
    findings = read(list(logs)).findings.collect()
    return set(findings.filter(pl.col("severity").cast(pl.String) == "fault")["code"])


@pytest.mark.parametrize("log", REAL, ids=lambda p: p.name)
def test_real_logs_raise_no_fault(log: Path) -> None:
    assert faults(log) == set()


def test_workers_of_one_run_raise_no_fault() -> None:
    assert faults(*SAMPLES.glob("llama_rpc_*.log")) == set()


def lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def without(data: bytes, start: int, count: int) -> bytes:
    rows = lines(data)
    return b"".join(rows[:start] + rows[start + count :])


def twice(data: bytes, start: int, count: int) -> bytes:
    rows = lines(data)
    return b"".join(rows[: start + count] + rows[start:])


def other_summary(data: bytes) -> bytes:
    """Take the summary of another run of the same program."""
    other = (SAMPLES / "vllm_eager_tp2_unbuffered.log").read_bytes()
    mark = b"[vllm-xpu-timing-summary]"
    kept = [row for row in lines(data) if mark not in row]
    return b"".join(kept) + b"".join(row for row in lines(other) if row.startswith(mark))


def wrong_rank(data: bytes) -> bytes:
    rows = lines(data)
    for at in range(1000, 1040):
        rows[at] = rows[at].replace(b"rank=1 ", b"rank=0 ")
    return b"".join(rows)


def garbled(data: bytes) -> bytes:
    return data.replace(b" us=", b" uz=", 1)


def summary_counts_more(data: bytes) -> bytes:
    pattern = rb"(\[vllm-xpu-timing-summary\] rank=0 label=qwen3_moe.attn.rope count=)(\d+)"
    return re.sub(pattern, lambda m: m[1] + b"%d" % (int(m[2]) + 9), data)


VLLM_CASES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a dropped block": (lambda d: without(d, 500, 40), "lost-lines"),
    "a duplicated block": (lambda d: twice(d, 500, 40), "repeated-lines"),
    "a summary of another run": (other_summary, "summary-time-disagrees"),
    "a summary that counts more": (summary_counts_more, "summary-calls-disagree"),
    "two runs appended": (lambda d: d + d, "appended-runs"),
    "a wrong rank": (wrong_rank, "repeated-lines"),
    "a last line that is cut": (lambda d: d[: d.rindex(b" total_ms=")], "rejected"),
}
GGML_CASES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a dropped block": (lambda d: without(d, 5000, 40), "odd-step"),
    "a dropped block over two steps": (lambda d: without(d, 403 * 12 - 20, 40), "odd-step"),
    "a duplicated block": (lambda d: twice(d, 5000, 40), "odd-step"),
    "two runs appended": (lambda d: d + d, "appended-runs"),
    "cut at the end, within a step": (lambda d: without(d, 14_300, 208), "cut-step"),
    "cut at the beginning, within a step": (lambda d: without(d, 0, 200), "cut-step"),
    "a garbled line": (garbled, "rejected"),
}


@pytest.mark.parametrize(("corrupt", "fault"), VLLM_CASES.values(), ids=VLLM_CASES.keys())
def test_corrupted_region_logs(corrupt: Callable[[bytes], bytes], fault: str, tmp_path: Path) -> None:
    (tmp_path / "w.log").write_bytes(corrupt(VLLM))
    assert fault in faults(tmp_path / "w.log")


@pytest.mark.parametrize(("corrupt", "fault"), GGML_CASES.values(), ids=GGML_CASES.keys())
def test_corrupted_operation_logs(corrupt: Callable[[bytes], bytes], fault: str, tmp_path: Path) -> None:
    (tmp_path / "w.log").write_bytes(corrupt(WORKER))
    assert fault in faults(tmp_path / "w.log")


def test_a_worker_that_lacks_a_step(tmp_path: Path) -> None:
    (tmp_path / "w0.log").write_bytes(without(WORKER, 403 * 20, 403))
    (tmp_path / "w1.log").write_bytes((SAMPLES / "llama_rpc_worker1.log").read_bytes())
    assert faults(tmp_path / "w0.log") == set()  # alone, a whole step less is a step less
    assert faults(tmp_path / "w0.log", tmp_path / "w1.log") == {"steps-disagree"}


def test_a_truncated_archive(tmp_path: Path) -> None:
    (tmp_path / "w.log.gz").write_bytes(gzip.compress(WORKER)[:-2000])
    found = faults(tmp_path / "w.log.gz")
    assert "damaged-file" in found


def test_a_rank_that_stops_early(tmp_path: Path) -> None:
    rows = lines(VLLM)
    last = [at for at, row in enumerate(rows) if b"timing] rank=1" in row][-90:]
    (tmp_path / "w.log").write_bytes(b"".join(row for at, row in enumerate(rows) if at not in last))
    assert {"rank-falls-short", "summary-calls-disagree"} <= faults(tmp_path / "w.log")


def test_steps_phases_and_operations_per_step_are_what_ran() -> None:
    known = {
        "ik_gemma270m_cpu.log": ([16] + [1] * 16, 492),
        "llama_rpc_worker0.log": ([32] * 3 + [1] * 33, 403),
        "llama_rpc_worker1.log": ([32] * 3 + [1] * 33, 325),
        "llama_rpc_client.log": ([32] * 3 + [1] * 33, 2),
        "sycl_cpu_gemma270m.log.gz": ([6] + [1] * 16, 817),
    }
    for name, (widths, operations) in known.items():
        run = read(SAMPLES / name)
        sizes = run.events.group_by("step").agg(pl.len()).sort("step").collect()["len"]
        assert sizes.to_list() == [operations] * len(widths), name
        # A client whose passes hold nothing but embeddings still has steps.
        found = steps(run)
        assert found["tokens"].to_list() == widths, name
        assert found["phase"].cast(pl.String).to_list() == ["prefill" if w > 1 else "decode" for w in widths], name


def test_cut_logs_and_any_batches_give_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(SAMPLES / "llama_rpc_worker0.log").events.select("step", "tokens", "layer").collect()
    for rows, size in ((100, 1 << 12), (1000, 1 << 14), (5000, 1 << 16)):
        monkeypatch.setattr(tracekit.log, "_BATCH_ROWS", rows)
        monkeypatch.setattr(tracekit.source, "BLOCK_BYTES", size)
        assert read(SAMPLES / "llama_rpc_worker0.log").events.select("step", "tokens", "layer").collect().equals(whole)


def test_attention_without_a_name_gets_the_layer_of_its_neighbours() -> None:
    frame = read(SAMPLES / "llama_rpc_worker0.log").events.filter(pl.col("op") == "FLASH_ATTN_EXT").collect()
    assert frame["name"][0].startswith("__fattn__") or frame["layer_inferred"].all()
    assert frame["layer"].null_count() == 0
    unnamed = read(SAMPLES / "llama_rpc_worker0.log").events.filter("layer_inferred").collect()
    assert unnamed.height == 2160


def test_published_call_sites(tracekit: Callable[..., object]) -> None:
    done = tracekit("top", SAMPLES / "generated" / "c1_call_sites.log")
    assert "one call holds 84 % of the total" in done.stdout  # type: ignore[attr-defined]
    assert "without it the mean is 0.105890 ms" in done.stdout  # type: ignore[attr-defined]
    done = tracekit("budget", SAMPLES / "generated" / "c1_call_sites.log")
    assert re.search(r"collective +20\.2\d\d +20\.2", done.stdout)  # type: ignore[attr-defined]


def test_published_budget_of_four_workers(tracekit: Callable[..., object]) -> None:
    logs = SAMPLES / "generated" / "a_minimax_layer_kqv_offload"
    done = tracekit("budget", logs, "--tok-s", "3.802188", "--format", "json")
    found = json.loads(done.stdout)["budgets"][0]  # type: ignore[attr-defined]
    assert found["per_step_ns"] == 250_868_000
    assert round(found["implied_ns"] / 1e6, 3) == 263.006
    assert round(found["outside_ns"] / 1e6, 3) == 12.138
    done = tracekit("budget", logs, "--tok-s", "16.383602")
    assert "timed 250.9 ms, clean 61.0 ms: 4.1 times" in done.stdout  # type: ignore[attr-defined]


def test_the_solved_skip(tracekit: Callable[..., object]) -> None:
    done = tracekit("top", SAMPLES / "generated" / "c4_skip_first.log")
    assert "SKIP_FIRST=8" in done.stderr  # type: ignore[attr-defined]


def test_strict_exits_with_four(tracekit: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "w.log").write_bytes(garbled(WORKER))
    done = tracekit("top", tmp_path / "w.log", "--strict")
    assert done.returncode == 4  # type: ignore[attr-defined]
    assert "w.log:1" in done.stderr  # type: ignore[attr-defined]
    assert tracekit("top", SAMPLES / "llama_rpc_worker0.log", "--strict").returncode == 0  # type: ignore[attr-defined]


def test_a_last_line_without_its_end_is_told(tmp_path: Path) -> None:
    record = "[SYCL_OP_TIMING] dev=0 op=ADD name=a-0 ne=1x1x1x1 us=100\n"
    log = tmp_path / "cut.log"
    log.write_text(record * 2)
    assert "no-line-end" not in read(log).findings.collect()["code"].to_list()
    log.write_text((record * 2)[:-2])
    found = read(log).findings.collect().filter(pl.col("code") == "no-line-end")
    assert found.select("severity", "line").rows() == [("note", 2)]
