"""What is captured: every byte, in order, with stamps that rise; compressed, through terminals, in floods."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tracekit import manifest
from tracekit.stamps import read_stamps, sidecar

TALKER = Path(__file__).with_name("talker.py")

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Run]:
    """Run `tracekit run -o cap OPTIONS -- talker ACT` in a directory of its own."""

    def run(*act: object, options: tuple[str, ...] = (), **given: object) -> "subprocess.CompletedProcess[bytes]":
        command = [sys.executable, "-m", "tracekit", "run", "-o", str(tmp_path / "cap"), *options]
        command += ["--", sys.executable, str(TALKER), *map(str, act)]
        settings = {"capture_output": True, "timeout": 60, "check": False, "stdin": subprocess.DEVNULL}
        return subprocess.run(command, **(settings | given))  # type: ignore[call-overload,no-any-return]

    return run  # type: ignore[return-value]


def whole_manifest(folder: Path) -> manifest.Manifest:
    found = manifest.load(folder)
    assert found is not None
    return found


NAME = Path(sys.executable).name


def logs(folder: Path) -> tuple[bytes, bytes]:
    out, err = (folder / f"{NAME}.{which}.log" for which in ("stdout", "stderr"))
    return out.read_bytes(), err.read_bytes()


def test_each_dialect_is_captured_and_read_back(capture: Run, tmp_path: Path) -> None:
    done = capture("ggml", 500, options=("--preset", "ggml-sycl"))
    assert done.returncode == 0, done.stderr
    out, err = logs(tmp_path / "cap")
    assert out == b"done 500\n"
    assert err == b"".join(
        b"[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Qcur-%d ne=1024x1x1x1 us=%d\n" % (n % 8, n) for n in range(500)
    )
    assert done.stdout == out
    assert err in done.stderr
    found = whole_manifest(tmp_path / "cap")
    assert found.timed
    assert found.topology == "pipeline"
    assert [log.timing_lines for log in found.processes[0].logs] == [0, 500]
    assert found.workers == {f"{NAME}.stdout.log": NAME, f"{NAME}.stderr.log": NAME}
    assert b"diagnostic: not throughput" in done.stderr
    top = subprocess.run(
        [sys.executable, "-m", "tracekit", "top", str(tmp_path / "cap"), "--format", "json"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert top.returncode == 0, top.stderr
    assert b"MUL_MAT" in top.stdout


def test_torn_lines_of_two_processes_are_kept_as_they_came(capture: Run, tmp_path: Path) -> None:
    done = capture("scaler", 300, options=("--preset", "llm-scaler"))
    assert done.returncode == 0, done.stderr
    _, err = logs(tmp_path / "cap")
    line = '[llm-scaler][moe-kernel] device=0 kernel="moe ws up routed cutlass int4" wait_ms={}\n'
    printed = "".join(line.format(n) for n in range(300)).encode()
    assert sorted(err) == sorted(2 * printed)
    (process,) = whole_manifest(tmp_path / "cap").processes
    assert process.logs[1].bytes == len(err)
    assert process.logs[1].lines == 600


def test_options_of_the_dialect_reach_the_program(capture: Run, tmp_path: Path) -> None:
    given = ("--preset", "vllm-xpu", "--sync", "--print-every", "8", "--skip-first", "3", "--rank", "1")
    done = capture("vllm", 5, options=given)
    assert done.returncode == 0, done.stderr
    out, err = logs(tmp_path / "cap")
    assert out.count(b"[vllm-xpu-timing] rank=0") == 5
    assert dict(line.split("=") for line in err.decode().split()) == {
        "VLLM_XPU_DECODE_TIMING": "1",
        "VLLM_XPU_DECODE_TIMING_SUMMARY": "1",
        "VLLM_XPU_DECODE_TIMING_SYNC": "1",
        "VLLM_XPU_DECODE_TIMING_PRINT_EVERY": "8",
        "VLLM_XPU_DECODE_TIMING_SKIP_FIRST": "3",
        "VLLM_XPU_DECODE_TIMING_RANK": "1",
    }


def test_the_user_has_the_last_word_on_variables(capture: Run, tmp_path: Path) -> None:
    env = {**os.environ, "VLLM_XPU_INHERITED": "x", "VLLM_XPU_KEY": "s3cret"}
    given = ("--preset", "vllm-xpu", "--env", "VLLM_XPU_DECODE_TIMING=0", "--unset", "VLLM_XPU_INHERITED")
    done = capture("vllm", 1, options=given, env=env)
    assert done.returncode == 0, done.stderr
    _, err = logs(tmp_path / "cap")
    assert b"VLLM_XPU_DECODE_TIMING=0\n" in err
    assert b"INHERITED" not in err
    found = whole_manifest(tmp_path / "cap")
    assert found.processes[0].unset == ["VLLM_XPU_INHERITED"]
    assert not found.timed
    assert found.processes[0].env["VLLM_XPU_KEY"] == "(withheld)"
    assert "s3cret" not in (tmp_path / "cap" / "manifest.json").read_text()


def test_arrival_stamps_are_when_lines_were_written(capture: Run, tmp_path: Path) -> None:
    done = capture("slow", 20, 20)
    assert done.returncode == 0
    log = tmp_path / "cap" / f"{NAME}.stdout.log"
    data = log.read_bytes()
    stamps = read_stamps(sidecar(log))
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")).astype(np.uint64)
    written = np.array([int(line) for line in data.split()])
    late_ns = stamps.arrival_ns(ends) - written
    assert late_ns.min() >= 0
    # Lines 20 ms apart are told apart; of a busy machine only that it does not take all of them at once.
    assert len(np.unique(stamps.arrival_ns(ends))) > 3
    anchor = stamps.anchor
    assert abs(anchor.wall(time.monotonic_ns()) - time.time_ns()) < 5e9
    assert anchor.error_ns < 1e8


def test_a_flood_of_a_million_lines_loses_none(capture: Run, tmp_path: Path) -> None:
    done = capture("flood", 1_000_000, options=("--show", "none"))
    assert done.returncode == 0, done.stderr
    log = tmp_path / "cap" / f"{NAME}.stdout.log"
    data = log.read_bytes()
    lines = data.splitlines()
    assert len(lines) == 1_000_000
    assert all(line[5:14] == b"%09d" % n and len(line) == 15 + n % 60 for n, line in enumerate(lines))
    check_stamps(log, len(data))


def check_stamps(log: Path, size: int) -> None:
    stamps = read_stamps(sidecar(log))
    assert stamps.byte_offset[0] == 0
    assert (np.diff(stamps.byte_offset.astype(np.int64)) > 0).all()
    assert (np.diff(stamps.mono_ns) >= 0).all()
    assert stamps.byte_offset[-1] < size


def test_compressed_logs_hold_the_same(capture: Run, tmp_path: Path) -> None:
    done = capture("flood", 100_000, options=("--show", "none", "--zstd"))
    assert done.returncode == 0, done.stderr
    log = tmp_path / "cap" / f"{NAME}.stdout.log.zst"
    packed = io.BytesIO(log.read_bytes())
    data = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()
    lines = data.splitlines()
    assert len(lines) == 100_000
    assert all(line[5:14] == b"%09d" % n for n, line in enumerate(lines))
    check_stamps(log, len(data))
    assert whole_manifest(tmp_path / "cap").processes[0].logs[0].bytes == len(data)


def test_a_terminal_passes_every_byte_as_it_is(capture: Run, tmp_path: Path) -> None:
    assert capture("is_terminal", options=("--tty",)).returncode == 0
    out, _ = logs(tmp_path / "cap")
    assert out == b"True True False\n" + bytes(range(1, 256)) + b"\n\r\n"


def test_without_a_terminal_there_is_none(capture: Run, tmp_path: Path) -> None:
    assert capture("is_terminal").returncode == 0
    assert logs(tmp_path / "cap")[0].startswith(b"False False False\n")


def test_input_is_passed_on(capture: Run, tmp_path: Path) -> None:
    given = b"a prompt\n" * 1000
    done = capture("echo", stdin=None, input=given)
    assert done.returncode == 0
    assert logs(tmp_path / "cap")[0] == given


def test_a_reader_that_goes_away_stops_the_showing_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tracekit", "run", "-o", str(tmp_path / "cap"), "--"]
    command += [sys.executable, str(TALKER), "flood", "50000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert len(logs(tmp_path / "cap")[0].splitlines()) == 50_000


def test_a_reader_that_takes_nothing_does_not_hold_the_program_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.capture import display

    monkeypatch.setattr(display, "PIPE_BYTES", 100_000)
    monkeypatch.setattr(display, "PATIENCE_S", 0.2)
    read, write = os.pipe()
    shown = display.Display(write, write)
    shown.start()
    for _ in range(1000):
        shown.put(write, b"x" * 1000)
    shown.finish()
    assert shown.closed
    assert shown.dropped_bytes > 800_000
    os.close(read)
    os.close(write)


def test_what_tracekit_says_does_not_stand_behind_an_open_line(capture: Run) -> None:
    assert b"op=MUL\ntracekit: failed" in capture("die", 9).stderr


def test_closed_descriptors_are_not_taken_by_logs(tmp_path: Path) -> None:
    script = f"exec {sys.executable} -m tracekit run -o {tmp_path}/cap -- {sys.executable} {TALKER} ggml 5 <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", script], timeout=60, check=False)
    assert done.returncode == 0
    assert logs(tmp_path / "cap") == (b"done 5\n", b"")


def test_the_manifest_is_json_that_loads_back(capture: Run, tmp_path: Path) -> None:
    assert capture("slow", 3, 150, "--api-key", "hidden").returncode == 1  # too many arguments: a traceback
    text = (tmp_path / "cap" / "manifest.json").read_text()
    assert "hidden" not in text
    content = json.loads(text)
    assert content["schema"] == "tracekit-capture"
    assert content["version"] == 1
    found = whole_manifest(tmp_path / "cap")
    assert found.outcome is not None
    assert found.outcome.name == "failed"
    assert "TypeError" in found.outcome.evidence
    (process,) = found.processes
    assert process.status == 1
    assert found.host["cpus"] == os.cpu_count()
    python = str(Path(sys.executable).resolve())
    if process.mapped:  # it may end before it is looked at
        assert python in process.mapped
        row = next(b for b in found.binaries if b["path"] == python)
        assert row["size"] == Path(python).stat().st_size
        assert len(row["sha256"]) == 64
