"""Bad input and bad places: one clear sentence and the promised exit code, no traceback, no half-written file."""

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from plain_count import MARKERS, count_text

import tracekit as tk
from tracekit import source

ROOT = Path(__file__).parent.parent
LINE = "[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=Qcur-0 ne=1024x1x1x1 us=97"
MINE = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}

#: Known and not mended yet; strict, so that whoever mends them is told to take the mark away.

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rpc-b70-0.log"
    path.write_text(f"{LINE}\n" * 3)
    return path


def only_row(done: Done) -> dict[str, Any]:
    """The one row of a JSON table."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (table,) = json.loads(done.stdout)["tables"]
    (row,) = table["rows"]
    return dict(row)


def refused(done: Done, code: int, *words: str) -> None:
    """One sentence with these words on standard error, nothing on standard output, this exit code."""
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("tracekit: ")
    assert len(done.stderr.splitlines()) == 1
    for word in words:
        assert word in done.stderr


# ------------------------------------------------------------------------------- bytes that logs are not made of


ODD_BYTES: dict[str, tuple[str | bytes, int]] = {
    "CRLF": (f"{LINE}\r\n{LINE}\r\n", 2),
    "no last newline": (f"{LINE}\n{LINE}", 2),
    "carriage returns of a progress bar": (f"\r10%\r{LINE}\r{LINE}\r", 2),
    "NUL bytes": (f"{LINE}\0\n\0{LINE}\n", 2),
    "invalid UTF-8": (b"\xff\xfe" + LINE.encode() + b"\xff\n\xc3\x28\n" + LINE.encode(), 2),
    "byte order mark": (b"\xef\xbb\xbf" + LINE.encode() + b"\n", 1),
    "colours": (f"\x1b[36m(Worker_TP0 pid=9)\x1b[0m {LINE}\x1b[0m\n", 1),
    "10 MB before a record": ("x" * 10_000_000 + LINE + "\n" + LINE, 2),
    "10 MB behind a record": (LINE + " " + "y" * 10_000_000 + "\n" + LINE, 2),
    "a name of 10 MB": (LINE.replace("Qcur-0", "n" * 10_000_000) + "\n" + LINE, 2),
    "a thousand records on one line": (LINE * 1000, 1000),
    "a million empty lines": ("\n" * 1_000_000 + LINE, 1),
}


def test_odd_bytes_are_survived(tracekit: Command, tmp_path: Path) -> None:
    for name, (data, _) in ODD_BYTES.items():
        (tmp_path / f"{name}.log").write_bytes(data if isinstance(data, bytes) else data.encode())

    done = tracekit("top", ".", "--by", "worker", "--format", "json", cwd=tmp_path)

    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert len(done.stderr) < 10_000  # a message quotes only a little of a long line
    (table,) = json.loads(done.stdout)["tables"]
    found = {row["worker"]: (row["calls"], row["total_ns"]) for row in table["rows"]}
    assert found == {name: (calls, calls * 97_000) for name, (_, calls) in ODD_BYTES.items()}


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(gzip.compress, id="gz"),
        pytest.param(zstandard.ZstdCompressor().compress, id="zst"),
    ],
)
def test_a_truncated_packed_log_gives_what_it_still_holds(
    tracekit: Command, tmp_path: Path, pack: Callable[[bytes], bytes], request: pytest.FixtureRequest
) -> None:
    noise = "".join(f"{LINE.replace('97', str(i * 7919 % 90001))}\n" for i in range(60_000))
    packed = pack(noise.encode())
    log = tmp_path / f"w.log.{request.node.callspec.id}"
    log.write_bytes(packed[: len(packed) * 2 // 3])

    done = tracekit("top", log, "--format", "json")
    strict = tracekit("top", log, "--format", "json", "--strict")

    assert 10_000 < only_row(done)["calls"] < 60_000
    assert "damaged or cut" in done.stderr
    assert (strict.returncode, "Traceback" in strict.stderr) == (4, False)


def test_a_cut_last_line_is_a_reject_with_its_place(tracekit: Command, tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    log.write_text(f"{LINE}\n{LINE}\n{LINE[:40]}")

    done = tracekit("top", log, "--format", "json")

    coverage = json.loads(done.stdout)["coverage"]
    assert only_row(done)["calls"] == 2
    assert coverage["streams"][0]["rejected"] == 1
    assert "w.log:3" in done.stderr


# ------------------------------------------------------------------------------- nothing to read


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\n", id="an empty line"),
        pytest.param(bytes(range(256)) * 400, id="binary"),
        pytest.param(b"\x7fELF" + os.urandom(100_000).replace(b"[", b""), id="a program"),
        pytest.param(b"INFO 05-09 01:20:03 [loader.py:447] nothing timed\n" * 50, id="no recognised line"),
    ],
)
def test_nothing_recognised(tracekit: Command, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "w.log").write_bytes(data)

    done = tracekit("top", "w.log", cwd=tmp_path)

    refused(done, 3, "w.log", "[SYCL_OP_TIMING]", "[vllm-xpu-timing]", "tracekit formats")


@pytest.mark.parametrize("command", ["layers", "steps", "events", "convert"])
def test_nothing_recognised_leaves_no_output(tracekit: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "w.log").write_bytes(bytes(range(256)) * 400)

    done = tracekit(command, "w.log", "-o", "out", cwd=tmp_path)

    refused(done, 3, "w.log", "[SYCL_OP_TIMING]")
    assert [p.name for p in tmp_path.iterdir()] == ["w.log"]


@pytest.mark.parametrize("name", ["w.log.gz", "w.log.zst"])
def test_a_file_that_is_not_packed_as_it_says(tracekit: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f"{LINE}\n")

    refused(tracekit("top", name, cwd=tmp_path), 3, name)


def test_a_directory_without_logs(tracekit: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(LINE)

    refused(tracekit("top", tmp_path), 3, str(tmp_path), "no log in this directory", ".log")


def test_no_such_file(tracekit: Command, tmp_path: Path) -> None:
    refused(tracekit("top", "gone.log", cwd=tmp_path), 2, "gone.log: no such file", "check the path")


def test_a_pattern_that_matches_nothing(tracekit: Command, tmp_path: Path) -> None:
    refused(tracekit("top", "rpc-*.log", cwd=tmp_path), 2, "rpc-*.log: no file matches")


def test_a_good_log_beside_a_missing_one(tracekit: Command, log: Path) -> None:
    refused(tracekit("top", log, log.with_name("gone.log")), 2, "gone.log")


def test_a_parquet_file_that_is_none(tracekit: Command, tmp_path: Path) -> None:
    (tmp_path / "events.parquet").write_text("not parquet")

    refused(tracekit("top", "events.parquet", cwd=tmp_path), 2, "events.parquet")


def test_a_parquet_file_of_something_else(tracekit: Command, tmp_path: Path) -> None:
    pl.DataFrame({"city": ["Santa Clara"]}).write_parquet(tmp_path / "cities.parquet")

    refused(tracekit("top", "cities.parquet", cwd=tmp_path), 2, "cities.parquet")


# ------------------------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--by", "kernels"], ["'kernels'", "category"]),
        (["--by", ","], ["nothing to group by"]),
        (["--sort", "size"], ["'size'", "p95"]),
        (["--where", "worker"], ["COLUMN=VALUE"]),
        (["--where", "city=Paris"], ["'city'", "worker"]),
        (["--worker", "gpu0"], ["NAME=PATH"]),
        (["--worker", "gpu0=other.log"], ["other.log"]),
    ],
    ids=" ".join,
)
def test_wrong_options_say_what_there_is(tracekit: Command, log: Path, options: list[str], words: list[str]) -> None:
    refused(tracekit("top", log, *options), 2, *words)


@pytest.mark.parametrize("args", [["top"], ["top", "--format", "xml", "w.log"], ["tpo"]], ids=" ".join)
def test_wrong_command_lines(tracekit: Command, args: list[str]) -> None:
    done = tracekit(*args)

    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------- outputs that cannot be written


def test_an_output_in_no_directory(tracekit: Command, log: Path) -> None:
    refused(tracekit("top", log, "-o", log.parent / "gone" / "top.json"), 1, "top.json: cannot be written")


def test_an_output_that_is_a_directory(tracekit: Command, log: Path) -> None:
    (log.parent / "out").mkdir()

    refused(tracekit("top", log, "-o", log.parent / "out"), 1, "is a directory")
    assert list((log.parent / "out").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_that_may_not_be_written(tracekit: Command, log: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)

    refused(tracekit("top", log, "-o", closed / "top.json"), 1, "cannot be written")


def little_space() -> None:
    """Let the process write no file larger than 4 kB, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["top", "--by", "name,shape", "--format", "json"], id="top"),
        pytest.param(["events", "--format", "csv"], id="events csv"),
        pytest.param(["events"], id="events parquet"),
        pytest.param(["convert"], id="convert"),
    ],
)
def test_a_full_disk_leaves_the_old_output_whole(samples: Path, tmp_path: Path, command: list[str]) -> None:
    target = tmp_path / "out"
    target.write_text("what was there before")

    done = subprocess.run(
        [sys.executable, "-m", "tracekit", *command, samples / "llama_rpc_worker0.log", "-o", target],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=MINE,
        preexec_fn=little_space,
    )

    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "cannot be written" in done.stderr
    assert target.read_text() == "what was there before"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def through(pipeline: str, *args: Path) -> Done:
    """Run a shell pipeline in which ``$T`` is the command; its status is that of the command."""
    return subprocess.run(
        ["bash", "-c", f'T="{sys.executable} -m tracekit"; {pipeline}; exit ${{PIPESTATUS[0]}}', "bash", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=MINE,
    )


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_reader_that_has_seen_enough(samples: Path, form: str) -> None:
    done = through(f'$T events --format {form} -o - "$1" | head -n 1', samples / "llama_rpc_worker0.log")

    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0: the pipe took the rest before its reader left


@pytest.mark.parametrize("command", ["top", "layers", "events -o -", "events --format csv -o -", "formats --json"])
def test_a_reader_that_is_gone(log: Path, command: str) -> None:
    done = through(f"$T {command} {'' if 'formats' in command else log} | true")

    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["top", "events -o -", "events --format csv -o -"])
def test_a_full_standard_output(log: Path, command: str) -> None:
    done = through(f'$T {command} "$1" > /dev/full', log)

    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "No space left" in done.stderr


def test_interrupted(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tracekit", "events", "-", "-o", tmp_path / "out.parquet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**MINE, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{LINE}\n".encode() * 10_000)
        process.stdin.flush()
        deadline = time.monotonic() + 30
        while not any(tmp_path.iterdir()):  # it has begun to keep what comes
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err.strip()) == (130, b"", b"")  # a bare line end, after ^C
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------- whatever the bytes

PIECES = st.one_of(
    st.sampled_from(
        [
            b"[SYCL_OP_TIMING]",
            b"[llm-scaler][moe-kernel]",
            b"[vllm-xpu-timing]",
            b"[vllm-xpu-timing-summary]",
            LINE.encode(),
            b'[llm-scaler][moe-kernel] device=0 kernel="moe down" wait_ms=0.5',
            b"[vllm-xpu-timing] rank=0 label=a b count=1 last_ms=0.500000",
            b"[vllm-xpu-timing-summary] rank=0 label=a b count=1 total_ms=0.500000 avg_ms=0.500000 max_ms=0.500000",
            b"[vllm-xpu-timing-summary] begin",
            b" dev=0 op=",
            b" name= ne=1x1x1x1 us=",
            b" us=99999999999999999999999",
            b" wait_ms=1e400",
            b" wait_ms=nan",
            b" count=-1 last_ms=0.000000",
            b"(Worker_TP0 pid=12) ",
            b"\x1b[1;36m",
            b"\r",
            b"\n",
            b"\r\n",
            b"\0",
            b"\xff\xfe",
            "µ𝄞".encode(),
            b"9" * 30,
        ]
    ),
    st.binary(max_size=12),
)
BYTES = st.lists(PIECES, max_size=24).map(b"".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bytes")


def read_all(folder: Path, data: bytes, block: int) -> tuple[pl.DataFrame, ...]:
    """Read bytes as a log, cut into blocks of this size."""
    path = folder / "w.log"
    path.write_bytes(data)
    usual = source.BLOCK_BYTES
    source.BLOCK_BYTES = block
    try:
        run = tk.read(path)
        return tuple(frame.collect() for frame in (run.events, run.summaries, run.rejects, run.coverage))
    finally:
        source.BLOCK_BYTES = usual


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BYTES)
@example(b"[SYCL_OP_TIMING] dev=0 op=A name= ne=1x1x1x1 us=99999999999999999999")
@example(b'[llm-scaler][moe-kernel] device=0 kernel="a" wait_ms=1e400')
def test_arbitrary_bytes_never_raise_and_every_marker_is_accounted_for(folder: Path, data: bytes) -> None:
    _, _, rejects, coverage = read_all(folder, data, 1 << 20)

    told = sum(int(coverage[c].sum()) for c in ("records", "rejected", "quoted", "frame_lines"))
    recovered = int(coverage["recovered"].sum())
    assert told - recovered <= len(MARKERS.findall(data.decode("utf-8", "replace"))) <= told
    assert rejects.height == coverage["rejected"].sum()
    assert all(len(text) <= 80 for text in rejects["text"])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BYTES, st.integers(1, 200))
def test_where_blocks_are_cut_does_not_matter(folder: Path, data: bytes, block: int) -> None:
    whole = read_all(folder, data, 1 << 20)
    cut = read_all(folder, data, block)

    for one, other in zip(whole, cut, strict=True):
        # Categoricals of two readings are compared by their text.
        assert other.cast({pl.Categorical: pl.String}).equals(one.cast({pl.Categorical: pl.String}))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BYTES, BYTES)
def test_a_whole_line_survives_any_neighbours(folder: Path, before: bytes, after: bytes) -> None:
    line = "[SYCL_OP_TIMING] dev=3 op=ROPE name=the one ne=7x1x1x1 us=12345"
    events, *_ = read_all(folder, b"\n".join([before, line.encode(), after]), 1 << 20)

    place = (before + b"\n").replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n") + 1
    found = events.filter(pl.col("name").cast(pl.String) == "the one")
    assert found.select("line", "op", "device", "shape", "dur_ns").rows() == [(place, "ROPE", 3, "7x1x1x1", 12_345_000)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BYTES)
def test_no_event_is_invented(folder: Path, data: bytes) -> None:
    """Whatever is read as a ggml or vLLM event, a plain regular expression finds too."""
    events, *_ = read_all(folder, data, 1 << 20)

    plain = count_text(data.decode("utf-8", "replace"))
    allowed = {(label.op, ns) for label, times in plain.durations.items() for ns in times}
    found = events.filter(pl.col("dialect").cast(pl.String) != "llm-scaler").select("op", "dur_ns")
    assert set(found.rows()) <= allowed
