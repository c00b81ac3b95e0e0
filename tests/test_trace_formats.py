"""Chrome's JSON, speedscope and folded stacks: the same nanoseconds as the log, and nothing that overlaps."""

import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import MadeUp, events

import tracekit as tk
from tracekit.cli.convert import command
from tracekit.errors import UsageError
from tracekit.trace import FORMATS, LAYOUTS

SAMPLES = Path(__file__).parent.parent / "samples"
LOGS = [SAMPLES / "llama_rpc_worker0.log", SAMPLES / "vllm_eager_tp2.log", SAMPLES / "generated" / "a_minimax_layer"]


def chrome(path: Path) -> list[dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    assert content["otherData"]["warning"].startswith("diagnostic: not throughput")
    found: list[dict[str, Any]] = content["traceEvents"]
    return found


@pytest.mark.parametrize("log", LOGS, ids=lambda p: p.name)
def test_chrome_json_has_every_event_and_no_overlap(log: Path, tmp_path: Path) -> None:
    run = tk.read(log)
    report = tk.write_trace(run, tmp_path / "t.json", format="chrome-json")
    entries = chrome(tmp_path / "t.json")
    slices = [e for e in entries if e["ph"] == "X"]
    single = run.events.filter(pl.col("kind") == "event").collect()
    operations = [s for s in slices if "line" in s["args"] and "basis" not in s["args"]]
    assert len(operations) == single.height == report.slices
    assert sum(s["dur"] for s in operations) * 1000 == single["dur_ns"].sum()
    threads = {(e["pid"], e["tid"]) for e in entries if e["ph"] == "M" and e["name"] == "thread_name"}
    open_until: dict[tuple[int, int], list[Decimal]] = defaultdict(list)
    for one in slices:  # in the order of the file, which is that of opening
        assert (one["pid"], one["tid"]) in threads
        stack = open_until[one["pid"], one["tid"]]
        while stack and stack[-1] <= one["ts"] and not one["ts"] + one["dur"] <= stack[-1]:
            stack.pop()
        assert not stack or one["ts"] + one["dur"] <= stack[-1]
        stack.append(one["ts"] + one["dur"])


def test_chrome_json_keeps_names_arguments_and_arrows(tmp_path: Path) -> None:
    name = 'quote " back \\ tab \t bell \x07 snow ☃ \U0001f600'
    frames = [
        events([{"op": name, "shape": "1x2", "step": 0, "layer": n}], worker=f"w{n}", stream=f"w{n}.log")
        for n in (0, 1)
    ]
    tk.write_trace(MadeUp(frames), tmp_path / "t.json", format="chrome-json", layout="pipeline")
    entries = chrome(tmp_path / "t.json")
    (one, other) = (e for e in entries if e["ph"] == "X" and "shape" in e["args"])
    assert (one["name"], one["args"]["shape"], other["ts"]) == (name, "1x2", 1)
    assert [e["id"] for e in entries if e["ph"] == "s"] == [e["id"] for e in entries if e["ph"] == "f"] == [1]
    assert [e["args"]["sort_index"] for e in entries if e["name"] == "process_sort_index"] == [1, 2]


def test_chrome_json_rounds_no_time_however_late(tmp_path: Path) -> None:
    # Beyond 2**53 ns a float of microseconds cannot hold three decimals.
    late, shared = 2**61 + 1, {"op": "A", "category": "matmul", "phase": "decode"}
    frames = [
        events(
            [shared | {"step": s, "layer": n, "dur_ns": late if s == n == 0 else 7} for s in (0, 1)], worker=f"w{n}"
        ).with_columns(stream=pl.lit(f"w{n}.log").cast(pl.Categorical()))
        for n in (0, 1)
    ]
    tk.write_trace(MadeUp(frames), tmp_path / "t.json", format="chrome-json", layout="pipeline")
    entries = chrome(tmp_path / "t.json")

    def times_ns(phase: str) -> list[Decimal]:
        return [e["ts"] * 1000 for e in entries if e["ph"] == phase]

    assert times_ns("s") == times_ns("f") == [late, late + 14]
    per_step = [e for e in entries if e["ph"] == "C" and e["name"].startswith("ms per step")]
    assert [(e["pid"], e["ts"] * 1000) for e in per_step] == [
        (1, 0), (1, late + 7), (1, late + 14), (2, late), (2, late + 14), (2, late + 21),
    ]  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=40))
def test_chrome_json_keeps_overlapping_starts_apart(times: list[tuple[int, int]]) -> None:
    rows = [{"op": f"o{n}", "start_ns": start, "dur_ns": dur} for n, (start, dur) in enumerate(times)]
    with TemporaryDirectory() as folder:
        report = tk.write_trace(MadeUp([events(rows)]), Path(folder) / "t.json", format="chrome-json")
        slices = [e for e in chrome(Path(folder) / "t.json") if e["ph"] == "X"]
    assert report.layout == "start"
    first = min(start for start, _ in times)
    assert {s["name"]: ((s["ts"] * 1000) + first, s["dur"] * 1000) for s in slices} == {
        f"o{n}": one for n, one in enumerate(times)
    }
    free: dict[int, Decimal] = defaultdict(Decimal)
    for one in slices:
        assert one["ts"] >= free[one["tid"]]
        free[one["tid"]] = one["ts"] + one["dur"]


def test_metadata_names_and_orders_every_process_and_thread(tmp_path: Path) -> None:
    workers = ["gpu-10", "gpu-2", "gpu-1"]
    frames = [events([{}], worker=w, stream=f"{w}.log") for w in workers]
    tk.write_trace(MadeUp(frames), tmp_path / "t.json", format="chrome-json")
    told: dict[str, dict[tuple[int, int], Any]] = defaultdict(dict)
    for e in chrome(tmp_path / "t.json"):
        if e["ph"] == "M":
            told[e["name"]][e["pid"], e["tid"]] = next(iter(e["args"].values()))
    order = sorted(told["process_name"], key=lambda p: told["process_sort_index"][p])
    assert [told["process_name"][p] for p in order] == ["gpu-1", "gpu-2", "gpu-10"]
    assert told["process_name"].keys() == told["process_sort_index"].keys()
    assert told["thread_name"].keys() == told["thread_sort_index"].keys()
    assert {pid for pid, _ in told["thread_name"]} >= {pid for pid, _ in told["process_name"]}


@pytest.mark.parametrize("log", LOGS, ids=lambda p: p.name)
def test_flame_graphs_sum_to_the_self_time_of_the_log(log: Path, tmp_path: Path) -> None:
    run = tk.read(log)
    single = run.events.filter(pl.col("kind") == "event").collect()
    report = tk.write_trace(run, tmp_path / "t.folded", format="folded")
    assert (report.layout, report.slices) == ("", single.height)
    lines = (tmp_path / "t.folded").read_text(encoding="utf-8").splitlines()
    by_category: dict[str, int] = defaultdict(int)
    for line in lines:
        stack, _, weight = line.rpartition(" ")
        by_category[stack.split(";")[1]] += int(weight)
    expected = single.group_by(pl.col("category").cast(pl.String)).agg(pl.col("self_ns").sum())
    assert by_category == dict(expected.iter_rows())

    tk.write_trace(run, tmp_path / "t.speedscope.json", format="speedscope")
    content = json.loads((tmp_path / "t.speedscope.json").read_text(encoding="utf-8"))
    profiles = content["profiles"]
    assert [p["name"] for p in profiles] == list(dict.fromkeys(line.split(";")[0] for line in lines))
    assert sum(p["endValue"] for p in profiles) == single["self_ns"].sum()
    # The fields that speedscope's schema asks for.
    assert content["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert all(frame.keys() == {"name"} for frame in content["shared"]["frames"])
    for profile in profiles:
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "nanoseconds", 0)
        assert sum(profile["weights"]) == profile["endValue"]
        assert len(profile["weights"]) == len(profile["samples"])
        assert all(f < len(content["shared"]["frames"]) for stack in profile["samples"] for f in stack)


def test_folded_stacks_cannot_be_broken_by_names(tmp_path: Path) -> None:
    frame = events([{"op": "a;b\nc", "layer": 3, "dur_ns": 7}], worker="w 1")
    tk.write_trace(MadeUp([frame]), tmp_path / "t.folded", format="folded")
    assert (tmp_path / "t.folded").read_text(encoding="utf-8") == "w 1;elementwise;a:b c;layer 3 7\n"


def test_the_command_offers_every_format_and_layout() -> None:
    offered = {p.name: p.type.choices for p in command.params if isinstance(p.type, click.Choice)}
    assert tuple(offered["form"]) == ("auto", *FORMATS)
    assert set(offered["layout"]) == {"auto", *LAYOUTS}


@pytest.mark.parametrize("form", FORMATS)
def test_the_command_writes_every_format(form: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [str(LOGS[0]), "-o", str(tmp_path / "t"), "--format", form])
    assert (done.exit_code, done.stdout) == (0, "")
    tk.write_trace(tk.read(LOGS[0]), tmp_path / "same", format=form)
    assert (tmp_path / "t").read_bytes() == (tmp_path / "same").read_bytes()


def test_formats_that_are_unknown_or_cannot_be_deflated(tmp_path: Path) -> None:
    source = MadeUp([events([{}])])
    with pytest.raises(UsageError, match="speedscope"):
        tk.write_trace(source, tmp_path / "t", format="svg")
    with pytest.raises(UsageError, match="gzip"):
        tk.write_trace(source, tmp_path / "t", format="folded", compress=True)
    with pytest.raises(UsageError, match="shape"):
        tk.write_trace(source, tmp_path / "t", arguments=["form"])
    assert list(tmp_path.iterdir()) == []
