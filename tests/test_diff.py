"""Comparisons from logs to verdicts: the arithmetic, pairing, caveats, the command."""

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from diff_logs import write_run, write_side

from tracekit import manifest
from tracekit.budget import budget
from tracekit.diff.comparison import Comparison, Repeat, Settings, diff
from tracekit.diff.condition import Condition
from tracekit.diff.pairing import Pair
from tracekit.errors import TracekitError, UsageError
from tracekit.reading import Selection, read
from tracekit.stepping import steps


def repeats(*paths: Path | str, **selection: Any) -> list[Repeat]:
    found = []
    for path in paths:
        run = read(path)
        run.selection = Selection(**selection) if selection else None
        found.append(Repeat(str(path), run))
    return found


def compared(a: list[Path], b: list[Path], **how: Any) -> Comparison:
    (one,) = diff(repeats(*a), repeats(*b), Settings(**how))
    return one


def verdicts(found: Comparison) -> dict[str, str]:
    return dict(zip(found.rows[found.by[0]], found.rows["verdict"], strict=True))


def codes(found: Comparison) -> set[str]:
    return {c.code for c in found.caveats}


def faster(op: str, _name: str) -> float:
    return 0.9 if op == "MUL_MAT" else 1.0


def adds_up(found: Comparison) -> None:
    total = found.total.row(0, named=True)
    assert sum(ns for _, ns in found.waterfall) == total["delta_ns"]
    if found.settings.center == "mean":
        for column in ("per_step_a_ns", "per_step_b_ns", "delta_ns", "calls_a", "calls_b"):
            assert found.rows[column].sum() == total[column], column
            assert found.categories[column].sum() == total[column], column


@pytest.mark.parametrize("by", ["op", "category", "layer", "op,layer", "name", "worker,op"])
@pytest.mark.parametrize("center", ["mean", "median"])
def test_parts_sum_to_the_whole(tmp_path: Path, by: str, center: str) -> None:
    a = write_side(tmp_path, "a", 3, 1, steps=5)
    b = write_side(tmp_path, "b", 3, 11, steps=7, change=faster)
    found = compared(a, b, by=by.split(","), center=center)
    adds_up(found)
    assert found.total["delta_ns"].item() < 0
    assert all(row["ci_low"] <= row["ratio"] <= row["ci_high"] for row in found.rows.iter_rows(named=True))


@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_a_changed_kernel_is_named_and_others_are_not(tmp_path: Path, seed: int) -> None:
    a = write_side(tmp_path, "a", 5, seed)
    found = compared(a, write_side(tmp_path, "b", 5, seed + 10, change=faster))
    assert verdicts(found)["MUL_MAT"] == "faster"
    assert not {w for op, w in verdicts(found).items() if op != "MUL_MAT"} & {"faster", "slower"}
    assert found.rows["op"][0] == "MUL_MAT"  # the most of the change stands first
    row = found.rows.row(0, named=True)
    assert row["ratio"] == pytest.approx(row["per_step_b_ns"] / row["per_step_a_ns"], rel=1e-6)
    assert (row["ci_low"], row["ci_high"]) == (pytest.approx(0.9, abs=0.02), pytest.approx(0.9, abs=0.02))
    assert "one-run" not in codes(found)
    again = compared(a, write_side(tmp_path, "c", 5, seed + 15))
    assert not set(verdicts(again).values()) & {"faster", "slower"}


def test_a_slower_layer_is_named(tmp_path: Path) -> None:
    def slower(_op: str, name: str) -> float:
        return 1.3 if name.endswith("-2") else 1.0

    found = compared(write_side(tmp_path, "a", 4, 1), write_side(tmp_path, "b", 4, 11, change=slower), by=["layer"])
    assert {layer for layer, word in verdicts(found).items() if word == "slower"} == {2}


def test_one_run_a_side_proves_large_changes_only(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a.log", 1), write_run(tmp_path / "b.log", 2, change=lambda *_: 0.95)
    found = compared([a], [b])
    assert set(verdicts(found).values()) == {"unclear"}
    assert {"one-run", "repeats"} <= codes(found)
    assert "2.5 %" in next(c.message for c in found.caveats if c.code == "one-run")
    assert set(verdicts(compared([a], [b], run_sd=0.002)).values()) >= {"faster"}
    half = compared([a], [write_run(tmp_path / "c.log", 2, change=lambda *_: 0.5)])
    assert "unclear" not in {word for op, word in verdicts(half).items() if op in ("MUL_MAT", "MUL_MAT_ID")}


def test_what_a_step_costs_is_what_budget_says(samples: Path) -> None:
    paths = samples / "llama_rpc_worker*.log"
    found = diff(repeats(paths, phase="decode"), repeats(samples / "llama_rpc_worker0.log", phase="decode"), Settings())
    run = read(paths)
    run.selection = Selection("decode")
    whole = budget(steps(run), "ggml", "pipeline", None)
    assert found[0].total["per_step_a_ns"].item() == pytest.approx(whole.per_step_ns, abs=50)


def test_ranks_side_by_side_count_their_mean(samples: Path) -> None:
    path = samples / "vllm_eager_tp2.log"
    both = diff(repeats(path), repeats(samples / "vllm_eager_tp2_unbuffered.log"), Settings())[0]
    ranks = diff(repeats(path), repeats(samples / "vllm_eager_tp2_unbuffered.log"), Settings(by=("worker",)))[0]
    each = ranks.rows["per_step_a_ns"]
    assert set(ranks.rows["worker"]) == {"rank 0", "rank 1"}
    assert both.total["per_step_a_ns"].item() == pytest.approx(each.sum() / 2, abs=50)
    for one in (both, ranks):
        adds_up(one)
    added = diff(repeats(path), repeats(path), Settings(arrangement="pipeline"))[0]
    assert added.total["per_step_a_ns"].item() == pytest.approx(each.sum(), abs=50)
    assert {"same-log", "sync-unknown", "outliers"} <= codes(added)


def test_medians_are_not_moved_by_a_hiccup(tmp_path: Path) -> None:
    a = write_side(tmp_path, "a", 4, 1)
    b = [write_run(tmp_path / f"b-{n}.log", 20 + n, change=faster, hiccup=5 if n % 2 else None) for n in range(4)]
    means, medians = compared(a, b), compared(a, b, center="median")
    assert verdicts(means)["MUL_MAT"] == "unclear"
    assert verdicts(medians)["MUL_MAT"] == "faster"
    assert "--center median" in next(c.message for c in means.caveats if c.code == "outliers")
    adds_up(medians)


def test_fused_operations_are_paired_by_rule_or_by_hand(samples: Path) -> None:
    ik, other = samples / "ik_gemma270m_cpu.log", samples / "sycl_cpu_gemma270m.log.gz"
    by_rule = diff(repeats(ik), repeats(other), Settings())[0]
    apart = diff(repeats(ik), repeats(other), Settings(renames=False))[0]
    pair = Pair.parse("FLASH_ATTN_EXT=SOFT_MAX")
    by_hand = diff(repeats(ik), repeats(other), Settings(pairs=[pair]))[0]
    assert "FUSED_UP_GATE -> GLU+MUL_MAT" in verdicts(by_rule)
    assert verdicts(apart)["FUSED_UP_GATE"] == "only in A"
    assert "FLASH_ATTN_EXT -> SOFT_MAX" in verdicts(by_hand)
    assert not {"FLASH_ATTN_EXT", "SOFT_MAX"} & set(verdicts(by_hand))
    for one in (by_rule, apart, by_hand):
        adds_up(one)
    # What is put together is counted once: the whole is the same.
    assert by_rule.total.equals(apart.total)
    assert by_rule.categories.equals(apart.categories)
    reverse = diff(repeats(other), repeats(ik), Settings())[0]
    assert "GLU+MUL_MAT -> FUSED_UP_GATE" in verdicts(reverse)
    with pytest.raises(UsageError, match="no op of A is GONE"):
        diff(repeats(ik), repeats(other), Settings(pairs=[Pair.parse("GONE=SOFT_MAX")]))
    with pytest.raises(UsageError, match="two pairs"):
        diff(repeats(ik), repeats(other), Settings(pairs=[pair, Pair.parse("ROPE=SOFT_MAX")]))


def adding(path: Path, us: int | None) -> Path:
    """Write a log of ten steps of two layers: a product of 100 us, then (unless None) a sum of `us`."""
    ops = [("MUL_MAT", 100), *([] if us is None else [("ADD", us)])]
    step = "".join(f"[SYCL_OP_TIMING] dev=0 op={op} name=x-{n} ne=8x1x1x1 us={t}\n" for n in range(2) for op, t in ops)
    path.write_text(10 * step)
    return path


def test_calls_that_take_no_time_are_there(tmp_path: Path) -> None:
    zero, five, none = (adding(tmp_path / f"{us}.log", us) for us in (0, 5, None))
    row = compared([zero], [five]).rows.row(0, named=True)
    assert (row["op"], row["ratio"], row["delta_ns"], row["verdict"]) == ("ADD", None, 10_000, "unclear")
    assert verdicts(compared([zero], [none]))["ADD"] == "only in A"
    absent = compared([none], [zero]).categories
    assert dict(absent.select("category", "verdict").iter_rows())["elementwise"] == "only in B"


def test_logs_of_one_name_are_runs_of_their_own(tracekit: Command, tmp_path: Path) -> None:
    for n in range(2):
        for side in "ab":
            for worker in (0, 1):
                write_run(tmp_path / f"{side}{n}" / f"w{worker}.log", 10 * n + worker, steps=2)
    done = tracekit("diff", "a?/w0.log", "b?/w0.log", "--format", "json", cwd=tmp_path)
    (found,) = json.loads(done.stdout)["comparisons"]
    assert [(found[side]["runs"], found[side]["workers"]) for side in "ab"] == [(2, 1), (2, 1)]
    several = tracekit("diff", "a?/*.log", "b?/*.log", cwd=tmp_path)
    assert (several.returncode, several.stdout) == (2, "")
    assert "2 logs have one worker name, w0" in several.stderr
    assert "1 notes" not in tracekit("top", "a0", cwd=tmp_path).stderr
    assert (
        "4 logs of several directories have one worker name, w0"
        in tracekit("top", "a?/w0.log", "b?/w0.log", cwd=tmp_path).stderr
    )


def test_layers_can_be_told(tracekit: Command, samples: Path) -> None:
    log = samples / "generated" / "b_moe_kernel_waits.log"
    untold, told = (tracekit("diff", log, log, *more) for more in ([], ["--moe-layers", "62"]))
    assert "A against B per call" in untold.stdout
    assert "--moe-layers" in untold.stderr
    assert "A against B per step" in told.stdout
    assert "--moe-layers" not in told.stderr


def test_engines_meet_by_category(samples: Path) -> None:
    a, b = (
        repeats(samples / "llama_rpc_worker0.log", phase="decode"),
        repeats(samples / "vllm_eager_tp2.log", phase="decode"),
    )
    found = diff(a, b, Settings())[0]
    assert found.by == ("category",)
    assert {"engines", "clocks", "workers"} <= codes(found)
    assert verdicts(found)["moe"] == "only in B"
    assert (found.a.topology, found.b.topology) == ("pipeline", "parallel")
    adds_up(found)


def test_summaries_compare_run_means(samples: Path) -> None:
    found = diff(repeats(samples / "vllm_summary_only.log"), repeats(samples / "vllm_eager_tp1.log"), Settings())[0]
    assert found.per == "step"
    assert (found.a.basis, found.b.basis, found.a.steps, found.b.steps) == ("summary", "events", 16, 16)
    assert {"basis", "run-means"} <= codes(found)
    adds_up(found)


def test_without_steps_calls_are_compared(samples: Path) -> None:
    """Where SKIP_FIRST left one forward of seventeen, its calls do not count the steps."""
    skipped, whole = samples / "vllm_bench_skip16_every8_rank0.log", samples / "vllm_summary_only.log"
    found = diff(repeats(skipped), repeats(whole), Settings())[0]
    assert found.per == "call"
    assert found.total.is_empty()
    assert found.rows["per_step_a_ns"].null_count() == found.rows.height
    row = found.rows.filter(found.rows["op"] == "qwen3_moe.layer.total").row(0, named=True)
    assert (row["calls_a"], row["per_call_a_ns"]) == (52, 1_053_510)
    kernels = samples / "generated" / "b_moe_kernel_waits.log"
    same = diff(repeats(kernels), repeats(kernels), Settings())[0]
    assert (same.per, set(same.rows["ratio"])) == ("call", {1.0})


def test_printed_steps_are_steps(samples: Path) -> None:
    a = samples / "vllm_step_qwen36_tp4_piecewise_20260611c.rank0.log"
    found = diff(repeats(a), repeats(samples / "vllm_step_qwen36_tp4_eager_moe_20260611d.rank0.log"), Settings())[0]
    mean = steps(read(a))["dur_ns"].mean()
    assert found.total["per_step_a_ns"].item() == pytest.approx(mean, abs=50)
    assert (found.a.steps, found.b.steps) == (14, 6)
    adds_up(found)


def test_what_differs_is_named(tmp_path: Path) -> None:
    plain = write_run(tmp_path / "a.log", 1)
    deep = compared([plain], [write_run(tmp_path / "deep.log", 2, layers=range(5))])
    assert next(c.message for c in deep.caveats if c.code == "layers") == "layer counts differ: A 4, B 5"
    prompted = compared([plain], [write_run(tmp_path / "prompt.log", 3, prompt=16)])
    assert "prefill of 16" in next(c.message for c in prompted.caveats if c.code == "batches")
    both = compared([write_run(tmp_path / f"{n}.log", n, prompt=16) for n in (5,)], [tmp_path / "prompt.log"])
    assert "phases" in codes(both)
    assert not {"layers", "batches", "phases", "workers", "clocks"} & codes(compared([plain], [tmp_path / "a.log"]))
    (tmp_path / "two").mkdir()
    for n in range(2):
        write_run(tmp_path / "two" / f"w{n}.log", 7 + n, layers=range(2 * n, 2 * n + 2))
    assert "workers" in codes(compared([plain], [tmp_path / "two"]))


def test_copies_are_no_repeats(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a.log", 1), write_run(tmp_path / "b.log", 2)
    (tmp_path / "copy.log").write_bytes(a.read_bytes())
    found = compared([a, tmp_path / "copy.log"], [b])
    assert found.a.runs == 1
    assert {"copy", "one-run"} <= codes(found)
    with pytest.raises(UsageError, match="stands twice"):
        compared([a, a], [b])


def test_appended_runs_are_repeats(tmp_path: Path, samples: Path) -> None:
    text = (samples / "vllm_eager_tp2.log").read_text()
    (tmp_path / "twice.log").write_text(text + text.replace("last_ms=0.", "last_ms=1."))
    found = diff(repeats(tmp_path / "twice.log"), repeats(samples / "vllm_eager_tp2_unbuffered.log"), Settings())[0]
    assert found.a.runs == 2


def test_workers_of_other_names_are_paired_by_order(tmp_path: Path) -> None:
    for side in "ab":
        for n in range(2):
            write_run(tmp_path / side / f"{side}-worker{n}.log", n, layers=range(2 * n, 2 * n + 2))
    found = compared([tmp_path / "a"], [tmp_path / "b"], by=["worker"])
    assert set(found.rows["worker"]) == {"a-worker0", "a-worker1"}
    assert "workers-paired" in codes(found)


def test_short_operations_are_not_judged_by_their_rounding(tmp_path: Path) -> None:
    """A call of 0.9 us prints as 1, one of 1.1 us as 1 or 2: twice as long on paper."""
    a = write_side(tmp_path, "a", 3, 1)
    b = write_side(tmp_path, "b", 3, 11)
    for path, us in [(p, 1) for p in a] + [(p, 2) for p in b]:
        lines = path.read_text().splitlines()
        changed = [f"{line.rpartition('us=')[0]}us={us}" if "op=ROPE" in line else line for line in lines]
        path.write_text("\n".join(changed) + "\n")
    row = {r["op"]: r for r in compared(a, b).rows.iter_rows(named=True)}["ROPE"]
    assert (row["ratio"], row["verdict"]) == (2.0, "unclear")
    assert row["resolution_ns"] == 8 * 1000


def test_filters_of_steps_choose_steps_and_others_do_not(tmp_path: Path, samples: Path) -> None:
    a, b = (write_run(tmp_path / f"{n}.log", n, prompt=16) for n in range(2))
    by_phase = diff(repeats(a, phase="decode"), repeats(b, phase="decode"), Settings())[0]
    by_width = compared([a], [b], where=["tokens=1"])
    assert by_phase.total.equals(by_width.total)
    assert by_width.a.steps == 12
    whole, part = compared([a], [b]), compared([a], [b], where=["op=GET_ROWS,ROPE"])
    taken = part.rows["per_step_a_ns"].sum()
    assert taken == whole.rows.filter(whole.rows["op"].is_in(["GET_ROWS", "ROPE"]))["per_step_a_ns"].sum()
    # One rank of two: the mean of both, though the other has nothing of it, unless one is chosen.
    log = samples / "vllm_eager_tp2.log"
    text = "".join(
        line for line in log.read_text().splitlines(keepends=True) if "rank=1 label=qwen3_moe.attn.rope" not in line
    )
    (tmp_path / "w.log").write_text(text)
    both = compared([tmp_path / "w.log"], [log], where=["op=qwen3_moe.attn.rope"])
    first = compared([tmp_path / "w.log"], [log], where=["op=qwen3_moe.attn.rope", "worker=rank 0"])
    assert 2 * both.total["per_step_a_ns"].item() == pytest.approx(first.total["per_step_a_ns"].item(), abs=2)


def test_what_is_left_out_is_named(tmp_path: Path, samples: Path) -> None:
    a = tmp_path / "a"
    write_run(a / "w.log", 1)
    (a / "kernels.log").write_bytes((samples / "generated" / "b_moe_kernel_waits.log").read_bytes())
    found = compared([a], [write_run(tmp_path / "b.log", 2)])
    assert "A also holds llm-scaler (backlog)" in next(c.message for c in found.caveats if c.code == "not-compared")
    short = write_run(tmp_path / "short.log", 3, steps=2)
    few = diff(repeats(a / "w.log", short, first=5), repeats(tmp_path / "b.log", first=5), Settings())[0]
    assert "short.log has no cost" in next(c.message for c in few.caveats if c.code == "not-compared")
    assert few.a.runs == 1


def test_conditions() -> None:
    assert Condition.parse("total-slower:2.5%") == Condition("total-slower:2.5%", "slower", 0.025, total=True)
    assert Condition.parse("only-in-b").verdict == "only in B"
    for wrong in ("slower:2", "sloww", "slower:x%", "", "slower:1.2.3%", ":2%"):
        with pytest.raises(UsageError, match="--fail-on"):
            Condition.parse(wrong)
    for wrong in ("a", "=b", "a=", "+=b", "a+=b"):
        with pytest.raises(UsageError, match="--pair"):
            Pair.parse(wrong)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[list[str], list[str]]:
    a = write_side(tmp_path, "a", 3, 1)
    b = write_side(tmp_path, "b", 3, 11, change=lambda op, _: 1.2 if op == "ROPE" else 1.0)
    return [str(p) for p in a], [str(p) for p in b]


def options(pair: tuple[list[str], list[str]]) -> list[str]:
    return [part for name, side in zip(("--a", "--b"), pair, strict=True) for path in side for part in (name, path)]


def test_the_command(tracekit: Command, pair: tuple[list[str], list[str]]) -> None:
    done = tracekit("diff", *options(pair), "--limit", "2")
    assert done.returncode == 0, done.stderr
    assert "ROPE" in done.stdout
    assert "slower" in done.stdout
    assert "the parts add to the whole" in done.stdout
    assert "more rows" in done.stdout
    assert "3 runs of 12 steps" in done.stdout
    markdown = tracekit("diff", *options(pair), "--format", "markdown", "--by", "category").stdout
    assert "| category" in markdown
    assert markdown.startswith("### ggml, A against B")


def test_the_json(tracekit: Command, pair: tuple[list[str], list[str]]) -> None:
    done = tracekit("diff", *options(pair), "--format", "json", "--by", "worker,op", "--ledger", "none")
    found = json.loads(done.stdout)
    row = found["rows"][0]
    wanted = ["comparison", "worker", "op", "calls_a", "calls_b", "per_step_a_ns", "per_step_b_ns", "ratio", "ci_low",
              "ci_high", "p_value", "verdict"]  # fmt: skip
    assert set(wanted) <= set(row)
    assert (row["op"], row["verdict"], row["calls_a"]) == ("ROPE", "slower", 3 * 12 * 8)
    about = found["comparisons"][0]
    assert sum(p["delta_ns"] for p in about["waterfall"]) == about["total"]["delta_ns"]
    assert sum(r["delta_ns"] for r in found["rows"]) == about["total"]["delta_ns"]
    assert (about["a"]["runs"], about["min_effect"], about["run_sd"]) == (3, 0.01, 0.025)
    assert found["coverage"]["rejected"] == 0
    rows = [json.loads(line) for line in tracekit("diff", *options(pair), "--format", "jsonl").stdout.splitlines()]
    table = list(csv.DictReader(io.StringIO(tracekit("diff", *options(pair), "--format", "csv").stdout)))
    assert [r["op"] for r in rows] == [r["op"] for r in table]
    assert int(table[0]["delta_ns"]) == rows[0]["delta_ns"]


def test_three_sides_are_two_comparisons(tracekit: Command, pair: tuple[list[str], list[str]]) -> None:
    done = tracekit("diff", pair[0][0], pair[0][1], pair[1][0], "--format", "json")
    found = json.loads(done.stdout)
    assert [c["b"]["label"] for c in found["comparisons"]] == [pair[0][1], pair[1][0]]
    assert {r["comparison"] for r in found["rows"]} == {0, 1}


@pytest.mark.parametrize(
    ("condition", "status"),
    [("slower:2%", 5), ("slower:50%", 0), ("faster", 0), ("total-slower:2%", 0), ("unclear", 5), ("nonsense", 2)],
)
def test_fail_on(tracekit: Command, pair: tuple[list[str], list[str]], condition: str, status: int) -> None:
    done = tracekit("diff", *options(pair), "--fail-on", condition)
    assert done.returncode == status, done.stderr
    if status == 5:
        assert f"--fail-on {condition} holds: " in done.stderr
        assert "ROPE" in done.stdout  # the table is there all the same


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["{a}"], 2, "two sides"),
        ([], 2, "two sides"),
        (["--a", "{a}"], 2, "side B is missing"),
        (["{a}", "{b}", "--a", "{a}"], 2, "not both"),
        (["{a}", "no-such.log"], 2, "no such file"),
        (["{a}", "{b}", "--by", "step"], 2, "cannot be compared by step"),
        (["{a}", "{b}", "--by", "nothing"], 2, "no such column"),
        (["{a}", "{b}", "--by", ""], 2, "nothing to group by"),
        (["{a}", "{b}", "--min-effect", "-1"], 2, "min-effect"),
        (["{a}", "{b}", "--run-sd", "nan"], 2, "run-sd"),
        (["{a}", "{b}", "--where", "op=NOTHING"], 1, "nothing to compare"),
        (["{a}", "{b}", "--phase", "prefill"], 1, "nothing to compare"),
        (["{a}", "{empty}"], 3, "no timing record"),
        (["{a}", "{b}", "-o", "{a}"], 2, ""),
    ],
)
def test_misuse(
    tracekit: Command, tmp_path: Path, pair: tuple[list[str], list[str]], arguments: list[str], status: int, words: str
) -> None:
    empty = tmp_path / "empty.log"
    empty.write_text("nothing here\n")
    places = {"a": pair[0][0], "b": pair[1][0], "empty": str(empty)}
    before = Path(pair[0][0]).read_bytes()
    done = tracekit("diff", *(part.format(**places) for part in arguments))
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert Path(pair[0][0]).read_bytes() == before


def test_damaged_logs_compare_what_is_left(
    tracekit: Command, tmp_path: Path, pair: tuple[list[str], list[str]]
) -> None:
    text = Path(pair[1][0]).read_bytes()
    torn = tmp_path / "torn.log"
    torn.write_bytes(text[:4000] + b"\xff\xfe[SYCL_OP_TIMING] dev=0 op=\n" + text[4000:-17])
    done = tracekit("diff", pair[0][0], torn, "--strict")
    assert done.returncode == 4, done.stderr
    assert "ROPE" in done.stdout


def capture(folder: Path, seed: int, **env: str) -> Path:
    write_run(folder / "worker.log", seed)
    process = manifest.Process("worker", ["./server", "-m", "model"], "/", "./server", dict(env), [], timed=True)
    process.logs.append(manifest.Log("worker.log", "", "stdout"))
    moment = manifest.Moment(0, 0)
    whole = manifest.Manifest(
        tracekit="0", name=folder.name, presets=[], timed=True, topology=None, end="worker", command=[], cwd="/",
        started=moment, ended=moment, outcome=manifest.Outcome("ok", "", 0), capture=manifest.Capture(),
        processes=[process], host={"kernel": "6.1"},
    )  # fmt: skip
    (folder / manifest.FILE).write_text(json.dumps(asdict(whole)))
    return folder


def test_manifests_tell_what_is_under_test(tracekit: Command, tmp_path: Path) -> None:
    for n in range(2):
        capture(tmp_path / f"base-{n}", n, GGML_SYCL_X="0")
        capture(tmp_path / f"new-{n}", 10 + n, GGML_SYCL_X="1")
    done = tracekit("diff", "--a", tmp_path / "base-*", "--b", tmp_path / "new-*")
    assert "A and B differ in worker: GGML_SYCL_X (0 | 1)" in done.stdout, done.stderr
    assert "2 runs of 12 steps" in done.stdout
    capture(tmp_path / "other", 20, GGML_SYCL_X="1", OMP_NUM_THREADS="4")
    more = tracekit("diff", tmp_path / "base-0", tmp_path / "other").stdout
    assert "differ in 2 things, not in one: worker: GGML_SYCL_X (0 | 1); worker: OMP_NUM_THREADS" in more
    mixed = tracekit("diff", "--a", tmp_path / "base-0", "--a", tmp_path / "other", "--b", tmp_path / "new-1").stdout
    assert "A: its repeats are not one configuration" in mixed
    assert "tell no difference" in tracekit("diff", tmp_path / "base-0", tmp_path / "base-1").stdout


def test_an_unfinished_capture_is_named(tmp_path: Path) -> None:
    folder = capture(tmp_path / "base", 1)
    content = json.loads((folder / manifest.FILE).read_text())
    content["outcome"] = {"name": "stalled", "evidence": "no output for 60 s", "status": 124, "notes": []}
    (folder / manifest.FILE).write_text(json.dumps(content))
    found = compared([folder], [write_run(tmp_path / "b.log", 2)])
    assert "ended stalled: no output for 60 s" in next(c.message for c in found.caveats if c.code == "capture")


def test_nothing_selected_is_said(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a.log", 1), write_run(tmp_path / "b.log", 2)
    with pytest.raises(TracekitError, match="nothing to compare: A and B"):
        diff(repeats(a, first=500), repeats(b, first=500), Settings())
