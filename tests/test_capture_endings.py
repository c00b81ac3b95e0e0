"""How runs end: by themselves, by signals, stalled, interrupted, killed from outside; and that nothing is left."""

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from tracekit import manifest
from tracekit.manifest import Manifest
from tracekit.stamps import read_stamps, sidecar

TALKER = Path(__file__).with_name("talker.py")
NAME = Path(sys.executable).name


class Started:
    """A `tracekit run` in the background, its output in files so that nobody has to read it."""

    def __init__(self, folder: Path, *options: str, act: tuple[object, ...]) -> None:
        self.folder = folder / "cap"
        self.errors = folder / "stderr"
        command = [sys.executable, "-m", "tracekit", "run", "-o", str(self.folder), *options]
        command += ["--", sys.executable, str(TALKER), *map(str, act)]
        with (folder / "stdout").open("wb") as out, self.errors.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)

    def until_printed(self, text: bytes, which: str = "stdout", name: str = NAME) -> bytes:
        log = self.folder / f"{name}.{which}.log"
        return until(lambda: data if log.exists() and text in (data := log.read_bytes()) else b"", f"{text!r} in {log}")

    def wait(self) -> int:
        return self.process.wait(timeout=60)

    def said(self) -> str:
        return self.errors.read_text()

    def manifest(self) -> Manifest:
        found = manifest.load(self.folder)
        assert found is not None
        return found


def until(ask: Callable[[], Any], what: str) -> Any:
    """Wait for something true."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"in vain: {what}")


def outcome(found: Manifest) -> manifest.Outcome:
    assert found.outcome is not None
    return found.outcome


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False
    return state != "Z"


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Started]]:
    """Give a list for what a test starts: killed at its end, however that comes."""
    found: list[Started] = []
    yield found
    for one in found:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def begin(started: list[Started], folder: Path, *options: str, act: tuple[object, ...]) -> Started:
    started.append(Started(folder, *options, act=act))
    return started[-1]


@pytest.mark.parametrize(
    "number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE, signal.SIGINT]
)
def test_death_by_a_signal_is_reported_as_a_shell_does(
    started: list[Started], tmp_path: Path, number: signal.Signals
) -> None:
    run = begin(started, tmp_path, act=("die", number.value))
    assert run.wait() == 128 + number
    end = outcome(run.manifest())
    assert end.name == "failed"
    assert f"was killed by {number.name}" in end.evidence
    assert "its last line: [SYCL_OP_TIMING] dev=0 op=MUL" in end.evidence
    assert run.manifest().processes[0].status == -number
    assert (run.folder / f"{NAME}.stderr.log").read_bytes() == b"[SYCL_OP_TIMING] dev=0 op=MUL"


def test_no_output_for_too_long_is_a_stall(started: list[Started], tmp_path: Path) -> None:
    # Long enough for an interpreter to start on a busy machine.
    run = begin(started, tmp_path, "--stall-after", "3s", act=("hang",))
    assert run.wait() == 128 + signal.SIGTERM
    end = outcome(run.manifest())
    assert end.name == "stalled"
    assert "--stall-after" in end.evidence
    assert "its last line: about to hang" in end.evidence
    assert run.manifest().processes[0].stopped_with == "SIGTERM"
    assert (run.folder / f"{NAME}.stdout.log").read_bytes() == b"about to hang\n"


def test_a_known_line_is_a_stall_when_it_came_often_enough(started: list[Started], tmp_path: Path) -> None:
    text = "No available shared memory broadcast block found"
    run = begin(started, tmp_path, act=("stall", text, 3))
    assert run.wait() == 128 + signal.SIGTERM
    end = outcome(run.manifest())
    assert end.name == "stalled"
    assert f"3 times 'ERROR 11-30 [x.py:1] {text}" in end.evidence
    assert (run.folder / f"{NAME}.stderr.log").read_bytes().count(text.encode()) == 3


def test_fewer_of_a_known_line_are_none(started: list[Started], tmp_path: Path) -> None:
    text = "No available shared memory broadcast block found"
    run = begin(started, tmp_path, "--stall-after", "1s", act=("stall", text, 2))
    run.wait()
    assert "--stall-after" in outcome(run.manifest()).evidence


def test_a_line_of_the_users_is_one_too(started: list[Started], tmp_path: Path) -> None:
    run = begin(started, tmp_path, "--stall-pattern", "strange thing:2", act=("stall", "strange thing", 2))
    run.wait()
    assert outcome(run.manifest()).name == "stalled"


def test_what_ignores_term_is_killed(started: list[Started], tmp_path: Path) -> None:
    run = begin(started, tmp_path, "--stall-pattern", "ignoring", "--grace", "2s", act=("stubborn",))
    assert run.wait() == 128 + signal.SIGKILL
    assert b"told 15" in (run.folder / f"{NAME}.stdout.log").read_bytes()
    assert run.manifest().processes[0].stopped_with == "SIGKILL"


def test_one_interrupt_ends_the_run_in_order(started: list[Started], tmp_path: Path) -> None:
    run = begin(started, tmp_path, act=("hang",))
    run.until_printed(b"about")
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 128 + signal.SIGINT
    found = run.manifest()
    assert outcome(found).name == "interrupted"
    assert found.processes[0].stopped_with == "SIGINT"
    assert found.ended is not None


def test_two_interrupts_end_it_at_once(started: list[Started], tmp_path: Path) -> None:
    run = begin(started, tmp_path, "--grace", "60s", act=("stubborn",))
    run.until_printed(b"ignoring")
    run.process.send_signal(signal.SIGINT)
    # The second counts as one of its own once the first was heard: the program is asked to end.
    run.until_printed(b"told 2\n")
    begun = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 128 + signal.SIGKILL
    assert time.monotonic() - begun < 50  # and not after the grace
    assert outcome(run.manifest()).name == "interrupted"


def family_of(printed: bytes) -> list[int]:
    return [int(line.split()[1]) for line in printed.splitlines()]


def test_what_a_program_leaves_behind_is_stopped(started: list[Started], tmp_path: Path) -> None:
    run = begin(started, tmp_path, "--grace", "500ms", act=("family", 300))
    assert run.wait() == 0
    left = family_of((run.folder / f"{NAME}.stdout.log").read_bytes())
    assert len(left) == 3
    assert not [pid for pid in left if alive(pid)]
    assert any("3 processes were left behind" in note for note in outcome(run.manifest()).notes)


def test_killing_tracekit_leaves_no_orphan_and_a_readable_capture(started: list[Started], tmp_path: Path) -> None:
    run = begin(started, tmp_path, "--grace", "2s", act=("family_and_wait", 300))
    family = family_of(run.until_printed(b"stubborn"))
    talker = until(lambda: run.manifest().processes[0].pid, "a pid in the manifest")
    run.process.kill()
    run.wait()
    until(lambda: not [pid for pid in (*family, talker) if alive(pid)], "no process left")
    found = until(lambda: m if (m := run.manifest()).outcome else None, "the outcome in the manifest")
    assert found.outcome.name == "interrupted"
    assert "tracekit itself was killed" in found.outcome.evidence
    assert found.processes[0].status == -signal.SIGTERM
    assert not (run.folder / ".reserve").exists()


def test_what_is_printed_after_tracekit_was_killed_is_kept(started: list[Started], tmp_path: Path) -> None:
    """The program goes on printing while it is told to end: the guard takes over in mid-stream."""
    run = begin(started, tmp_path, "--grace", "2s", act=("chatter",))
    run.until_printed(b"\n50 ")
    run.process.kill()
    killed_ns = time.monotonic_ns()
    run.wait()
    until(lambda: run.manifest().outcome, "the outcome in the manifest")
    log = run.folder / f"{NAME}.stdout.log"
    numbers, times = zip(*(map(int, line.split()) for line in log.read_bytes().splitlines()), strict=True)
    assert numbers == tuple(range(len(numbers)))
    assert times[-1] > killed_ns
    stamps = read_stamps(sidecar(log))
    assert (np.diff(stamps.byte_offset.astype(np.int64)) > 0).all()
    assert stamps.mono_ns[-1] >= times[-1]
    assert run.manifest().processes[0].status == -signal.SIGKILL


def test_a_compressed_capture_can_be_read_after_a_kill(started: list[Started], tmp_path: Path) -> None:
    run = begin(started, tmp_path, "--grace", "300ms", "--zstd", act=("chatter",))
    log = run.folder / f"{NAME}.stdout.log.zst"
    until(lambda: log.exists() and log.stat().st_size > 2000, "some frames")
    run.process.kill()
    run.wait()
    until(lambda: run.manifest().outcome, "the outcome in the manifest")
    packed = io.BytesIO(log.read_bytes())
    data = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True).read()
    numbers = [int(line.split()[0]) for line in data.splitlines()]
    assert len(numbers) > 50
    assert numbers == list(range(len(numbers)))


def test_killing_the_guard_leaves_no_orphan_either(started: list[Started], tmp_path: Path) -> None:
    run = begin(started, tmp_path, "--grace", "2s", act=("family_and_wait", 300))
    family = family_of(run.until_printed(b"stubborn"))
    talker = until(lambda: run.manifest().processes[0].pid, "a pid in the manifest")
    guard = int(Path(f"/proc/{talker}/stat").read_text().rpartition(") ")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert run.wait() == 125
    assert not [pid for pid in (*family, talker) if alive(pid)]
    end = outcome(run.manifest())
    assert end.name == "failed"
    assert "guard" in end.evidence


def test_a_full_disk_stops_the_capture_and_not_the_program(tmp_path: Path) -> None:
    """On a small file system: as a limit on the size of files where none can be mounted."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small tmpfs (root)")
    try:
        run = _flood_into(small, tmp_path)
        assert run.returncode == 0
        assert "the disk is full" in run.stderr
        assert "the program runs on" in run.stderr
        assert "the capture is not whole" in run.stderr
        found = manifest.load(small / "cap")
        assert found is not None
        assert outcome(found).name == "ok"
        assert not found.capture.complete
        assert not found.complete
        log = found.processes[0].logs[0]
        data = (small / "cap" / log.file).read_bytes()
        assert len(data) == log.bytes > 100_000
        whole = "".join(f"line {n:09d} {'x' * (n % 60)}\n" for n in range(200_000)).encode()
        assert whole.startswith(data)
        assert log.bytes + log.uncaptured_bytes == len(whole)
        assert run.stdout.encode() == whole
        shutil.rmtree(small / "cap")
        timed = _flood_into(small, tmp_path, "timed", "ggml", 100_000, "--preset", "ggml-sycl", "--no-check")
        assert timed.returncode == 0
        found = manifest.load(small / "timed")
        assert found is not None
        log = found.processes[0].logs[1]
        assert log.uncaptured_bytes > 0
        # What is counted is what the log holds.
        assert log.timing_lines == (small / "timed" / log.file).read_bytes().count(b"[SYCL_OP_TIMING]")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def _flood_into(
    small: Path, outside: Path, name: str = "cap", act: str = "flood", lines: int = 200_000, *options: str
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tracekit", "run", "-o", str(small / name), *options]
    command += ["--", sys.executable, str(TALKER), act, str(lines)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL, cwd=outside
    )


def refused(folder: Path, *arguments: str, user: int | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tracekit", "run", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        user=user,
    )


def test_a_directory_that_exists_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "cap").mkdir()
    (tmp_path / "cap" / "kept").write_text("old")
    done = refused(tmp_path, "-o", "cap", "--", "touch", "ran")
    assert done.returncode == 125
    assert done.stderr.startswith("tracekit: cap: exists already")
    assert len(done.stderr.splitlines()) == 1
    assert [p.name for p in (tmp_path / "cap").iterdir()] == ["kept"]
    assert not (tmp_path / "ran").exists()


def test_stamped_directories_are_made_side_by_side(tmp_path: Path) -> None:
    for _ in range(2):
        assert refused(tmp_path, "-o", "cap", "--stamp", "--", "true").returncode == 0
    assert len([p for p in (tmp_path / "cap").iterdir() if manifest.load(p)]) == 2


def test_a_read_only_place_is_said_in_one_sentence(tmp_path: Path) -> None:
    done = refused(tmp_path, "-o", "/proc/cap", "--", "touch", "ran")
    assert done.returncode == 125
    assert "/proc/cap: cannot be made" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("-o", "cap", "--", "no-such-program"), 125, "no program no-such-program on the PATH"),
        (("-o", "cap", "--cwd", "nowhere", "--", "true"), 125, "nowhere does not exist"),
        (("-o", "cap"), 2, "give the program to run"),
        (("--", "true"), 2, "-o DIR"),
        (("-o", "cap", "--preset", "nope", "--", "true"), 2, "unknown preset 'nope'"),
        (("-o", "cap", "--sync", "--", "true"), 2, "need a --preset"),
        (("-o", "cap", "--preset", "ggml-sycl", "--sync", "--", "true"), 2, "preset ggml-sycl has no --sync"),
        (("-o", "cap", "--preset", "ggml-sycl", "--", "true"), 125, "has no GGML_SYCL_OP_TIMING"),
        (("-o", "cap", "--env", "novalue", "--", "true"), 2, "expected K=V"),
        (("-o", "cap", "--stall-after", "0", "--", "true"), 2, "no duration above 0"),
        (("-o", "cap", "--name", "a/b", "--", "true"), 2, "cannot name a log file"),
        (("-o", "cap", "--workers", "2", "--", "true"), 2, "is for topologies"),
        (("-o", "cap", "--pair", "--", "true"), 2, "--pair needs a --preset"),
        (("-o", "cap", "--json", "--", "true"), 2, "--json goes with --list-presets"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_made(
    tmp_path: Path, arguments: tuple[str, ...], status: int, says: str
) -> None:
    done = refused(tmp_path, *arguments)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert not (tmp_path / "cap").exists()


def test_a_program_that_cannot_be_executed_is_blocked(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    done = refused(tmp_path, "-o", "cap", "--", "./broken")
    assert done.returncode == 125
    found = manifest.load(tmp_path / "cap")
    assert found is not None
    assert outcome(found).name == "blocked"
    assert "could not be executed" in outcome(found).evidence


def test_a_variable_without_lines_is_explained(tmp_path: Path) -> None:
    arguments = ("-o", "cap", "--preset", "ggml-sycl", "--no-check", "--", "sleep", "0.5")
    done = refused(tmp_path, *arguments)
    assert done.returncode == 0
    assert "GGML_SYCL_OP_TIMING was set, and no line with [SYCL_OP_TIMING] came" in done.stderr
    assert "none of the" in done.stderr
    assert "not instrumented" in done.stderr


def test_a_pair_is_clean_and_then_timed(tmp_path: Path) -> None:
    env = {**os.environ, "LLM_SCALER_MOE_TRACE_KERNELS": "0"}
    command = [sys.executable, "-m", "tracekit", "run", "--pair", "--preset", "ggml-sycl", "-o", str(tmp_path / "cap")]
    command += ["--", sys.executable, str(TALKER), "ggml", "7"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL, env=env
    )
    assert done.returncode == 0, done.stderr
    clean, timed = (manifest.load(tmp_path / "cap" / role) for role in ("clean", "timed"))
    assert clean is not None
    assert timed is not None
    assert (clean.timed, timed.timed) == (False, True)
    # What was inherited and would time (even at 0) is gone in the clean run.
    assert clean.processes[0].unset == ["LLM_SCALER_MOE_TRACE_KERNELS"]
    assert [log.timing_lines for log in timed.processes[0].logs] == [0, 7]
    assert (tmp_path / "cap" / "clean" / f"{NAME}.stderr.log").read_bytes() == b""
    assert '"role": "timed"' in (tmp_path / "cap" / "pair.json").read_text()


def test_timing_lines_in_a_clean_run_are_said(tmp_path: Path) -> None:
    program = ("sh", "-c", "echo '[SYCL_OP_TIMING] dev=0 op=MUL name=a ne=1x1x1x1 us=1' >&2")
    done = refused(tmp_path, "--pair", "--preset", "vllm-xpu", "-o", "cap", "--no-check", "--", *program)
    assert done.returncode == 0, done.stderr
    assert "sh: 1 timing lines came in the clean run, so it is not clean" in done.stderr
    found = manifest.load(tmp_path / "cap" / "clean")
    assert found is not None
    assert (found.timed, found.timing_lines) == (True, 1)


def test_lines_that_were_sent_elsewhere_on_purpose_are_no_riddle(tmp_path: Path) -> None:
    arguments = ("-o", "cap", "--preset", "ggml-sycl", "--env", "TRACEKIT_OP_TIMING_OUT=x.log", "--no-check")
    done = refused(tmp_path, *arguments, "--", "sleep", "0.1")
    assert "TRACEKIT_OP_TIMING_OUT=x.log is set: the lines went there" in done.stderr


def test_a_program_that_is_none_is_told_from_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    for program, says in (("./plain", "plain is not executable"), ("/tmp", "/tmp is a directory")):
        done = refused(tmp_path, "-o", "cap", "--", program)
        assert done.returncode == 125
        assert says in done.stderr


@pytest.mark.parametrize("pair", [(), ("--pair", "--preset", "vllm-xpu", "--no-check")])
def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path, pair: tuple[str, ...]) -> None:
    done = refused(tmp_path, *pair, "-o", "cap", "--stall-pattern", "x" * 300, "--", "true")
    assert done.returncode == 2
    assert "1 to 256 bytes" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_guard_that_does_not_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracekit import capture

    plan, settings = capture.single(["true"]), capture.Settings()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(capture.CaptureError, match="guard process could not be started"):
        capture.run(plan, tmp_path / "cap", settings)
    assert list(tmp_path.iterdir()) == []


def test_the_library_does_what_the_command_does_and_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tracekit import capture

    other = subprocess.Popen(["sleep", "100"])
    try:
        heard: list[str] = []
        plan = capture.single(["sh", "-c", "echo one; echo two >&2; exit 4"], "it")
        folder, found = capture.run(plan, tmp_path / "cap", capture.Settings(), notify=heard.append)
        assert (outcome(found).name, outcome(found).status) == ("failed", 4)
        assert manifest.load(folder) == found
        assert (folder / "it.stdout.log").read_text() == "one\n"
        assert (folder / "it.stderr.log").read_text() == "two\n"
        assert heard == []
        assert capfd.readouterr() == ("", "")
        # Other children of this process are none of its business, and its handlers are as they were.
        assert other.poll() is None
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        other.kill()
        other.wait()
