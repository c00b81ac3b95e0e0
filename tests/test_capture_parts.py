"""The parts of the capture by themselves: stamps, patterns, secrets, presets, samples, manifests."""

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit import manifest, stamps
from tracekit.capture import host, presets, secrets
from tracekit.capture.guard import descendants
from tracekit.capture.prepare import Settings, environment
from tracekit.capture.sample import Sampler
from tracekit.capture.spec import Process
from tracekit.capture.watch import Pattern, StallWatch, Watch, patterns
from tracekit.counters import read_counters
from tracekit.errors import UsageError

# -- stamps ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 10**12)), min_size=1, max_size=50), st.integers(0, 15))
def test_stamps_are_read_back_as_written(reads: list[tuple[int, int]], torn: int) -> None:
    import tempfile

    sizes = np.array([size for size, _ in reads])
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.uint64)
    times = np.cumsum([gap for _, gap in reads])
    anchor = stamps.Anchor(5, 3, 1)
    with tempfile.NamedTemporaryFile() as file:
        file.write(stamps.header(anchor))
        for offset, mono_ns in zip(offsets.tolist(), times.tolist(), strict=True):
            file.write(stamps.RECORD.pack(offset, mono_ns))
        file.write(b"\7" * torn)
        file.flush()
        found = stamps.read_stamps(file.name)
    assert found.anchor == anchor
    assert found.byte_offset.tolist() == offsets.tolist()
    assert found.mono_ns.tolist() == times.tolist()
    # Every byte belongs to the read that brought it.
    whose = np.repeat(times, sizes)
    every = np.arange(sizes.sum(), dtype=np.uint64)
    assert (found.arrival_ns(every) == whose).all()


def test_files_that_are_no_stamps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.stamps"
    with pytest.raises(UsageError, match="cannot be read"):
        stamps.read_stamps(path)
    path.write_bytes(b"TKSTAMPS")
    with pytest.raises(UsageError, match="is no file of arrival stamps"):
        stamps.read_stamps(path)
    path.write_bytes(stamps.header(stamps.Anchor(0, 0, 0)).replace(b"\1\0\0\0", b"\2\0\0\0", 1))
    with pytest.raises(UsageError, match="version 2"):
        stamps.read_stamps(path)
    path.write_bytes(stamps.header(stamps.Anchor(0, 0, 0)))
    with pytest.raises(UsageError, match="do not cover"):
        stamps.read_stamps(path).arrival_ns(np.array([0], np.uint64))


# -- watching ----------------------------------------------------------------------------------------------------------


@given(st.text("abAB\n", max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_patterns_are_counted_however_reads_cut_them(text: str, cuts: list[int]) -> None:
    data = text.encode()
    watch = Watch("x", StallWatch((Pattern("abA", times=10**9),)), (b"AB", b"b"))
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    for start, end in pairwise(edges):
        watch.feed(data[start:end], start)
    assert watch.stalls.counts.get("abA", 0) == len(re.findall("(?=abA)", text))
    assert watch.marked.get(b"AB", 0) == text.count("AB")
    assert watch.marked.get(b"b", 0) == text.count("b")


@given(st.integers(0, 30), st.integers(1, 7))
def test_the_evidence_is_the_line_and_its_place(before: int, step: int) -> None:
    data = b"x" * before + b"\nfirst DEVICE gone\nmore\n"
    watch = Watch("w.stderr", StallWatch((Pattern("DEVICE"),)))
    hits = [h for at in range(0, len(data), step) for h in watch.feed(data[at : at + step], at)]
    (hit,) = hits
    assert hit.line.startswith("first DEVICE"[: len(hit.line)])
    assert "DEVICE" in hit.line
    assert hit.byte_offset == before + 7


def test_readiness_is_a_line_across_reads() -> None:
    watch = Watch("x", StallWatch(()), ready=re.compile(rb"^server (is )?up", re.MULTILINE))
    watch.feed(b"the server is up\nserver i", 0)
    assert not watch.is_ready
    watch.feed(b"s up\n", 25)
    assert watch.is_ready


def test_shipped_patterns_are_sound_and_extended_by_the_user() -> None:
    found = patterns(["mine:4"])
    assert found[0] == Pattern("mine", 4, 1.0, "given on the command line")
    texts = {p.text for p in found}
    assert {"No available shared memory broadcast block found", "UR_RESULT_ERROR_DEVICE_LOST"} <= texts
    assert all(p.meaning for p in found)
    with pytest.raises(UsageError, match="1 to 256 bytes"):
        patterns(["x" * 300])


def test_rules_of_the_users_own_are_read_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stalls.toml").write_text('[[pattern]]\ntext = "odd"\n')
    (tmp_path / "presets.toml").write_text('[[preset]]\nname = "odd"\n')
    monkeypatch.setenv("TRACEKIT_RULES", str(tmp_path))
    assert patterns() == (Pattern("odd"),)
    with pytest.raises(UsageError, match=r"presets\.toml"):
        presets.presets()


# -- secrets -----------------------------------------------------------------------------------------------------------

SECRETS = ["hf_" + "a" * 20, "sk-" + "x1" * 12, "ghp_" + "b" * 30, "eyJhbGciOiJIUzI1.eyJz", "https://u:p@host/x"]


@pytest.mark.parametrize("value", [*SECRETS, "Bearer abcdefghij", "aZ9" * 12, "0123456789abcdef" * 3])
def test_values_that_look_like_secrets_are_withheld(value: str) -> None:
    assert secrets.kept_environment({"VLLM_X": value}) == {"VLLM_X": "(withheld)"}
    assert value not in " ".join(secrets.kept_arguments(["serve", value, f"--x={value}", "-e", f"A={value}"]))


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "VLLM_TOKEN", "CCL_PASSWORD", "VLLM_HF_SECRET", "LLAMA_AUTH"])
def test_names_that_mean_secrets_are_withheld(name: str) -> None:
    assert secrets.kept_environment({name: "1"}) == {name: "(withheld)"}


def test_what_explains_a_run_is_kept() -> None:
    env = {
        "VLLM_MAX_NUM_BATCHED_TOKENS": "8192",
        "GGML_SYCL_OP_TIMING": "1",
        "ONEAPI_DEVICE_SELECTOR": "level_zero:0",
        "LD_LIBRARY_PATH": "/opt/intel/oneapi/compiler/2025.3/lib:/home/someone/llama.cpp/build-2025-11-30/bin",
        "HOME": "/home/someone",
        "AWS_SECRET_ACCESS_KEY": "no",
    }
    kept = secrets.kept_environment(env)
    assert kept == {k: v for k, v in env.items() if k not in ("HOME", "AWS_SECRET_ACCESS_KEY")}
    argv = ["-m", "/models/Qwen3-Coder-30B-A3B-Instruct-UD_Q4_K_XL.gguf", "--max-tokens", "5", "-ngl", "99"]
    assert secrets.kept_arguments(argv) == argv


# -- presets and environments ------------------------------------------------------------------------------------------


def test_presets_name_markers_that_dialects_read() -> None:
    from tracekit.parsers import catalogue

    read = {d.marker.rstrip(":") for d in catalogue()}
    for preset in presets.presets():
        assert set(preset.markers) <= read, preset.name
        assert preset.caveats
        assert preset.no_lines
        assert preset.is_on(preset.env)


def test_untimed_processes_do_not_inherit_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_SYCL_OP_TIMING", "1")
    chosen = [presets.preset("ggml-sycl")]
    client = Process("client", ("x",), timed=False)
    worker = Process("worker", ("x",), timed=True, env={"A": "1"})
    assert "GGML_SYCL_OP_TIMING" not in environment(client, chosen, Settings())[0]
    env, _, changed = environment(worker, chosen, Settings(env={"A": "2"}))
    assert (env["GGML_SYCL_OP_TIMING"], env["A"]) == ("1", "2")
    assert set(changed) == {"GGML_SYCL_OP_TIMING", "A"}
    env, unset, _ = environment(worker, chosen, Settings(role="clean"))
    assert "GGML_SYCL_OP_TIMING" not in env
    assert unset == ("GGML_SYCL_OP_TIMING",)


@pytest.mark.parametrize("role", ["clean", None])
def test_a_shim_that_somebody_preloads_is_told_not_to_time(monkeypatch: pytest.MonkeyPatch, role: str | None) -> None:
    monkeypatch.setenv("LD_PRELOAD", "shim.so")
    monkeypatch.setenv("GGML_SYCL_OP_STATS", "1")
    monkeypatch.delenv("TRACEKIT_OP_TIMING", raising=False)
    chosen = [presets.preset("ggml-shim")]
    settings = Settings(role=role, preload="shim.so")
    env, _, _ = environment(Process("client", ("x",), timed=role == "clean"), chosen, settings)
    assert env["TRACEKIT_OP_TIMING"] == "0"
    assert ("GGML_SYCL_OP_STATS" in env) == (role != "clean")
    env, _, _ = environment(Process("worker", ("x",), timed=True), chosen, Settings(preload="shim.so"))
    assert env["TRACEKIT_OP_TIMING"] == "1"
    monkeypatch.delenv("LD_PRELOAD")
    assert "TRACEKIT_OP_TIMING" not in environment(Process("x", ("x",)), chosen, Settings(role="clean"))[0]


def test_timing_lines_are_not_sent_past_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_OP_TIMING_OUT", "/elsewhere.log")
    env, unset, _ = environment(Process("x", ("x",)), [presets.preset("ggml-sycl")], Settings())
    assert "TRACEKIT_OP_TIMING_OUT" not in env
    assert unset == ("TRACEKIT_OP_TIMING_OUT",)
    asked = Settings(env={"TRACEKIT_OP_TIMING_OUT": "mine.log"})
    env, unset, _ = environment(Process("x", ("x",)), [presets.preset("ggml-sycl")], asked)
    assert (env["TRACEKIT_OP_TIMING_OUT"], unset) == ("mine.log", ())


# -- the machine -------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give a tree as a machine with one GPU on the xe driver has."""
    device = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
    files = {
        "vendor": "0x8086",
        "device": "0xe223",
        "class": "0x030000",
        "current_link_speed": "32.0 GT/s PCIe",
        "hwmon/hwmon3/energy1_input": "1000000",
        "hwmon/hwmon3/energy1_label": "card",
        "hwmon/hwmon3/temp2_input": "54000",
        "hwmon/hwmon3/temp2_label": "pkg",
        "hwmon/hwmon3/power1_crit": "1",
        "tile0/gt0/freq0/act_freq": "2800",
        "drm/card0/x": "",
        "drm/renderD128/x": "",
    }
    for name, text in files.items():
        path = device / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path


def test_sampling_reads_sensors_in_place_and_turns_energy_into_power(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cap"
    folder.mkdir()
    sampler = Sampler(folder, 0.02, root)
    sampler.start()
    energy = root / "sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon3/energy1_input"
    end = time.monotonic() + 60
    joules = 1.0
    while read_counters(folder).filter(pl.col("unit") == "W").height < 5 and time.monotonic() < end:
        joules += 0.5
        energy.write_text(f"{int(joules * 1e6):d}\n")
        time.sleep(0.01)
    sampler.finish()
    assert sampler.trouble == ""
    rows = read_counters(folder)
    assert set(rows["quantity"]) == {"power (from energy) card", "temperature pkg", "frequency tile0/gt0/freq0"}
    assert set(rows["device"]) == {"0000:03:00.0"}
    by = {q[0]: part for q, part in rows.group_by("quantity")}
    assert set(by["temperature pkg"]["value"]) == {54.0}
    assert set(by["temperature pkg"]["unit"]) == {"degC"}
    assert set(by["frequency tile0/gt0/freq0"]["value"]) == {2800.0}
    assert rows["mono_ns"].is_sorted()
    # 0.5 J each 10 ms at the most.
    power = by["power (from energy) card"]
    assert power.height >= 5
    seconds = (power["mono_ns"][-1] - power["mono_ns"][0]) / 1e9
    assert 0 < (power["value"].sum() / power.height) * seconds < joules


def test_nothing_to_sample_is_said(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path, 0.1, tmp_path)
    sampler.start()
    sampler.finish()
    assert "nothing to sample" in sampler.trouble
    assert read_counters(tmp_path).is_empty()


def test_a_cut_or_damaged_table_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text('mono_ns,device,quantity,unit,value\n5,0000:03:00.0,"temperature pkg",degC,54\n6,0000:03')
    assert read_counters(tmp_path).rows() == [(5, "0000:03:00.0", "temperature pkg", "degC", 54.0)]
    path.write_text("mono_ns,device,quantity,unit,value\nfive,x,y,z,w\n")
    with pytest.raises(UsageError, match=r"counters\.csv: is no table of samples"):
        read_counters(tmp_path)


def test_the_machine_is_described_from_its_files(root: Path) -> None:
    found = host.describe(root, tools=False)
    (gpu,) = found["gpus"]
    assert gpu["pci"] == "0000:03:00.0"
    assert gpu["ids"] == "8086:e223"
    assert gpu["current_link_speed"] == "32.0 GT/s PCIe"
    assert gpu["render"] == "renderD128"


def test_tools_are_asked_with_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("sycl-ls", "echo '[level_zero:gpu] B70'"), ("xpu-smi", "exec sleep 100")):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n{text}\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(host, "TOOL_TIMEOUT_S", 0.3)
    tools = host.describe()["tools"]
    assert tools == {"sycl-ls": "[level_zero:gpu] B70\n", "xpu-smi": "(no answer within 0 s)"}


def test_the_commit_of_a_programs_tree(tmp_path: Path) -> None:
    import subprocess

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    program = tmp_path / "build" / "program"
    program.parent.mkdir()
    program.write_text("x")
    assert host.git_commit(program) is None
    git("init", "-q")
    (tmp_path / "source.c").write_text("1")
    git("add", "source.c")
    git("commit", "-q", "-m", "x")
    head = git("rev-parse", "HEAD")
    assert host.git_commit(program) == head
    (tmp_path / "source.c").write_text("2")
    assert host.git_commit(program) == head + "+changes"


def test_descendants_are_found_over_generations() -> None:
    import os
    import subprocess

    process = subprocess.Popen(["sh", "-c", "sleep 100 & sleep 100 & wait"])
    try:
        deadline = time.monotonic() + 10
        while len(found := descendants(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(found) == 2
        assert set(found) < set(descendants(os.getpid()))
    finally:
        for pid in (*descendants(process.pid), process.pid):
            os.kill(pid, 9)
        process.wait()


# -- manifests ---------------------------------------------------------------------------------------------------------


def test_a_directory_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert manifest.load(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ("[]", "is no manifest of a capture"),
        ('{"schema": "tracekit-capture", "version": 2}', "version 2; this tracekit reads 1"),
        ('{"schema": "tracekit-capture", "version": 1}', "manifest.json: tracekit is missing"),
        ('{"schema": "tracekit-capture", "version": 1, "tracekit": 5}', "tracekit should be a text, and is '5'"),
        ('{"schema": "tracekit-capture", "version": 1, "processes": 5}', "missing"),
        ('{"schema": "tracekit-capture", "version": 1, "started": 5}', "missing"),
    ],
)
def test_a_damaged_manifest_is_refused_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))) as refused:
        manifest.load(tmp_path)
    assert says in str(refused.value)


def test_a_manifest_is_read_back_as_saved_and_lets_unknown_keys_through(tmp_path: Path) -> None:
    import json

    log = manifest.Log("a.stdout.log", "a.stdout.log.stamps", "stdout", 10, 2)
    process = manifest.Process("a", ["a"], "/", "/a", {"A": "1"}, [], timed=True, pid=5, logs=[log], mapped=["/a"])
    saved = manifest.Manifest(
        "0.1", "a", ["ggml-sycl"], True, "pipeline", "a", ["run"], "/", manifest.Moment(1, 2), manifest.Moment(3, 4),
        manifest.Outcome("ok", "fine", 0, ["note"]), manifest.Capture(), [process], {"name": "h"},
    )  # fmt: skip
    manifest.save(saved, tmp_path)
    assert manifest.load(tmp_path) == saved
    assert saved.complete
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    content["later"] = content["processes"][0]["later"] = 1
    path.write_text(json.dumps(content))
    assert manifest.load(tmp_path) == saved


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("processes", 0, "logs", 0, "bytes"), "x", "processes[0].logs[0].bytes should be a whole number, and is 'x'"),
        (("processes", 0, "logs", 0, "file"), None, "processes[0].logs[0].file should be a text"),
        (("processes", 0, "env"), {"A": 1}, "processes[0].env.A should be a text"),
        (("processes",), 5, "processes should be a list"),
        (("started",), 5, "started should be an object"),
        (("timed",), 1, "timed should be true or false"),
        (("capture", "grace_s"), True, "capture.grace_s should be a number"),
    ],
)
def test_a_field_of_another_type_is_named(tmp_path: Path, place: tuple[str | int, ...], value: Any, says: str) -> None:
    import json

    log = manifest.Log("a.stdout.log", "a.stdout.log.stamps", "stdout", 10, 2)
    saved = manifest.Manifest(
        "0.1", "a", [], True, None, "a", ["run"], "/", manifest.Moment(1, 2), None, None, manifest.Capture(),
        [manifest.Process("a", ["a"], "/", "/a", {}, [], timed=True, logs=[log])], {},
    )  # fmt: skip
    manifest.save(saved, tmp_path)
    content = inner = json.loads((tmp_path / "manifest.json").read_text())
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UsageError) as refused:
        manifest.load(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'manifest.json'}: {says}")


def test_the_schema_is_documented() -> None:
    """Every key of the manifest stands in the page that tells of it, and every class."""
    from dataclasses import fields

    page = (Path(__file__).parent.parent / "docs" / "capture.md").read_text(encoding="utf-8")
    for kind in (
        manifest.Manifest, manifest.Process, manifest.Log, manifest.Capture, manifest.Outcome, manifest.Moment,
    ):  # fmt: skip
        for field in fields(kind):
            assert f"`{field.name}`" in page, f"{kind.__name__}.{field.name}"
    for name in (*manifest.OUTCOMES, *(p.name for p in presets.presets()), "ggml-rpc", "vllm-tp"):
        assert f"`{name}`" in page, name
