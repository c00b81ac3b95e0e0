"""The shim on real engines, and the SYCL patch on the real tree. Skipped unless --engines is given: docs/testing.md."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
from engine_trees import STUBS, snapshot

from tracekit import read
from tracekit.patching import apply, check, find, revert
from tracekit.shimbuild import build_shim

pytestmark = pytest.mark.engine

IK = Path(__file__).parent / "engine_ik.py"


def named(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set, see docs/testing.md")
    return Path(value)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim") / "shim.so").path


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def env(shim: Path | None, **more: str) -> dict[str, str]:
    preload = {"LD_PRELOAD": str(shim)} if shim else {}
    return {**os.environ, "GGML_NO_BACKTRACE": "1", **preload, **more}


@contextmanager
def worker(shim: Path | None, log: Path) -> Iterator[int]:
    port = free_port()
    command = [named("TRACEKIT_LLAMA_BIN") / "ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
    with log.open("wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, env=env(shim))
        try:
            deadline = time.monotonic() + 30
            while not listens(port):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            process.wait(10)


def notices(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if line.startswith("[tracekit-shim]"))


def nodes(log: Path) -> pl.DataFrame:
    """Return the events; every line that was printed is one."""
    frame = read([log]).events.collect()
    assert len(frame) == log.read_bytes().count(b"[SYCL_OP_TIMING]")
    return frame


def graphs(log: Path) -> list[list[tuple[str, str]]]:
    """Return (op, name) of every graph in order, from the lines as printed."""
    found: dict[int, list[tuple[str, str]]] = {}
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("[SYCL_OP_TIMING]"):
            op = line.split(" op=")[1].split(" ")[0]
            name = line.split(" name=")[1].split(" ne=")[0]
            found.setdefault(int(line.split(" graph=")[1].split(" ")[0]), []).append((op, name))
    assert list(found) == list(range(len(found)))
    return list(found.values())


def spans(log: Path) -> None:
    """Nodes follow each other: none starts before the one before it has ended."""
    frame = nodes(log).select("start_ns", "dur_ns")
    ends = frame["start_ns"] + frame["dur_ns"]
    assert (frame["start_ns"][1:] >= ends[:-1]).all()
    assert (frame["dur_ns"] > 0).all()


def test_two_workers_of_llama_cpp(shim: Path, tmp_path: Path) -> None:
    """llama-bench -p 8 -n 4 runs seven graphs: a warm-up and a run of the prompt, a warm-up and four tokens."""
    logs = [tmp_path / "worker0.log", tmp_path / "worker1.log"]
    bench = [named("TRACEKIT_LLAMA_BIN") / "llama-bench", "-m", named("TRACEKIT_GGUF"), "-p", "8", "-n", "4", "-r", "1"]
    with worker(shim, logs[0]) as a, worker(shim, logs[1]) as b:
        rpc = ["--rpc", f"127.0.0.1:{a},127.0.0.1:{b}", "-ngl", "99", "-t", "1"]
        subprocess.run([*bench, *rpc], check=True, timeout=100, capture_output=True, env=env(None))
    layers = []
    for log in logs:
        passes = graphs(log)
        assert len(passes) == 7
        assert all(each == passes[0] for each in passes)
        assert "entry=graph_compute layout=default,verified" in notices(log)
        spans(log)
        layers.append(set(nodes(log)["layer"].drop_nulls()))
    assert not layers[0] & layers[1]
    assert layers[0] | layers[1] == set(range(18))


def test_strict_finds_no_fault_in_the_workers_log(shim: Path, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with worker(shim, log) as port:
        bench = [named("TRACEKIT_LLAMA_BIN") / "llama-bench", "-m", named("TRACEKIT_GGUF"), "-p", "8", "-n", "4"]
        rpc = ["-r", "1", "--rpc", f"127.0.0.1:{port}", "-ngl", "99", "-t", "1"]
        subprocess.run([*bench, *rpc], check=True, timeout=100, capture_output=True, env=env(None))
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "top", "--strict", log],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_program_with_a_scheduler(shim: Path, tmp_path: Path) -> None:
    """The text generated is the same with the shim and without, and every node printed is counted at the end."""
    program = named("TRACEKIT_LLAMA_BIN") / "llama-completion"
    ask = [program, "-m", named("TRACEKIT_GGUF"), "-p", "The quick brown fox", "-n", "6", "-t", "2", "--temp", "0"]
    said = []
    for preload in (None, shim):
        log = tmp_path / f"{preload is not None}.log"
        with log.open("wb") as err:
            done = subprocess.run(
                [*ask, "-no-cnv", "--no-warmup"], stdout=subprocess.PIPE, stderr=err, stdin=subprocess.DEVNULL,
                check=True, timeout=100, env=env(preload),
            )  # fmt: skip
        said.append(done.stdout)
    assert said[0] == said[1] != b""
    passes = graphs(log)
    assert f"end: graphs={len(passes)} lines={len(nodes(log))} lost=0" in notices(log)
    assert all(len(each) == len(passes[0]) for each in passes)
    spans(log)


def test_ik_llama_cpp(shim: Path, tmp_path: Path) -> None:
    """Loaded privately by Python's ctypes, with a ggml of another lineage: eight tokens and a prompt, nine graphs."""
    python, model = named("TRACEKIT_IK_PYTHON"), named("TRACEKIT_GGUF")
    said = []
    for preload in (None, shim):
        log = tmp_path / f"{preload is not None}.log"
        with log.open("wb") as err:
            done = subprocess.run(
                [python, IK, model, "8"], stdout=subprocess.PIPE, stderr=err, check=True, timeout=100, env=env(preload)
            )
        said.append(done.stdout)
    assert said[0] == said[1]
    assert len(said[0].split()) == 9
    passes = graphs(log)
    assert len(passes) == 9
    assert all(each == passes[0] for each in passes[1:])
    assert {"FUSED_RMS_NORM", "FUSED_UP_GATE", "FLASH_ATTN_EXT"} <= {op for op, _ in passes[0]}
    assert set(nodes(log)["layer"].drop_nulls()) == set(range(18))
    spans(log)


def test_the_headers_of_both_give_the_same_layout(tmp_path: Path) -> None:
    tree = named("TRACEKIT_LLAMA_TREE")
    ik = named("TRACEKIT_IK_PYTHON").parent.parent
    [ik_header] = ik.glob("lib/python3*/site-packages/include/ggml.h")
    for number, include in enumerate((tree / "ggml/include", ik_header.parent)):
        made = build_shim(tmp_path / f"{number}.so", ggml_include=include)
        log = tmp_path / f"{number}.log"
        with log.open("wb") as err:
            command = [named("TRACEKIT_IK_PYTHON"), IK, named("TRACEKIT_GGUF"), "1"]
            subprocess.run(command, stdout=subprocess.PIPE, stderr=err, check=True, timeout=100, env=env(made.path))
        assert "layout=header,verified" in notices(log)
        assert len(graphs(log)) == 2


# --- the real tree ---------------------------------------------------------------------------------------------------

BACKEND = Path("ggml/src/ggml-sycl/ggml-sycl.cpp")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    source = named("TRACEKIT_LLAMA_TREE")
    for folder in ("ggml/src/ggml-sycl", "ggml/include"):
        shutil.copytree(source / folder, tmp_path / folder)
    for header in (source / "ggml/src").glob("*.h"):
        shutil.copy(header, tmp_path / "ggml/src")
    return tmp_path


def function(text: str, opening: str) -> str:
    """Return the definition that begins with a line, to the closing brace at a line's start."""
    lines = text.splitlines()
    [start] = [i for i, line in enumerate(lines) if line.startswith(opening) and not line.endswith(";")]
    stop = next(i for i in range(start, len(lines)) if lines[i] == "}")
    return "\n".join(lines[start : stop + 1])


def test_the_patch_fits_the_tree_it_was_made_for(tree: Path) -> None:
    patch, before = find("llama-cpp-sycl"), snapshot(tree)
    report = check(tree, patch)
    assert (report.state, report.exact) == ("ready", True)
    apply(tree, patch)
    assert check(tree, patch).state == "applied"
    assert revert(tree, patch) == ()
    assert snapshot(tree) == before


def test_the_patched_functions_are_valid(tree: Path) -> None:
    """Syntax and types only: the compute functions of the real backend, with all around them declared."""
    apply(tree, find("llama-cpp-sycl"))
    text = (tree / BACKEND).read_text()
    openings = (
        "static void ggml_backend_sycl_graph_compute_impl(",
        "static bool check_graph_compatibility(",
        "static ggml_status ggml_backend_sycl_graph_compute(",
    )
    bodies = [function(text, opening) for opening in openings]
    assert sum("tracekit::" in line for body in bodies for line in body.splitlines()) == 3
    unit = tree / "unit.cpp"
    use = "auto * tracekit_use = &ggml_backend_sycl_graph_compute;"
    unit.write_text("\n".join(['#include "llama_environment.hpp"', '#include "tracekit-op-timing.hpp"', *bodies, use]))
    # The stand-in for SYCL, but the ggml.h of the tree.
    folders = [tree / "ggml/include", tree / "ggml/src", tree / "ggml/src/ggml-sycl", STUBS]
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", *(f"-I{folder}" for folder in folders), unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
