"""Several processes: order, readiness, ends; the shipped topologies with stand-ins for the engines' programs."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracekit import manifest
from tracekit.capture.spec import read_spec, shipped
from tracekit.errors import UsageError

TALKER = Path(__file__).with_name("talker.py")


def free_ports(count: int) -> int:
    """Return the first of some neighbouring ports that are free now."""
    for first in range(20_000 + os.getpid() % 10_000, 60_000, 7):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Give a directory with programs named as llama.cpp's, which talk as those do."""
    bench = tmp_path / "bin"
    bench.mkdir()
    python = sys.executable
    (bench / "rpc-server").write_text(f'#!/bin/sh\nexec {python} {TALKER} serve "$4"\n')
    (bench / "llama-bench").write_text(f'#!/bin/sh\nexec {python} {TALKER} client "$5" "$1"\n')
    for program in bench.iterdir():
        program.chmod(0o755)
    return bench


def run(folder: Path, *arguments: str, **given: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tracekit", "run", "-o", str(folder / "cap"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL, **given
    )


def loaded(folder: Path) -> manifest.Manifest:
    found = manifest.load(folder / "cap")
    assert found is not None
    return found


def outcome(folder: Path) -> manifest.Outcome:
    found = loaded(folder).outcome
    assert found is not None
    return found


def rpc(bench: Path, port: int, *more: str, seconds: str = "0.3") -> tuple[str, ...]:
    options = ("--preset", "ggml-rpc", "--workers", "2", "--model", "m.gguf", "--set", f"port={port}", *more)
    return (*options, "--", str(bench / "llama-bench"), seconds)


def test_rpc_workers_are_timed_and_their_client_is_not(bench: Path, tmp_path: Path) -> None:
    port = free_ports(2)
    done = run(tmp_path, *rpc(bench, port))
    assert done.returncode == 0, done.stderr
    assert done.stdout == '[{"avg_ts": 1.0}]\n'
    found = loaded(tmp_path)
    assert outcome(tmp_path).name == "ok"
    assert found.topology == "pipeline"
    assert [(p.name, p.timed, p.index) for p in found.processes] == [
        ("rpc-0", True, 0),
        ("rpc-1", True, 1),
        ("client", False, None),
    ]
    for index, process in enumerate(found.processes[:2]):
        assert process.env["ONEAPI_DEVICE_SELECTOR"] == f"level_zero:{index}"
        assert process.env["GGML_SYCL_OP_TIMING"] == "1"
        assert process.argv[-1] == str(port + index)
        assert process.stopped_with == "SIGTERM"
        assert process.ready_mono_ns is not None
        assert process.started_mono_ns is not None
        assert process.ready_mono_ns < (found.processes[2].started_mono_ns or 0)
        # One connection, the client's own: readiness costs none.
        log = tmp_path / "cap" / f"rpc-{index}.stdout.log"
        assert log.read_text().count("Accepted client connection") == 1
        assert process.logs[1].timing_lines == 3
    assert "GGML_SYCL_OP_TIMING" not in found.processes[2].env
    assert found.processes[2].argv[1:] == [
        "0.3", "-m", "m.gguf", "--rpc", f"127.0.0.1:{port},127.0.0.1:{port + 1}",
    ]  # fmt: skip


def test_a_taken_port_is_said_before_anything_starts(bench: Path, tmp_path: Path) -> None:
    port = free_ports(2)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port + 1))
        holder.listen()
        done = run(tmp_path, *rpc(bench, port))
    assert done.returncode == 125
    assert f"rpc-1: port {port + 1} is already in use by" in done.stderr
    assert f"pid {os.getpid()}" in done.stderr
    assert not (tmp_path / "cap").exists()


def spec(folder: Path, text: str) -> Path:
    path = folder / "spec.toml"
    path.write_text(text.replace("TALK", f'"{sys.executable}", "{TALKER}"'))
    return path


def test_a_worker_that_leaves_with_0_before_it_is_ready_is_a_failure_said_at_once(tmp_path: Path) -> None:
    """The port is taken where the check before cannot see it: by the first worker."""
    port = free_ports(1)
    path = spec(
        tmp_path,
        f"""
        [[process]]
        name = "rpc-0"
        command = [TALK, "serve", "{port}"]
        ready = {{ port = {port} }}
        [[process]]
        name = "rpc-1"
        after = ["rpc-0"]
        command = [TALK, "serve", "{port}"]
        ready = {{ line = "never", timeout_s = 50 }}
        [[process]]
        name = "client"
        after = ["rpc-1"]
        command = [TALK, "client", "127.0.0.1:{port}", "1"]
        """,
    )
    begun = time.monotonic()
    done = run(tmp_path, str(path))
    assert time.monotonic() - begun < 45
    assert done.returncode == 125
    end = outcome(tmp_path)
    assert end.name == "failed"
    assert "rpc-1 ended with status 0 before it was ready" in end.evidence
    assert "Failed to create server socket" in end.evidence
    assert loaded(tmp_path).processes[0].stopped_with == "SIGTERM"
    assert loaded(tmp_path).processes[2].pid is None


def test_a_port_that_another_process_holds_is_not_readiness(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        path = spec(
            tmp_path,
            f"""
            [[process]]
            name = "a"
            command = [TALK, "hang"]
            ready = {{ port = {port} }}
            """,
        )
        done = run(tmp_path, str(path))
    assert f"port {port} is held by" in outcome(tmp_path).evidence
    assert done.returncode == 128 + signal.SIGTERM


def test_a_client_that_fails_leaves_no_worker(bench: Path, tmp_path: Path) -> None:
    port = free_ports(2)
    (bench / "llama-bench").write_text("#!/bin/sh\necho GGML_ASSERT failed >&2\nkill -ABRT $$\n")
    done = run(tmp_path, *rpc(bench, port))
    assert done.returncode == 134
    end = outcome(tmp_path)
    assert end.name == "failed"
    assert "client was killed by SIGABRT; its last line: GGML_ASSERT failed" in end.evidence
    for process in loaded(tmp_path).processes:
        assert process.pid is not None
        assert not Path(f"/proc/{process.pid}").exists()


def test_a_worker_that_is_killed_fails_the_run(bench: Path, tmp_path: Path) -> None:
    port = free_ports(2)
    command = [sys.executable, "-m", "tracekit", "run", "-o", str(tmp_path / "cap"), "--grace", "3s"]
    with (tmp_path / "err").open("wb") as err:
        tracekit = subprocess.Popen(
            [*command, *rpc(bench, port, seconds="300")], stdin=subprocess.DEVNULL, stdout=err, stderr=err
        )
    try:
        log = tmp_path / "cap" / "rpc-1.stdout.log"
        wait_for(lambda: log.read_text() if log.exists() else None, lambda text: "Accepted" in text)
        worker = wait_for(lambda: manifest.load(tmp_path / "cap"), lambda m: m.processes[1].pid).processes[1]
        os.kill(worker.pid, signal.SIGKILL)
        assert tracekit.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        tracekit.kill()
        tracekit.wait()
    end = outcome(tmp_path)
    assert end.name == "failed"
    assert "rpc-1 was killed by SIGKILL while the run was on; its last line" in end.evidence
    assert loaded(tmp_path).processes[0].stopped_with == "SIGTERM"


def wait_for(ask: Callable[[], Any], good: Callable[[Any], Any]) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (answer := ask()) is not None and good(answer):
            return answer
        time.sleep(0.02)
    raise AssertionError("in vain")


@pytest.mark.parametrize("ready", ['line = "^about to"', "after_s = 0.2"])
def test_other_ways_to_be_ready(tmp_path: Path, ready: str) -> None:
    path = spec(
        tmp_path,
        f"""
        topology = "parallel"
        end = "second"
        [[process]]
        name = "second"
        after = ["first"]
        command = [TALK, "slow", "1", "1"]
        [[process]]
        name = "first"
        command = [TALK, "hang"]
        ready = {{ {ready} }}
        stop = "INT"
        """,
    )
    done = run(tmp_path, str(path), "--show", "all")
    assert done.returncode == 0, done.stderr
    found = loaded(tmp_path)
    first, second = found.processes
    assert (first.name, first.stopped_with) == ("first", "SIGINT")
    assert first.ready_mono_ns is not None
    assert second.started_mono_ns is not None
    assert first.ready_mono_ns <= second.started_mono_ns
    assert "[first] about to hang" in done.stderr
    assert "about to hang" not in done.stdout
    assert found.topology == "parallel"


def test_readiness_that_does_not_come_blocks_the_run(tmp_path: Path) -> None:
    path = spec(
        tmp_path,
        """
        [[process]]
        name = "first"
        command = [TALK, "hang"]
        ready = { line = "never said", timeout_s = 0.4 }
        [[process]]
        name = "second"
        after = ["first"]
        command = [TALK, "hang"]
        """,
    )
    assert run(tmp_path, str(path)).returncode == 125
    end = outcome(tmp_path)
    assert end.name == "blocked"
    assert "first was not ready after 0.4 s: it printed no line that matches 'never said'" in end.evidence
    assert end.evidence.endswith("its last line: about to hang")


def test_a_connection_as_readiness_is_made_once(tmp_path: Path) -> None:
    port = free_ports(1)
    path = spec(
        tmp_path,
        f"""
        [[process]]
        name = "server"
        command = [TALK, "serve", "{port}"]
        ready = {{ connect = "127.0.0.1:{port}" }}
        [[process]]
        name = "client"
        after = ["server"]
        command = [TALK, "slow", "1", "300"]
        """,
    )
    assert run(tmp_path, str(path)).returncode == 0
    assert (tmp_path / "cap" / "server.stdout.log").read_text().count("Accepted") == 1


def test_the_vllm_topology_interrupts_its_server() -> None:
    plan = read_spec(shipped("vllm-tp"), ["vllm", "bench"], {"workers": "4", "model": "M"})
    server, client = plan.processes
    assert server.argv[:5] == ("vllm", "serve", "M", "--tensor-parallel-size", "4")
    assert "--enforce-eager" in server.argv
    assert (server.stop, server.timed) == (signal.SIGINT, True)
    assert (client.argv, client.after, client.timed) == (("vllm", "bench"), ("server",), False)
    assert (plan.topology, plan.end, plan.presets) == ("parallel", "client", ("vllm-xpu",))


ONE = '[[process]]\nname = "a"\ncommand = ["true"]\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = [", "Invalid value"),
        ("", "needs at least one [[process]]"),
        ("colour = 1\n" + ONE, "unknown colour"),
        (ONE + "colour = 1\n", "process a: unknown colour"),
        (ONE + ONE, "two processes have one name"),
        ('end = "b"\n' + ONE, "end = 'b' names no process"),
        ('topology = "ring"\n' + ONE, "choose from pipeline, parallel"),
        (ONE + 'after = ["b"]\n', "after names unknown b"),
        (ONE + 'after = ["a"]\n', "a wait for one another"),
        ("preset = 5\n" + ONE, "preset: must be a list of texts"),
        (ONE + "port = 99999\n", "process a: there is no port 99999: give 1 to 65535"),
        (ONE + "ready = { port = 0 }\n", "process a: there is no port 0"),
        (ONE + 'ready = { connect = "x:70000" }\n', "process a: there is no port 70000"),
        ('[[process]]\nname = "a-{i}"\neach = "3"\nport = 65534\ncommand = ["true"]\n', "no port 65536"),
        (ONE + "cwd = [1]\nready = {}\n", "exactly one of"),
        (ONE + "ready = {}\n", "exactly one of port, line, after_s, connect"),
        (ONE + 'ready = { line = "(" }\n', "process a: line:"),
        (ONE + 'ready = { connect = "x" }\n', "give HOST:PORT"),
        (ONE + 'ready = { port = "high" }\n', "'high' is no whole number"),
        (ONE + "ready = { after_s = -1 }\n", "no number of seconds"),
        (ONE + 'stop = "KILL"\n', "choose from TERM, INT, QUIT, HUP"),
        (ONE + 'each = "0"\n', "give 1 to 1024"),
        ('[[process]]\nname = "a"\ncommand = "true"\n', "must be a list of words"),
        ('[[process]]\nname = "a"\ncommand = ["{what}"]\n', "{what} in '{what}' is not known"),
        ('[[process]]\nname = "a"\ncommand = ["{given}"]\n', "give it after --"),
        ('[[process]]\nname = "../a"\ncommand = ["true"]\n', "cannot name a log file"),
        ('[[process]]\ncommand = ["true"]\n', "needs a name and a command"),
        ('[values]\nmodel = ""\n[[process]]\nname = "a"\ncommand = ["x", "{model}"]\n', "the value model is empty"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_fault(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_spec(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert says in str(refused.value)


def test_a_preset_that_would_time_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('preset = "ggml-sycl"\n' + ONE)
    done = run(tmp_path, "--no-check", str(tmp_path / "spec.toml"))
    assert done.returncode == 2
    assert "preset ggml-sycl would time nothing: no process of spec has timed = true" in done.stderr
    assert not (tmp_path / "cap").exists()


def test_words_without_a_place_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(ONE)
    with pytest.raises(UsageError, match="has no place for the words after --"):
        read_spec(path, ["more"])


def test_a_value_of_several_words_is_split_as_a_shell_does() -> None:
    more = "--dtype float16 --override '{\"a\": 1}'"
    server = read_spec(shipped("vllm-tp"), ["x"], {"model": "M", "server_args": more}).processes[0]
    assert server.argv[-4:] == ("--dtype", "float16", "--override", '{"a": 1}')
    assert read_spec(shipped("vllm-tp"), ["x"], {"model": "M"}).processes[0].argv[-2:] == ("--port", "8000")
    with pytest.raises(UsageError, match="No closing quotation"):
        read_spec(shipped("vllm-tp"), ["x"], {"model": "M", "server_args": "'"})


def test_optional_words_go_with_their_value(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('[values]\nmodel = ""\n[[process]]\nname = "a"\ncommand = ["x", ["-m", "{model}"], "{json: 1}"]\n')
    assert read_spec(path).processes[0].argv == ("x", "{json: 1}")
    assert read_spec(path, values={"model": "M"}).processes[0].argv == ("x", "-m", "M", "{json: 1}")
    with pytest.raises(UsageError, match=r"has no value colour to set \(its values: model\)"):
        read_spec(path, values={"colour": "red"})


@pytest.mark.parametrize("options", [(), ("--tty",), ("--zstd",)])
def test_a_program_inherits_nothing_of_tracekits_own(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A copy of a reading end in a program that outlives tracekit would keep it from ever getting SIGPIPE."""
    command = '["sh", "-c", "ls /proc/$$/fd; :"]'
    path = tmp_path / "spec.toml"
    path.write_text(
        f'[[process]]\nname = "first"\ncommand = ["sh", "-c", "echo up; sleep 100"]\nready = {{ line = "up" }}\n'
        f'[[process]]\nname = "last"\nafter = ["first"]\ncommand = {command}\n'
    )
    done = run(tmp_path, *options, str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1", "2"]
