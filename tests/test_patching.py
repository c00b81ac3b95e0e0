"""Source patches: which tree is accepted, all or nothing, undoing; and what the patched programs print."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from engine_trees import TREES, compiled, plant, snapshot
from hypothesis import given
from hypothesis import strategies as st

from tracekit import hunks, patching, read
from tracekit.errors import UsageError
from tracekit.hunks import Hunk, HunkError
from tracekit.patching import PatchError, apply, check, find, revert

NAMES = sorted(TREES)
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def git(tree: Path, *args: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", tree, *identity, *args], check=True, capture_output=True)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tree(tmp_path: Path, name: str) -> Path:
    """A tree that git holds, unchanged."""
    plant(tmp_path, name)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "upstream")
    return tmp_path


def test_applied_and_undone_leaves_every_byte_as_it_was(tree: Path, name: str) -> None:
    patch, before = find(name), snapshot(tree)
    assert check(tree, patch).state == "ready"
    report = apply(tree, patch)
    assert check(tree, patch).state == "applied"
    changed = {path for path, content in snapshot(tree).items() if before.get(path) != content}
    assert changed == set(report.files)
    assert revert(tree, patch) == ()
    assert snapshot(tree) == before


def test_only_lines_are_added(tree: Path, name: str) -> None:
    patch, before = find(name), snapshot(tree)
    apply(tree, patch)
    for path, content in before.items():
        kept = iter(snapshot(tree)[path].split(b"\n"))
        assert all(line in kept for line in content.split(b"\n")), path


def test_the_other_patches_know_it_is_not_their_tree(tree: Path, name: str) -> None:
    for other in NAMES:
        if other != name:
            assert check(tree, find(other)).state == "absent"


def test_the_diff_is_one_that_patch_takes(tree: Path, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """GNU patch, where it is installed, puts the lines where tracekit puts them."""
    program = shutil.which("patch")
    if program is None:
        pytest.skip("GNU patch is not installed")
    twin = plant(tmp_path_factory.mktemp("twin"), name)
    subprocess.run([program, "-p1", "-d", twin, "--quiet"], input=find(name).diff, text=True, check=True)
    apply(tree, find(name))
    for path in find(name).blobs:
        assert (twin / path).read_text() == (tree / path).read_text()


def test_uncommitted_changes_are_refused(tree: Path, name: str) -> None:
    patch = find(name)
    path = next(iter(patch.blobs))
    (tree / path).write_text((tree / path).read_text() + "// mine\n")
    before = snapshot(tree)
    with pytest.raises(PatchError, match=f"{re.escape(path)} has changes that are not committed"):
        apply(tree, patch)
    assert snapshot(tree) == before


def test_an_unknown_version_is_refused_with_the_place(tree: Path, name: str) -> None:
    patch = find(name)
    hunk = patch.hunks[-1]
    file = tree / hunk.path
    anchor = hunk.after[-1]
    file.write_text(file.read_text().replace(anchor, anchor + " // changed upstream"))
    git(tree, "commit", "-qam", "another version")
    before = snapshot(tree)
    with pytest.raises(PatchError, match=r"unknown version.*not found"):
        apply(tree, patch)
    assert snapshot(tree) == before


def test_a_place_found_twice_is_refused(tree: Path, name: str) -> None:
    patch = find(name)
    hunk = patch.hunks[0]
    file = tree / hunk.path
    file.write_text("\n".join([*hunk.before, *hunk.after, file.read_text()]))
    git(tree, "commit", "-qam", "another version")
    assert "found 2 times" in check(tree, patch).reasons[0]


def test_a_tree_that_prints_such_lines_is_refused(tree: Path, name: str) -> None:
    patch = find(name)
    file = tree / next(iter(patch.blobs))
    file.write_text(file.read_text() + f"// {patch.forbids[0]}\n")
    git(tree, "commit", "-qam", "their own timing")
    assert "prints such lines itself" in check(tree, patch).reasons[0]


def test_what_is_applied_is_not_applied_again(tree: Path, name: str) -> None:
    apply(tree, find(name))
    with pytest.raises(PatchError, match="in this tree already"):
        apply(tree, find(name))


def test_a_patch_that_is_there_in_part_is_neither_applied_nor_undone(tree: Path, name: str) -> None:
    patch = find(name)
    apply(tree, patch)
    file = tree / patch.hunks[0].path
    file.write_text(file.read_text().replace(patch.hunks[0].added[0] + "\n", ""))
    before = snapshot(tree)
    for action in (apply, revert):
        with pytest.raises(PatchError, match="there in part"):
            action(tree, patch)
    assert snapshot(tree) == before


def test_a_changed_header_of_ours_is_not_thrown_away(tree: Path, name: str) -> None:
    patch = find(name)
    apply(tree, patch)
    header = tree / next(iter(patch.adds))
    header.write_text("// my own\n" + header.read_text())
    with pytest.raises(PatchError, match="not what this version of tracekit adds"):
        revert(tree, patch)
    assert header.read_text().startswith("// my own\n")


def test_changes_made_since_survive_undoing(tree: Path, name: str) -> None:
    patch = find(name)
    path = next(iter(patch.blobs))
    original = (tree / path).read_text()
    apply(tree, patch)
    (tree / path).write_text((tree / path).read_text() + "// mine\n")
    assert revert(tree, patch) == (path,)
    assert (tree / path).read_text() == original + "// mine\n"


def test_a_failure_half_way_puts_everything_back(tree: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, before = find(name), snapshot(tree)
    last = tree / list(patch.adds)[-1]
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if Path(target) == last:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(PatchError, match="No space left on device; the tree is as it was"):
        apply(tree, patch)
    assert snapshot(tree) == before


def test_line_ends_and_permissions_stay(tmp_path: Path, name: str) -> None:
    patch = find(name)
    plant(tmp_path, name, end="\r\n")
    file = tmp_path / next(iter(patch.blobs))
    file.chmod(0o640)
    before = snapshot(tmp_path)
    apply(tmp_path, patch)
    assert b"\n" not in file.read_bytes().replace(b"\r\n", b"")
    assert file.stat().st_mode & 0o777 == 0o640
    revert(tmp_path, patch)
    assert snapshot(tmp_path) == before


def test_a_tree_without_git_is_taken_by_its_places_and_that_is_said(tmp_path: Path, name: str) -> None:
    report = check(plant(tmp_path, name), find(name))
    assert report.state == "ready"
    assert not report.exact
    assert "whether the files were changed is not known" in report.notes[0]


def test_the_very_version_is_known_by_its_hash(tree: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = find(name)
    hashes = {path: (patching.blob_hash((tree / path).read_bytes()),) for path in patch.blobs}
    object.__setattr__(patch, "blobs", hashes)
    try:
        report = check(tree, patch)
    finally:
        patching.patches.cache_clear()
    assert report.exact
    assert report.notes == ()


def test_git_agrees_on_the_hash(tree: Path) -> None:
    file = next(file for file in tree.rglob("*") if file.is_file() and ".git" not in file.parts)
    told = subprocess.run(["git", "hash-object", file], capture_output=True, text=True, check=True).stdout.strip()
    assert patching.blob_hash(file.read_bytes()) == told


lines = st.lists(st.sampled_from(["a", "b", "{", "}", "", "  x"]), min_size=2, max_size=12)


@given(lines, st.data())
def test_removing_undoes_adding(text: list[str], data: st.DataObject) -> None:
    """Where a place is unique, the lines come out as they went in; elsewhere nothing is guessed."""
    at = data.draw(st.integers(1, len(text) - 1))
    hunk = Hunk("f", "", (text[at - 1],), ("ours", "a"), (text[at],))
    unique = sum(text[i : i + 2] == text[at - 1 : at + 1] for i in range(len(text) - 1)) == 1
    if not unique:
        with pytest.raises(HunkError, match="times"):
            hunks.add(text, [hunk])
        return
    added = hunks.add(text, [hunk])
    assert added == [*text[:at], "ours", "a", *text[at:]]
    assert hunks.remove(added, [hunk]) == text


@pytest.mark.parametrize(
    "text",
    ["+++ b/f\n@@ -1,2 +1,1 @@\n a\n-b\n", "+++ b/f\n@@ -1 +1 @@\n a\n", "+++ b/f\n@@ -1 +1,2 @@\n+x\n",
     "+++ b/f\n@@ -1 +1,3 @@\n+x\n a\n+y\n", "@@ -1 +1,2 @@\n a\n+x\n"],
)  # fmt: skip
def test_a_patch_file_that_does_more_than_add_is_refused(text: str) -> None:
    with pytest.raises(HunkError):
        hunks.parse(text, "bad.patch")


def test_shipped_patches_add_only_their_own_lines_and_one_line_of_context() -> None:
    for patch in patching.patches():
        assert patch.kind == "preload" or patch.hunks
        for hunk in patch.hunks:
            assert len(hunk.before) <= 1
            assert len(hunk.after) <= 1
            assert all("tracekit" in line or line.strip() == "}" for line in hunk.added)


# --- what the patched programs print --------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no g++ on the path")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The imitated trees, patched and compiled against the stand-in for SYCL."""
    made = {}
    for each in NAMES:
        tree = plant(tmp_path_factory.mktemp("tree"), each)
        apply(tree, find(each))
        made[each] = compiled(tree, each)
    return made


def run(program: Path, **env: str) -> tuple[str, str]:
    clean = {k: v for k, v in os.environ.items() if "RANK" not in k}
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=20, env={**clean, **env})
    return done.stdout, done.stderr


def events(text: str, place: Path) -> pl.DataFrame:
    log = place / "worker.log"
    log.write_text(text)
    got = read([log])
    frame = got.events.collect()
    assert len(frame) == sum("TIMING]" in line or "moe-kernel]" in line for line in text.splitlines())
    return frame


@needs_compiler
@pytest.mark.parametrize("off", [{}, {"GGML_SYCL_OP_TIMING": "0"}, {"GGML_SYCL_OP_TIMING": ""}])
def test_switched_off_a_patched_program_neither_waits_nor_prints(
    programs: dict[str, Path], off: dict[str, str]
) -> None:
    for each in NAMES:
        out, err = run(programs[each], **off)
        assert err == ""
        assert "waits=0" in out


@needs_compiler
@pytest.mark.parametrize("switch", ["GGML_SYCL_OP_TIMING", "TRACEKIT_OP_TIMING"])
def test_llama_times_each_round_of_its_loop(programs: dict[str, Path], tmp_path: Path, switch: str) -> None:
    out, err = run(programs["llama-cpp-sycl"], **{switch: "1"})
    assert "recorded" not in out  # a queue that records a graph cannot be waited for
    frame = events(err, tmp_path)
    assert frame["name"].cast(pl.String).to_list() == ["Qcur-0", "l_out-0"] * 2
    assert frame["device"].to_list() == [2] * 4
    starts = frame["start_ns"].to_list()
    assert starts == sorted(starts)
    tails = re.findall(r"graph=(\d) .* backend=SYCL2(.*)", err)
    assert tails == [("0", " fused=1"), ("0", ""), ("1", " fused=1"), ("1", "")]
    assert "waits=6" in out  # one a graph, one an operation


@needs_compiler
def test_ik_times_each_operation(programs: dict[str, Path], tmp_path: Path) -> None:
    out, err = run(programs["ik-llama-cpp-sycl"], GGML_SYCL_OP_TIMING="1")
    frame = events(err, tmp_path)
    assert frame["name"].cast(pl.String).to_list() == ["Qcur-0", "bias ne=1 (copy)", "l_out-0"] * 2
    assert "fused" not in err
    assert "waits=8" in out


@needs_compiler
def test_device_time_stands_beside_the_wait_where_the_queue_profiles(programs: dict[str, Path], tmp_path: Path) -> None:
    program = programs["ik-llama-cpp-sycl"]
    both = {"GGML_SYCL_OP_TIMING": "1", "TRACEKIT_OP_TIMING_PROFILE": "1"}
    _, err = run(program, **both, STUB_PROFILING="1")
    assert re.findall(r"device_span_ns=(\d+)", err) == ["500", "20", "20"] * 2
    assert len(events(err, tmp_path)) == 6
    _, err = run(program, **both)
    assert "device_span=unavailable" in err
    assert "device_span_ns" not in err
    _, err = run(program, GGML_SYCL_OP_TIMING="1", STUB_PROFILING="1")
    assert "device_span_ns" not in err


@needs_compiler
def test_a_lost_device_is_said_and_not_timed(programs: dict[str, Path], tmp_path: Path) -> None:
    """The device goes after the first operation: five operations and the start of the second graph are left."""
    _, err = run(programs["ik-llama-cpp-sycl"], GGML_SYCL_OP_TIMING="1", STUB_LOST="1")
    assert len(events(err, tmp_path)) == 1
    assert err.count("an operation was not timed: device lost") == 5
    assert err.count("could not be waited for before a graph: device lost") == 1


@needs_compiler
def test_llm_scaler_prints_one_whole_record_per_kernel(programs: dict[str, Path], tmp_path: Path) -> None:
    program = programs["llm-scaler-moe"]
    out, err = run(program, LLM_SCALER_MOE_TRACE_KERNELS="1", LOCAL_RANK="3", STUB_PROFILING="1")
    assert "waits=2 clock=90300" in out  # both kernels ran, once each
    frame = events(err, tmp_path)
    assert frame["name"].cast(pl.String).to_list() == ["moe up routed int4", "a 'quoted' (name]"]
    assert frame["device"].to_list() == [1, 1]
    numbers = r" wait_ms=(\d+\.\d{6}) v=1 count=(\d) pid=\d+ t0_ns=\d+ ns=(\d+) submit_ns=\d+ rank=3 device_ns=44650\n"
    found = re.findall(r'kernel="[^"]*"' + numbers, err)
    assert [count for _, count, _ in found] == ["1", "2"]
    assert frame["dur_ns"].to_list() == [round(float(ms) * 1e6) for ms, _, _ in found] == [int(ns) for *_, ns in found]
    _, err = run(program, TRACEKIT_OP_TIMING="1")
    assert "rank=" not in err
    assert "device_ns" not in err


@needs_compiler
def test_lines_go_to_a_file_per_process(programs: dict[str, Path], tmp_path: Path) -> None:
    for number, each in enumerate(NAMES):
        place = tmp_path / str(number)
        place.mkdir()
        _, err = run(programs[each], TRACEKIT_OP_TIMING="1", TRACEKIT_OP_TIMING_OUT=str(place / "w-%p.log"))
        assert err == ""
        [log] = place.iterdir()
        assert re.fullmatch(r"w-\d+\.log", log.name)
        assert "[" in log.read_text()


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_applies_checks_and_reverts(tracekit: Command, tree: Path, name: str) -> None:
    before = snapshot(tree)
    applied = tracekit("patch", "apply", tree)
    assert applied.returncode == 0
    assert applied.stdout.split() == list(check(tree, find(name)).files)
    assert "never run on Intel hardware" in applied.stderr
    checked = tracekit("patch", "check", tree, "--json")
    assert {entry["patch"]: entry["state"] for entry in json.loads(checked.stdout)["patches"]}[name] == "applied"
    assert tracekit("patch", "revert", tree).returncode == 0
    assert snapshot(tree) == before


def test_the_command_says_why_a_tree_is_refused(tracekit: Command, tmp_path: Path) -> None:
    done = tracekit("patch", "check", tmp_path)
    assert done.returncode == 1
    assert done.stdout.count("is for another tree") == len(NAMES)
    done = tracekit("patch", "apply", tmp_path)
    assert done.returncode == 1
    assert "no patch is ready" in done.stderr
    assert tracekit("patch", "check", tmp_path / "missing").returncode == 2
    assert tracekit("patch", "show", "no-such").returncode == 2


def test_the_command_shows_a_patch_whole(tracekit: Command) -> None:
    for patch in patching.patches():
        shown = tracekit("patch", "show", patch.name).stdout
        assert patch.diff in shown
        assert all(text.rstrip("\n") in shown for text in patch.adds.values())
    listed = json.loads(tracekit("patch", "list", "--json").stdout)
    assert [entry["name"] for entry in listed["patches"]] == [patch.name for patch in patching.patches()]
    assert "ggml-shim" in tracekit("patch", "list").stdout


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc on the path")
def test_the_command_builds_the_shim(tracekit: Command, tmp_path: Path) -> None:
    done = tracekit("patch", "build", "ggml-shim", "-o", tmp_path / "shim.so", "--cc", "gcc")
    assert done.returncode == 0
    assert done.stdout == f"{tmp_path / 'shim.so'}\n"
    assert (tmp_path / "shim.so").read_bytes().startswith(b"\x7fELF")


def test_a_preload_is_not_applied_to_a_tree(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="changes no source"):
        check(tmp_path, find("ggml-shim"))
