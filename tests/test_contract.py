"""The contract of instruments and dialects: what an instrument of ours can print, its dialect reads whole.

Names are made of what could be taken for a field, a quote or the end of one. A name that holds the marker of another
record is left out: no reader could tell it from a record.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import polars as pl
import pytest
from engine_trees import STUBS
from hypothesis import HealthCheck, given, settings

from tracekit.instrument.settings import Settings
from tracekit.instrument.timing import Recorder, clean_label
from tracekit.reading import read
from tracekit.shimbuild import build_shim

SOURCES = Path(__file__).parent.parent / "patches" / "sources"
FAKE = Path(__file__).parent / "fake_ggml"

PIECES = (
    *(" ", "  ", "=", " us=5", " ne=1x1x1x1", " ns=7 ", " v=1", " count=3", " last_ms=0.1", " total_ms=1.0"),
    *('" wait_ms=0.5', '"', "'", "[", "]", "{", "}", "(copy of ", ")", ":", ",", "\\", "%s", "#", "-0", "blk.3."),
    *("Qcur-12", "é", "层", "e-05"),
)
CONTROLS = ("\n", "\r", "\t", "\x1b[31m", "\x7f")
names = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
#: C strings may hold anything but NUL; the instruments must keep it on one line.
c_names = st.lists(st.sampled_from(PIECES + CONTROLS), max_size=8).map("".join)
durations = st.integers(0, 10**12)

needs_compiler = pytest.mark.skipif(not (shutil.which("g++") and shutil.which("gcc")), reason="no compiler on the path")
examples = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def whole(text: str) -> pl.DataFrame:
    """Read a log of which every line must be a record or a notice that needs no word; return its events."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "worker.log"
        log.write_text(text, encoding="utf-8", errors="surrogateescape")
        run = read(log)
        events = run.events.collect()
        assert run.rejects.collect().is_empty()
        # Names at random make no model's graph, so what is said of steps does not count here.
        found = run.findings.collect()
        lost = found.filter(pl.col("code").is_in(["rejected", "lost-lines", "text-behind", "quoted-marker"]))
        assert lost.is_empty(), lost.to_dicts()
    return events


def kept(name: str, size: int) -> str:
    """What of a name gets into a C field: so many bytes, controls replaced, and decoded as a log is."""
    data = bytes(ord("?") if c < 32 or c == 127 else c for c in name.encode())
    return data[:size].decode("utf-8", "replace")


# -- vLLM


@examples
@given(st.lists(st.tuples(names.map(clean_label), durations), min_size=1, max_size=6))
def test_the_recorder_of_vllm(calls: list[tuple[str, int]]) -> None:
    lines: list[str] = []
    clock = [0]
    settings = Settings(print_every=1, step_summary=True)
    recorder = Recorder(settings, write=lambda _, text: lines.append(text), clock=lambda: clock[0])
    recorder.settle_rank(3)
    recorder.begin_pass({"num_reqs": 1, "num_tokens_unpadded": 1})
    for label, ns in calls:
        with recorder.region(label):
            clock[0] += ns
    recorder.end_pass()
    recorder.print_summary()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "worker.log"
        log.write_text("".join(f"{line}\n" for line in lines))
        run = read(log)
        events = run.events.collect()
        assert run.rejects.collect().is_empty()
        assert run.findings.collect().filter(pl.col("severity") == "fault").is_empty()
        assert events.select(pl.col("name").cast(pl.String), "dur_ns", "rank").rows() == [(*c, 3) for c in calls]
        total = {label: sum(ns for other, ns in calls if other == label) for label, _ in calls}
        sums = run.summaries.select(pl.col("name").cast(pl.String), "total_ns", "step").collect().rows()
        assert set(sums) == {(*item, step) for item in total.items() for step in (None, 1)}


# -- the headers of the source patches


MOE = """
#include "tracekit-moe-trace.h"
#include "driver.hpp"
int main() {
    sycl::queue queue;
    queue.profiling = std::getenv("STUB_PROFILING") != nullptr;
    read_calls([&](int device, uint64_t ns, const std::string& name) {
        sycl::event event = queue.submit([](sycl::handler& h) { h.work = 5; });
        tracekit::moe_trace_print(queue, event, device, name.c_str(), 100, 200, 200 + ns);
    });
}
"""

OPS = """
#include "tracekit-op-timing.hpp"
#include "driver.hpp"
int main() {
    sycl::queue queue;
    queue.profiling = std::getenv("STUB_PROFILING") != nullptr;
    read_calls([&](int device, uint64_t ns, const std::string& name) {
        tracekit::op_graph graph(queue, device);
        ggml_tensor node = {GGML_OP_MUL_MAT, {INT64_MAX, 1, static_cast<int64_t>(ns), 0}, {}};
        std::snprintf(node.name, sizeof node.name, "%s", name.c_str());
        int index = 0;
        tracekit::op_timer timer(graph, &node, index);
        index = static_cast<int>(ns % 3);
    });
}
"""

DRIVER = """
#include <cstdint>
#include <iostream>
#include <string>
template <typename Call> void read_calls(const Call& call) {
    int device;
    uint64_t ns;
    std::string hex;
    while (std::cin >> device >> ns >> hex) {
        std::string name;
        for (size_t i = 1; i < hex.size(); i += 2) name += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
        call(device, ns, name);
    }
}
"""

Call = tuple[int, int, str]
Print = Callable[..., str]
calls = st.lists(st.tuples(st.integers(-1, 7), durations, c_names), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def printer(tmp_path_factory: pytest.TempPathFactory) -> Print:
    """Return what gives calls to a header's printing function, and what that wrote."""
    place = tmp_path_factory.mktemp("headers")
    (place / "driver.hpp").write_text(DRIVER)
    for name, source in (("moe", MOE), ("ops", OPS)):
        (place / f"{name}.cpp").write_text(source)
        include = [f"-I{folder}" for folder in (place, SOURCES, STUBS, STUBS / "ggml_part")]
        command = ["g++", "-std=c++17", "-Wall", "-Werror", *include, "-o", place / name, place / f"{name}.cpp"]
        subprocess.run(command, check=True, timeout=60)

    def give(program: str, given: list[Call], **env: str) -> str:
        text = "".join(f"{device} {ns} x{name.encode().hex()}\n" for device, ns, name in given)
        clean = {k: v for k, v in os.environ.items() if "RANK" not in k}
        done = subprocess.run(
            [place / program], input=text.encode(), capture_output=True, check=True, timeout=20,
            env={**clean, "TRACEKIT_OP_TIMING": "1", **env},
        )  # fmt: skip
        return done.stderr.decode("utf-8", "surrogateescape")

    return give


@needs_compiler
@examples
@given(calls, st.sampled_from([{}, {"LOCAL_RANK": "2"}, {"LOCAL_RANK": "2", "STUB_PROFILING": "1"}, {"RANK": "a b"}]))
def test_the_header_of_llm_scaler(printer: Print, given: list[Call], env: dict[str, str]) -> None:
    given = [(device, ns, name or "-") for device, ns, name in given]  # llm-scaler names its kernels
    events = whole(printer("moe", given, **env))
    said = [kept(name, 10_000).replace('"', "'").replace("[", "(") for *_, name in given]
    assert events["name"].cast(pl.String).to_list() == said
    assert events["device"].to_list() == [device for device, *_ in given]
    assert events["dur_ns"].to_list() == [ns for _, ns, _ in given]
    assert events["call"].to_list() == list(range(1, len(given) + 1))
    assert set(events["start_ns"]) == {200}
    assert set(events["rank"]) == {2 if "LOCAL_RANK" in env else None}
    assert events["pid"].null_count() == 0
    [worker] = set(events["worker"].cast(pl.String))
    assert worker == ("rank 2" if "LOCAL_RANK" in env else f"pid{events['pid'][0]}")


@needs_compiler
@examples
@given(calls, st.sampled_from([{}, {"STUB_PROFILING": "1", "TRACEKIT_OP_TIMING_PROFILE": "1"}]))
def test_the_header_of_the_sycl_backends(printer: Print, given: list[Call], env: dict[str, str]) -> None:
    given = [(abs(device), ns, name) for device, ns, name in given]
    events = whole(printer("ops", given, **env))
    assert events["name"].cast(pl.String).to_list() == [kept(name, 63) for *_, name in given]
    assert events["device"].to_list() == [device for device, *_ in given]
    assert events["shape"].cast(pl.String).to_list() == [f"{2**63 - 1}x1x{ns}x0" for _, ns, _ in given]
    assert events["start_ns"].null_count() == 0


# -- the shim


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return what runs a program over the stand-in for ggml, whose first node has a name, under the shim."""
    place = tmp_path_factory.mktemp("shim")
    shim = build_shim(place / "shim.so").path
    common = ["gcc", f"-I{FAKE}", "-o"]
    subprocess.run([*common, place / "libggml-base.so", "-shared", "-fPIC", FAKE / "ggml.c"], check=True)
    program = [*common, place / "llama-fake", FAKE / "program.c", place / "libggml-base.so", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(program, check=True)

    def give(name: str) -> str:
        env = {**os.environ, "LD_PRELOAD": str(shim), "FAKE_NAME": name}
        done = subprocess.run([place / "llama-fake"], capture_output=True, check=True, timeout=20, env=env)
        return done.stderr.decode("utf-8", "surrogateescape")

    return give


@needs_compiler
@examples
@given(c_names)
def test_the_shim(timed: Callable[[str], str], name: str) -> None:
    events = whole(timed(name))
    assert events["name"].cast(pl.String).to_list() == [kept(name, 63), "l out?-1"] * 2
