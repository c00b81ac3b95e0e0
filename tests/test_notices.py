"""What an instrument says of itself reaches the coverage: lost records are a fault, what is not timed is a note."""

from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest

from tracekit.reading import read

BEGIN = "[tracekit-shim] v=1 pid=7 program=rpc-server entry=graph_compute layout=default,verified skip=RPC clock=X"
NODE = "[SYCL_OP_TIMING] dev=0 op=ADD name=l_out-0 ne=8x1x1x1 us=2 v=1 graph=0 t0_ns=5 ns=2100 backend=SYCL0"
KERNEL = '[llm-scaler][moe-kernel] device=0 kernel="moe up" wait_ms=0.000500 v=1 count=%d pid=%d t0_ns=%d ns=500'


def end(lines: int, lost: int = 0) -> str:
    return f"[tracekit-shim] end: graphs=1 lines={lines} lost={lost}"


def told(folder: Path, lines: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Return severity, code, count and line of what the coverage says of a log, but that it tells no layers."""
    log = folder / "worker.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    found = read(log).findings.collect().filter(pl.col("code") != "layers-unknown")
    return found.select(pl.col("severity", "code").cast(pl.String), "count", "line").rows()


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        ([BEGIN, NODE, end(1)], None),
        ([BEGIN, NODE, end(1, 3)], ("fault", "lines-not-written", 3, 3)),
        # Lines that the shim wrote and somebody lost: a filter, a full disk, a log that was cut and glued.
        ([BEGIN, NODE, end(4)], ("fault", "lost-lines", 3, 3)),
        ([BEGIN, NODE, NODE, end(2), BEGIN, NODE, end(2)], ("fault", "lost-lines", 1, 7)),
        # A worker that was killed says nothing at its end: then the numbers tell nothing.
        ([BEGIN, NODE, BEGIN, NODE, end(9)], None),
        ([BEGIN, NODE, "[tracekit-shim] stopped: a tensor's dimensions disagree"], ("fault", "timing-stopped", 1, 3)),
        (
            [NODE, *["[tracekit-sycl] an operation was not timed: device lost"] * 2],
            ("fault", "not-timed", 2, 2),
        ),
        ([NODE, "[tracekit-shim] limit: the program sets an evaluation callback"], ("note", "not-timed", 1, 2)),
        ([NODE, "[tracekit-shim] limit: every node is computed alone and waited for"], None),
        (
            [KERNEL % (1, 8, 1), "[tracekit-vllm] rank=0 torch.compile hides these, which is not: a, b"],
            ("note", "hidden-regions", 1, 2),
        ),
        (
            [NODE, "[tracekit-vllm] rank=0 standard output takes no more (Broken pipe): timing lines end here"],
            ("fault", "timing-stopped", 1, 2),
        ),
    ],
)  # fmt: skip
def test_what_an_instrument_says_is_told(
    tmp_path: Path, lines: list[str], finding: tuple[str, str, int, int] | None
) -> None:
    assert told(tmp_path, lines) == ([finding] if finding else [])


def test_a_refusal_says_why_there_is_no_record(
    tmp_path: Path, tracekit: Callable[..., "CompletedProcess[str]"]
) -> None:
    log = tmp_path / "worker.log"
    log.write_text("[tracekit-shim] refused: ggml_init() failed; nothing is timed\n")
    done = tracekit("top", log)
    assert done.returncode == 3
    assert (
        "an instrument refused to time a process; the first: [tracekit-shim] refused: ggml_init() failed" in done.stderr
    )


def test_lost_records_are_a_fault_under_strict(
    tmp_path: Path, tracekit: Callable[..., "CompletedProcess[str]"]
) -> None:
    log = tmp_path / "worker.log"
    log.write_text(f"{BEGIN}\n{NODE}\n{end(1, 2)}\n")
    done = tracekit("top", "--strict", log)
    assert done.returncode == 4
    assert "records that the shim could not write whole" in done.stderr


# -- llm-scaler's ordinals


def test_a_missing_ordinal_of_a_kernel_is_a_fault(tmp_path: Path) -> None:
    """Ordinals count all kernels of a process; two extensions in one process count twice from 1."""
    whole = [KERNEL % (n, pid, n) for n in (1, 2, 3) for pid in (8, 9)]
    assert told(tmp_path, whole) == []
    assert told(tmp_path, whole[:2] + whole[4:]) == [("fault", "lost-lines", 2, 3)]
    assert told(tmp_path, [KERNEL % (n, 8, n) for n in (1, 2, 1, 2)]) == []


def test_a_cut_record_of_the_patch_is_refused_and_leaves_the_others_alone(tmp_path: Path) -> None:
    """Records that were one write each are not torn: nothing is to be rebuilt of them."""
    lines = [KERNEL % (n, 8, n) for n in range(1, 41)]
    found = told(tmp_path, [*lines, '[llm-scaler][moe-kernel] device=0 kernel="moe u'])
    assert found == [("fault", "rejected", 1, 41)]
    events = read(tmp_path / "worker.log").events.collect()
    assert events["call"].to_list() == list(range(1, 41))
    assert not events["recovered"].any()


def test_workers_without_a_rank_are_told_apart_by_their_process(tmp_path: Path) -> None:
    """With one visible device each, every worker is device 0."""
    lines = [KERNEL % (1, 8, 1), f"{KERNEL % (1, 9, 1)} rank=2", f"{KERNEL % (1, 9, 2)} rank=x"]
    told(tmp_path, lines)
    events = read(tmp_path / "worker.log").events.collect()
    assert events["worker"].cast(pl.String).to_list() == ["pid8", "rank 2", "pid9"]
    assert events["rank"].to_list() == [None, 2, None]


def test_layers_are_counted_for_each_process(tmp_path: Path) -> None:
    """Two processes take turns on one device number: each has its own passes of two layers."""
    log = tmp_path / "worker.log"
    names = ("moe ws up int4", "moe ws down int4") * 4
    lines = [(KERNEL % (n, pid, n)).replace("moe up", name) for n, name in enumerate(names, 1) for pid in (8, 9)]
    log.write_text("".join(f"{line}\n" for line in lines))
    events = read(log, moe_layers=2).events.filter(pl.col("pid") == 8).collect()
    assert events["layer"].to_list() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert events["step"].to_list() == [0, 0, 0, 0, 1, 1, 1, 1]
