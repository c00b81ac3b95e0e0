"""What differs between two sides beside the thing under test, and what an interval rests on."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracekit.diff.costs import Center, RunCosts
from tracekit.manifest import Manifest

#: Shares of the steps that have one width may differ by so much before it is named.
_MIX = 0.01
#: Cost outside of any step is named above this part of all.
_OUTSIDE = 0.01
#: So many differences of two manifests are spelt out.
_SHOWN = 6

_HOST = ("name", "system", "kernel", "cpu", "cpus_allowed", "governor", "memory_bytes", "gpus", "drivers", "packages")


@dataclass(frozen=True, slots=True)
class Caveat:
    """Why a number may not be what it seems: a stable name, and a sentence for people."""

    code: str
    message: str


def of_runs(a: Sequence[RunCosts], b: Sequence[RunCosts], run_sd: float, center: Center) -> Iterator[Caveat]:
    """Yield what the logs themselves tell."""
    yield from _kinds(a, b)
    yield from _models(a, b)
    yield from _batches(a, b)
    for name, side in (("A", a), ("B", b)):
        yield from _steps(name, side, center)
    alone = [name for name, side in (("A", a), ("B", b)) if len(side) == 1]
    if alone:
        yield Caveat(
            "one-run",
            f"{' and '.join(alone)} {'have' if len(alone) > 1 else 'has'} one run: the interval is widened by an "
            f"assumed deviation of {100 * run_sd:g} % between runs (--run-sd)",
        )
    if any(len(side) == 1 and side[0].per == "step" and side[0].counts["steps"].max() == 1 for side in (a, b)):
        yield Caveat("one-step", "one step tells nothing about how steps differ: no interval here holds that")


def _kinds(a: Sequence[RunCosts], b: Sequence[RunCosts]) -> Iterator[Caveat]:
    for code, what, of in (
        ("engines", "engines differ", lambda r: r.family),
        ("clocks", "clocks differ, so the times do not mean the same", lambda r: r.clock),
        ("basis", "what the numbers rest on differs", lambda r: r.basis),
        ("topology", "how workers share a step differs (--topology)", lambda r: r.topology),
        ("per", "what is compared differs", lambda r: f"a {r.per}"),
    ):
        left, right = (sorted({of(r) for r in side}) for side in (a, b))
        if left != right:
            yield Caveat(code, f"{what}: A {', '.join(left)}, B {', '.join(right)}")
    if any(r.clock == "host-sync-unknown" for r in (*a, *b)):
        yield Caveat(
            "sync-unknown",
            "whether the device was waited for is not in these logs: both sides must have run with the same "
            "VLLM_XPU_DECODE_TIMING_SYNC",
        )
    if any(not r.steps.height and r.per == "step" for r in (*a, *b)):
        yield Caveat("run-means", "summaries tell no single steps: a run's mean is all that the interval rests on")
    if any(r.per == "call" for r in (*a, *b)):
        yield Caveat("per-call", "nothing tells how many steps there were: means per call are compared, and no total")


def _models(a: Sequence[RunCosts], b: Sequence[RunCosts]) -> Iterator[Caveat]:
    left, right = (sorted({r.layers for r in side if r.layers}) for side in (a, b))
    if left and right and (left != right or len(left) > 1):
        yield Caveat("layers", f"layer counts differ: A {_listed(left)}, B {_listed(right)}")
    first, second = (sorted({len(r.workers) for r in side}) for side in (a, b))
    if first != second or len(first) > 1:
        yield Caveat("workers", f"the number of workers differs: A {_listed(first)}, B {_listed(second)}")


def _batches(a: Sequence[RunCosts], b: Sequence[RunCosts]) -> Iterator[Caveat]:
    left, right = _mix(a), _mix(b)
    if not left or not right:
        return
    if any(abs(left.get(k, 0) - right.get(k, 0)) > _MIX for k in {*left, *right}):
        yield Caveat(
            "batches",
            f"batch widths differ, so a step is not the same work: A {_widths(left)}; B {_widths(right)}; choose with "
            "--phase, --steps or --where tokens=N",
        )
    elif len({phase for phase, _ in left}) > 1:
        yield Caveat("phases", f"a step is a mean over unlike ones ({_widths(left)}); choose with --phase")


def _mix(side: Sequence[RunCosts]) -> dict[tuple[str, int | None], float]:
    """Return the part of the steps that has each phase and width."""
    steps = pl.concat([r.steps.select("phase", "tokens") for r in side])
    found = steps.group_by("phase", "tokens").len().sort("len", "tokens", descending=True)
    return {(phase or "?", tokens): n / steps.height for phase, tokens, n in found.iter_rows()}


def _widths(mix: Mapping[tuple[str, int | None], float]) -> str:
    some = [f"{100 * n:.0f} % {phase} of {'?' if w is None else w}" for (phase, w), n in list(mix.items())[:3]]
    return ", ".join(some) + (f" and {len(mix) - 3} more" if len(mix) > 3 else "")


def _steps(name: str, side: Sequence[RunCosts], center: Center) -> Iterator[Caveat]:
    steps = pl.concat([r.steps.select("worker", "dur_ns", "stands_out") for r in side])
    odd = steps.filter(pl.col("stands_out") > 1)
    if odd.height:
        part = int(odd["dur_ns"].sum()) / (int(steps["dur_ns"].sum()) or 1)
        hint = "" if center == "median" else "; --center median compares the usual step"
        yield Caveat(
            "outliers",
            f"{name}: {odd.height} of {steps.height} steps take unusually long for their phase ({100 * part:.1f} % of "
            f"the time){hint}",
        )
    for note in dict.fromkeys(note for r in side for note in r.notes):
        yield Caveat("logs", f"{name}: {note}")
    uneven = [r for r in side if r.counts["steps"].n_unique() > 1]
    for run in uneven[:1]:
        counts = ", ".join(f"{w} {n}" for w, n in run.counts.iter_rows())
        yield Caveat("uneven-steps", f"{name}: the workers of {run.label} have unlike numbers of steps: {counts}")
    outside, cost = sum(r.outside_ns for r in side), sum(int(r.cells["self_ns"].sum()) for r in side)
    if outside > _OUTSIDE * (outside + cost):
        part = outside / (outside + cost)
        yield Caveat(
            "outside-steps", f"{name}: {100 * part:.0f} % of the cost stands outside of any step: not compared"
        )
    idle = sum(r.idle_ns for r in side)
    if idle:
        count = sum(max(r.counts["steps"].to_list(), default=1) for r in side)
        yield Caveat("waits", f"{name}: waits for other processes, {idle / count / 1e6:.3f} ms per step, are no cost")


def _listed(values: Sequence[int]) -> str:
    return " or ".join(map(str, values))


def of_manifests(a: Sequence[Manifest | None], b: Sequence[Manifest | None]) -> Iterator[Caveat]:
    """Yield how the captures differ: in one thing, which is then under test, in more, or in nothing."""
    known = [(name, [m for m in side if m is not None]) for name, side in (("A", a), ("B", b))]
    for name, side in known:
        for one in side:
            if not one.complete:
                how = "is not over" if one.outcome is None else f"ended {one.outcome.name}: {one.outcome.evidence}"
                yield Caveat("capture", f"{name}: the capture {one.name} {how}")
        for other in side[1:]:
            if found := _differences(side[0], other):
                yield Caveat("repeats-differ", f"{name}: its repeats are not one configuration: {_spelt(found)}")
                break
    if not all(side for _, side in known):
        return
    found = _differences(known[0][1][0], known[1][1][0])
    things = {key if kind != "build" else kind for kind, key in found}
    if not things:
        yield Caveat("manifests", "the manifests tell no difference between A and B")
    elif len(things) == 1:
        yield Caveat("manifests", f"A and B differ in {_spelt(found)}")
    else:
        yield Caveat("manifests", f"A and B differ in {len(things)} things, not in one: {_spelt(found)}")


Differences = dict[tuple[str, str], tuple[str, str]]


def _differences(a: Manifest, b: Manifest) -> Differences:
    left, right = _facts(a), _facts(b)
    keys = dict.fromkeys((*left, *right))
    pairs = {key: (left.get(key, "not there"), right.get(key, "not there")) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _spelt(found: Differences) -> str:
    some = [f"{key} ({_short(a)} | {_short(b)})" for (_, key), (a, b) in list(found.items())[:_SHOWN]]
    return "; ".join(some) + (f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _facts(manifest: Manifest) -> dict[tuple[str, str], str]:
    """Return what may matter to a time: kind (command, environment, build, host) and key, to the value."""
    found: dict[tuple[str, str], str] = {}
    for process in manifest.processes:
        found["command", f"{process.name}: command"] = shlex.join(process.argv)
        for key, value in process.env.items():
            found["environment", f"{process.name}: {key}"] = value
        for key in process.unset:
            found["environment", f"{process.name}: {key}"] = "unset"
        if process.git_commit:
            found["build", f"{process.name}: commit"] = process.git_commit
    for binary in manifest.binaries:
        identity = binary.get("build_id") or binary.get("sha256") or ""
        found["build", f"binary {Path(str(binary.get('path'))).name}"] = str(identity)
    for key in _HOST:
        if key in manifest.host:
            found["host", f"host: {key}"] = json.dumps(manifest.host[key], sort_keys=True)
    found["timing", "timed"] = "yes" if manifest.timed else "no"
    return found
