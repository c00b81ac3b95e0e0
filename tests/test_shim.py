"""The preload shim, compiled and loaded into a program over a stand-in for ggml."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from tracekit import read
from tracekit.errors import OutputError, TracekitError, UsageError
from tracekit.shimbuild import build_shim

FAKE = Path(__file__).parent / "fake_ggml"
GCC = shutil.which("gcc") or ""

pytestmark = pytest.mark.skipif(not GCC, reason="no gcc on the path")

NODE = re.compile(
    r"\[SYCL_OP_TIMING\] dev=(?P<dev>\d+) op=(?P<op>\w+) name=(?P<name>.*) ne=(?P<ne>\d+x\d+x\d+x\d+) us=(?P<us>\d+) "
    r"v=1 graph=(?P<graph>\d+) t0_ns=(?P<t0>\d+) ns=(?P<ns>\d+) backend=(?P<backend>\S+)"
)


@dataclass(frozen=True)
class Ran:
    out: str
    err: str

    @property
    def nodes(self) -> list[re.Match[str]]:
        found = [NODE.fullmatch(line) for line in self.err.splitlines() if "SYCL_OP_TIMING" in line]
        assert None not in found, self.err
        return [match for match in found if match]

    @property
    def notices(self) -> str:
        return "\n".join(line for line in self.err.splitlines() if line.startswith("[tracekit-shim] "))


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Build the library and the program in a directory of their own; -D options distinguish them."""
    done: dict[tuple[str, ...], Path] = {}

    def make(*options: str) -> Path:
        if options not in done:
            place = tmp_path_factory.mktemp("ggml")
            common = [GCC, "-g", "-Wall", "-Wextra", "-Werror", *options, f"-I{FAKE}"]
            lib = place / "libggml-base.so"
            subprocess.run([*common, "-shared", "-fPIC", "-o", lib, FAKE / "ggml.c"], check=True)
            program = [*common, "-o", place / "llama-fake", FAKE / "program.c", lib, "-Wl,-rpath,$ORIGIN"]
            subprocess.run(program, check=True)
            done[options] = place / "llama-fake"
        return done[options]

    return make


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = build_shim(tmp_path_factory.mktemp("shim") / "shim.so", compiler=GCC)
    assert built.warnings == ""
    return built.path


def run(program: Path, shim: Path, *args: str, **env: str) -> Ran:
    done = subprocess.run(
        [program, *args], capture_output=True, text=True, check=True, timeout=20,
        env={**os.environ, "LD_PRELOAD": str(shim), **env},
    )  # fmt: skip
    return Ran(done.stdout, done.stderr)


@pytest.mark.parametrize("entry", ["worker", "sched", "unset"])
def test_every_node_with_work_prints_its_own_time(build: Callable[..., Path], shim: Path, entry: str) -> None:
    ran = run(build(), shim, entry)
    nodes = [(n["graph"], n["op"], n["name"], n["ne"]) for n in ran.nodes]
    assert nodes == [
        (graph, op, name, "8x2x1x1")
        for graph in "01"
        for op, name in (("MUL_MAT", "Qcur-0"), ("ADD", "l out?-1"))  # a line end in a name must not end the line
    ]
    for node in ran.nodes:
        work = {"MUL_MAT": 3_000_000, "ADD": 2_000_000}[node["op"]]
        # The stand-in's clock moves by the work that was waited for, and by 100 ns at each look.
        assert work < int(node["ns"]) <= work + 300
        assert int(node["us"]) == int(node["ns"]) // 1000
    assert "status=0" in ran.out
    ends = [int(n["t0"]) + int(n["ns"]) for n in ran.nodes]
    assert all(end <= int(n["t0"]) for end, n in zip(ends, ran.nodes[1:], strict=False))


def test_what_is_printed_is_read_whole(build: Callable[..., Path], shim: Path, tmp_path: Path) -> None:
    """The contract with the parser: every field of the versioned line arrives in the events."""
    ran = run(build(), shim, "worker", "SYCL3")
    log = tmp_path / "worker.log"
    log.write_text(ran.err)
    frame = read([log]).events.collect()
    assert frame["dur_ns"].to_list() == [int(n["ns"]) for n in ran.nodes]
    assert frame["start_ns"].to_list() == [int(n["t0"]) for n in ran.nodes]
    assert frame["device"].to_list() == [3, 3, 3, 3]
    assert frame["name"].cast(pl.String).to_list()[:2] == ["Qcur-0", "l out?-1"]
    assert not frame["recovered"].any()


def test_the_lines_of_the_docs_are_records(tmp_path: Path) -> None:
    """The page that defines the format shows lines that the parsers read whole."""
    page = (FAKE.parent.parent / "docs/formats-ggml.md").read_text()
    lines = re.findall(r"^(?:\[SYCL_OP_TIMING\]|\[llm-scaler\]).*$", page, re.MULTILINE)
    log = tmp_path / "page.log"
    log.write_text("\n".join(lines) + "\n")
    assert len(lines) == 2
    assert sorted(read([log]).events.collect()["dur_ns"]) == [44_650, 97_412]


def test_the_limits_are_said_once(build: Callable[..., Path], shim: Path) -> None:
    notices = run(build(), shim, "sched").notices
    assert notices.count("entry=scheduler layout=default,verified") == 1
    assert notices.count("fused kernels are split") == 1
    assert notices.endswith("end: graphs=2 lines=4 lost=0")


def test_a_wrong_layout_is_refused(build: Callable[..., Path], shim: Path) -> None:
    ran = run(build("-DSHIFTED"), shim, "worker")
    assert not ran.nodes
    assert "refused: ggml_tensor keeps its dimensions (ne) elsewhere than expected" in ran.notices
    assert "--ggml-include" in ran.notices
    assert ran.out == "status=0 own_calls=0\n"


def test_the_header_of_the_program_gives_the_layout(build: Callable[..., Path], tmp_path: Path) -> None:
    made = build_shim(tmp_path / "shim.so", ggml_include=FAKE, compiler=f"{GCC} -DSHIFTED")
    ran = run(build("-DSHIFTED"), made.path, "worker")
    assert [n["name"] for n in ran.nodes] == ["Qcur-0", "l out?-1"] * 2
    assert "layout=header,verified" in ran.notices
    refused = run(build(), made.path, "worker")
    assert not refused.nodes
    assert "refused: ggml_tensor keeps" in refused.notices


def test_a_programs_own_callback_is_left_alone(build: Callable[..., Path], shim: Path) -> None:
    ran = run(build(), shim, "own")
    assert ran.out == "status=0 own_calls=16\n"  # asked and told, four nodes, two passes
    assert not ran.nodes
    assert ran.notices.count("evaluation callback of its own") == 1


def test_remote_backends_are_left_alone_unless_asked_for(build: Callable[..., Path], shim: Path) -> None:
    name = "RPC0[127.0.0.1:50052]"
    assert not run(build(), shim, "sched", name).nodes
    both = run(build(), shim, "sched", name, TRACEKIT_OP_TIMING_SKIP="")
    assert [n["backend"] for n in both.nodes] == [name] * 4
    assert not run(build(), shim, "worker", "SYCL0", TRACEKIT_OP_TIMING_SKIP="RPC,SYC").nodes


def test_switched_off_it_prints_nothing(build: Callable[..., Path], shim: Path) -> None:
    ran = run(build(), shim, "worker", TRACEKIT_OP_TIMING="0")
    assert ran == Ran("status=0 own_calls=0\n", "")


def test_a_failure_of_the_backend_is_passed_on(build: Callable[..., Path], shim: Path) -> None:
    ran = run(build(), shim, "broken")
    assert ran.out == "status=-1 own_calls=0\n"
    assert [n["name"] for n in ran.nodes] == ["Qcur-0", "Qcur-0"]


def test_lines_go_to_a_file_of_each_process(build: Callable[..., Path], shim: Path, tmp_path: Path) -> None:
    ran = run(build(), shim, "worker", TRACEKIT_OP_TIMING_OUT=str(tmp_path / "w-%p.log"), TRACEKIT_OP_TIMING_DEV="7")
    assert ran.err == ""
    [log] = tmp_path.iterdir()
    assert re.fullmatch(r"w-\d+\.log", log.name)
    assert [n["dev"] for n in Ran("", log.read_text()).nodes] == ["7"] * 4


def test_an_output_that_cannot_be_opened_is_said(build: Callable[..., Path], shim: Path, tmp_path: Path) -> None:
    ran = run(build(), shim, "worker", TRACEKIT_OP_TIMING_OUT=str(tmp_path / "no" / "w.log"))
    assert "refused: cannot append to" in ran.notices
    assert "status=0" in ran.out


def test_a_patched_ggml_is_not_timed_twice(build: Callable[..., Path], shim: Path) -> None:
    ran = run(build("-DPATCHED"), shim, "worker")
    assert not ran.nodes
    assert "source patch" in ran.notices


def test_a_statically_linked_program_is_told(tmp_path: Path, shim: Path) -> None:
    program = tmp_path / "llama-static"
    sources = [FAKE / "program.c", FAKE / "ggml.c"]
    subprocess.run([GCC, f"-I{FAKE}", "-o", program, *sources], check=True)
    ran = run(program, shim, "worker")
    assert "may be linked statically" in ran.notices
    assert not ran.nodes


def test_other_programs_see_nothing_of_it(shim: Path) -> None:
    assert run(Path("/bin/echo"), shim, "hello") == Ran("hello\n", "")


def test_each_line_is_one_write(build: Callable[..., Path], shim: Path) -> None:
    """The shim's write(2) is answered by the stand-in's, which puts a bar behind each."""
    *writes, last = run(build("-DMARK_WRITES"), shim, "worker").err.split("|")
    assert last == ""
    assert all(text.count("\n") == 1 and text.endswith("\n") for text in writes)
    assert sum(NODE.fullmatch(text.rstrip("\n")) is not None for text in writes) == 4


def test_building_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no ggml\.h in it"):
        build_shim(tmp_path / "s.so", ggml_include=tmp_path, compiler=GCC)
    with pytest.raises(UsageError, match="no such C compiler"):
        build_shim(tmp_path / "s.so", compiler="no-such-compiler")
    with pytest.raises(OutputError, match="is not a directory"):
        build_shim(tmp_path / "no" / "s.so", compiler=GCC)
    with pytest.raises(TracekitError, match="failed:"):
        build_shim(tmp_path / "s.so", compiler=f"{GCC} --no-such-option")


def test_inspect_knows_the_shim(tracekit: Callable[..., "subprocess.CompletedProcess[str]"], shim: Path) -> None:
    (file,) = json.loads(tracekit("inspect", shim, "--json").stdout)["files"]
    (found,) = file["hooks"]
    assert (found["variable"], found["markers"]) == ("TRACEKIT_OP_TIMING", ["[SYCL_OP_TIMING]"])
