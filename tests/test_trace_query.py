"""`tracekit query`: the named queries on a stand-in for trace_processor's tables, and what happens without a binary."""

import re
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import Command
from made_up import MadeUp, events
from trace_check import Read, read_trace

import tracekit as tk
from tracekit.cli import main
from tracekit.cli.query import command
from tracekit.errors import TracekitError, UsageError
from tracekit.trace import query as module
from tracekit.trace.query import named_queries, query, trace_processor

DOCS = Path(__file__).parent.parent / "docs" / "traces.md"


@pytest.fixture
def no_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def database(trace: Read) -> sqlite3.Connection:
    """Fill the columns that the named queries use, as trace_processor would."""
    made = sqlite3.connect(":memory:")
    made.executescript(
        "CREATE TABLE slice(id, ts, dur, track_id, category, name, depth, parent_id);"
        "CREATE TABLE process_track(id, upid); CREATE TABLE process(upid, name);"
    )
    for uuid, track in trace.tracks.items():
        if track.process:
            made.execute("INSERT INTO process VALUES (?, ?)", (uuid, track.process))
        else:
            made.execute("INSERT INTO process_track VALUES (?, ?)", (uuid, track.parent))
    # In the order of opening, as trace_processor numbers them.
    ordered = sorted(trace.slices, key=lambda s: (s.start_ns, s.track, -s.end_ns, s.depth))
    parents: dict[tuple[int, int], int] = {}
    for n, s in enumerate(ordered):
        parents[s.track, s.depth] = n
        parent = parents.get((s.track, s.depth - 1))
        row = (n, s.start_ns, s.dur_ns, s.track, s.category, s.name, s.depth, parent)
        made.execute("INSERT INTO slice VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    return made


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, list[tuple[object, ...]]]:
    rows = [
        {"op": "A", "category": "matmul", "layer": layer, "step": step, "dur_ns": 1000 * (layer + 1), "phase": "decode"}
        for step in (0, 1)
        for layer in (0, 1)
    ]
    frames = [
        events(rows, worker=f"w{n}", stream=f"w{n}.log").with_columns(layer=events(rows)["layer"] + 2 * n)
        for n in (0, 1)
    ]
    tk.write_trace(MadeUp(frames), tmp_path / "t.pftrace")
    made = database(read_trace(tmp_path / "t.pftrace"))
    return {name: made.execute(one.sql).fetchall() for name, one in named_queries().items()}


def test_named_queries_tell_what_they_say(answers: dict[str, list[tuple[object, ...]]]) -> None:
    assert answers["top-ops"] == [("A", "matmul", 8, 0.012, 2.0)]
    assert [row[:3] for row in answers["per-layer"]] == [
        ("layer 0", 2, 0.002), ("layer 1", 2, 0.004), ("layer 2", 2, 0.002), ("layer 3", 2, 0.004),
    ]  # fmt: skip
    assert answers["per-worker"] == [("w0", 4, 0.006), ("w1", 4, 0.006)]
    assert answers["per-step"] == [
        ("w0", "decode", "decode 0", 0.0, 0.003),
        ("w1", "decode", "decode 0", 0.003, 0.003),
        ("w0", "decode", "decode 1", 0.006, 0.003),
        ("w1", "decode", "decode 1", 0.009, 0.003),
    ]
    assert answers["gaps"] == [("w0", "decode 0", "decode 1", 3.0, 0.006), ("w1", "decode 0", "decode 1", 3.0, 0.009)]


def test_the_docs_show_the_named_queries() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for one in named_queries().values():
        assert f"`{one.name}`" in text
        assert re.sub(r"\s+", " ", one.meaning) in re.sub(r"\s+", " ", text)


@pytest.mark.usefixtures("no_binary")
def test_without_a_binary_nothing_is_fetched_and_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(*_: object) -> None:
        raise AssertionError("it was downloaded")

    monkeypatch.setattr(module, "get_perfetto_prebuilt", fetched)
    with pytest.raises(TracekitError, match=r"--trace-processor PATH.*--download"):
        trace_processor()
    with pytest.raises(UsageError, match="no such file"):
        trace_processor("/nowhere/trace_processor_shell")


@pytest.mark.usefixtures("no_binary")
def test_a_download_is_made_when_asked_for_and_may_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "get_perfetto_prebuilt", lambda *_: str(tmp_path / "shell"))
    assert trace_processor(download=True) == tmp_path / "shell"

    def offline(*_: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(module, "get_perfetto_prebuilt", offline)
    with pytest.raises(TracekitError, match="no route to host"):
        trace_processor(download=True)


@pytest.mark.usefixtures("no_binary")
def test_a_binary_on_the_path_or_from_an_earlier_download_is_found(tmp_path: Path) -> None:
    cached = module._cached()
    assert cached is not None
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert trace_processor() == cached
    program = tmp_path / "trace_processor_shell"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    assert trace_processor() == program


def test_a_program_that_does_not_start_is_told(tmp_path: Path) -> None:
    program = tmp_path / "shell"
    program.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    program.chmod(0o755)
    tk.write_trace(MadeUp([events([{}])]), tmp_path / "t.pftrace")
    with pytest.raises(TracekitError, match="cannot open"):
        query(tmp_path / "t.pftrace", "SELECT 1", program)
    with pytest.raises(UsageError, match="no such file"):
        query(tmp_path / "none.pftrace", "SELECT 1", program)


@pytest.mark.usefixtures("no_binary")
def test_the_command_ends_with_one_sentence_where_there_is_no_binary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tk.write_trace(MadeUp([events([{}])]), tmp_path / "t.pftrace")
    with pytest.raises(SystemExit) as ended:
        main(["query", str(tmp_path / "t.pftrace"), "top-ops"])
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (1, "", 1)
    assert "--trace-processor PATH" in told.err


def test_the_command_lists_queries_and_asks_for_what_it_needs() -> None:
    done = CliRunner().invoke(command, ["--list"])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(named_queries())
    assert CliRunner().invoke(command, []).exit_code == 2


@pytest.mark.parametrize(
    ("args", "words"), [(("none.pftrace", "top-ops"), "no such file"), ((__file__, "top-op"), "the name of a query: ")]
)
def test_what_is_wrong_is_said_before_a_program_is_looked_for(
    tracekit: Command, args: tuple[str, str], words: str
) -> None:
    done = tracekit("query", *args, "--trace-processor", "/nowhere/shell")
    assert done.returncode == 2
    assert words in done.stderr
