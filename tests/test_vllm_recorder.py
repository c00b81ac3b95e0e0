"""The recorder of the vLLM instrument: what it prints is read whole, and its switches mean what they say."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tracekit.errors import UsageError
from tracekit.instrument.settings import Settings
from tracekit.instrument.timing import Recorder
from tracekit.reading import Run, read

ROOT = Path(__file__).parent.parent
LABELS = ("qwen3_moe.attn.rope", "all_reduce:(1, 256):torch.bfloat16", "a b: (c)")


class Printed:
    """A recorder with a clock of its own and its lines kept."""

    def __init__(self, **variables: str) -> None:
        self.lines: list[str] = []
        self.now = 0
        settings = Settings.from_environment({f"VLLM_XPU_DECODE_TIMING_{k}": v for k, v in variables.items()})
        self.recorder = Recorder(settings, write=self._write, clock=lambda: self.now)
        self.recorder.settle_rank(1)

    def _write(self, descriptor: int, text: str) -> None:
        if descriptor == 1:
            self.lines.append(text)

    def call(self, label: str, ns: int) -> None:
        with self.recorder.region(label):
            self.now += ns

    def read(self, folder: Path) -> Run:
        (folder / "w.log").write_text("".join(f"{line}\n" for line in self.lines))
        return read(folder / "w.log")


def test_what_it_prints_is_read_whole(tmp_path: Path) -> None:
    printed = Printed(PRINT_EVERY="1", STEP_SUMMARY="1")
    recorder = printed.recorder
    recorder.begin_pass({"num_reqs": 1, "num_tokens_unpadded": 1})
    for n, label in enumerate(LABELS):
        printed.call(label, 1_234_567 + n)
        printed.call(label, 7)
    recorder.end_pass()
    recorder.print_summary()
    run = printed.read(tmp_path)
    events = run.events.select("rank", "name", "call", "dur_ns").collect().rows()
    assert events == [x for n, label in enumerate(LABELS) for x in ((1, label, 1, 1_234_567 + n), (1, label, 2, 7))]
    sums = run.summaries.filter(pl.col("step").is_null()).select("name", "calls", "total_ns", "max_ns").collect()
    assert set(sums.rows()) == {(label, 2, 1_234_574 + n, 1_234_567 + n) for n, label in enumerate(LABELS)}
    step = run.printed_steps.row(0, named=True)
    assert (step["step"], step["phase"], step["tokens"], step["status"]) == (1, "decode", 1, "ok")
    assert run.rejects.collect().is_empty()
    assert run.findings.collect().is_empty()


def test_every_nth_call_is_a_sample_and_the_first_are_skipped(tmp_path: Path) -> None:
    printed = Printed(PRINT_EVERY="4", SKIP_FIRST="3")
    for _ in range(15):
        printed.call("x", 10)
    printed.recorder.print_summary()
    run = printed.read(tmp_path)
    events = run.events.select("call", "kind").collect()
    assert events["call"].to_list() == [4, 8, 12]
    assert set(events["kind"]) == {"sample"}
    assert run.summaries.collect()["calls"].to_list() == [12]


def test_zero_means_never() -> None:
    printed = Printed(PRINT_EVERY="0", SUMMARY="0", STEP_SUMMARY="1", STEP_EVERY="0")
    printed.recorder.begin_pass({})
    printed.call("x", 10)
    printed.recorder.end_pass()
    printed.recorder.print_summary()
    assert printed.lines == []


def test_an_exception_passes_and_is_no_call() -> None:
    printed = Printed(PRINT_EVERY="1", SKIP_FIRST="1")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), printed.recorder.region("x"):
            raise ZeroDivisionError
    printed.call("x", 1)
    assert printed.lines == []  # the one call that ended is the one that is skipped
    printed.call("x", 1)
    assert len(printed.lines) == 1


def test_the_rank_stays_what_was_printed_first() -> None:
    lines: list[str] = []
    recorder = Recorder(Settings(print_every=1), write=lambda _, text: lines.append(text), clock=lambda: 0)
    recorder.record("x", 1)
    recorder.settle_rank(0)
    recorder.record("x", 1)
    assert len({line.split(" label=")[0] for line in lines}) == 1


def test_steps_are_printed_every_nth_after_the_first(tmp_path: Path) -> None:
    printed = Printed(STEP_SUMMARY="1", STEP_EVERY="2", STEP_SKIP_FIRST="3")
    for _ in range(8):
        printed.recorder.begin_pass({})
        printed.call("x", 1)
        printed.recorder.end_pass()
    steps = [json.loads(line.split("] ", 1)[1])["step"] for line in printed.lines]
    assert steps == [4, 6, 8]


def test_a_closed_output_does_not_reach_the_engine() -> None:
    def refuse(descriptor: int, text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    recorder = Recorder(Settings(print_every=1), write=refuse, clock=lambda: 0)
    recorder.record("x", 1)
    recorder.record("x", 1)


@pytest.mark.parametrize(("name", "value"), [("PRINT_EVERY", "-1"), ("SKIP_FIRST", "x"), ("LABEL_REGEX", "(")])
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"VLLM_XPU_DECODE_TIMING_{name}="):
        Settings.from_environment({f"VLLM_XPU_DECODE_TIMING_{name}": value})


@pytest.mark.parametrize("value", [None, "", "0", "yes"])
def test_without_the_variable_nothing_is_imported(value: str | None) -> None:
    code = (
        "import sys; from tracekit.instrument.vllm_plugin import register; register(); "
        "sys.exit(','.join({'polars', 'numpy', 'tracekit.instrument.hooks'} & set(sys.modules)) or None)"
    )
    variables = {} if value is None else {"VLLM_XPU_DECODE_TIMING": value}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
