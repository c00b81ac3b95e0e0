"""Which layout a timeline has, why, and when each worker's part of each step begins in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import polars as pl

from tracekit.columns import natural_order
from tracekit.errors import UsageError
from tracekit.trace.survey import Survey

Layout = Literal["sequential", "pipeline", "ranks", "arrival", "start"]

#: The layouts, each with what it does.
LAYOUTS: dict[Layout, str] = {
    "sequential": "each worker packed back to back from zero, in printed order",
    "pipeline": "workers that hold consecutive layers run one after another along a step",
    "ranks": "tensor-parallel ranks aligned at the start of each step",
    "arrival": "an operation ends when its line arrived, as stamped by tracekit run",
    "start": "an operation starts when the instrument says it did",
}

#: What the track of operations says of its times.
TIMES: dict[Layout, str] = {
    "sequential": "packed back to back; no times are known",
    "pipeline": "packed, one worker after another in a step; no times are known",
    "ranks": "packed, ranks aligned at step starts; no times are known",
    "arrival": "ends when its line arrived",
    "start": "starts as printed",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout that was decided on.

    Attributes:
        layout: its name; reason: why this one.
        starts: start of a part, by strand, run and step; strands that are not in it are packed from zero.
        flows: the parts of a step that follow one another: ``(strand, run, step)`` before and after.
        origin_ns: what is subtracted from known times.
        order: the strands of a pipeline, first to last.
    """

    layout: Layout
    reason: str
    starts: dict[tuple[int, int, int], int] = field(default_factory=dict)
    flows: list[tuple[tuple[int, int, int], tuple[int, int, int]]] = field(default_factory=list)
    origin_ns: int = 0
    order: tuple[int, ...] = ()


def plan(survey: Survey, layout: str = "auto", topology: str | None = None) -> Plan:
    """Decide on the layout and compute when the parts of steps begin; `topology` as in `TraceSource`.

    Raises:
        UsageError: the layout is unknown, or needs what the log does not tell.
    """
    if layout == "auto":
        chosen, reason = _best(survey, topology)
    elif layout in LAYOUTS:
        chosen, reason = layout, "asked for"
    else:
        raise UsageError(f"unknown layout {layout!r}; there are auto, {', '.join(LAYOUTS)}")
    if chosen == "arrival" or chosen == "start":
        _require_times(survey, chosen)
        origin = min((f.earliest_ns[chosen] for f in survey.facts if f.events), default=0)
        return Plan(chosen, reason, origin_ns=origin)
    if chosen == "sequential":
        return Plan(chosen, reason)
    order = _with_steps(survey)
    if len(order) < 2:
        raise UsageError(
            f"layout {chosen} needs two workers whose steps are known, this input has {len(order)}; "
            "use --layout sequential"
        )
    parts = survey.parts.filter(pl.col("strand").is_in(order))
    return _pipeline(parts, order, reason) if chosen == "pipeline" else _ranks(parts, order, reason)


def _best(survey: Survey, topology: str | None) -> tuple[Layout, str]:
    facts = [f for f in survey.facts if f.events]
    if not facts:
        return "sequential", "there are no single occurrences to place"
    if all(f.timed["start"] for f in facts):
        return "start", "every event has a printed start"
    if all(f.timed["arrival"] for f in facts):
        return "arrival", "every event has an arrival stamp, and not every one a printed start"
    stepped = _with_steps(survey)
    if len(stepped) > 1 and topology is not None:
        known: Layout = "pipeline" if topology == "pipeline" else "ranks"
        return known, f"no times are known; steps are, and the capture's manifest says that workers are {_ARE[known]}"
    if len(stepped) > 1:
        layers = sorted(r for s in stepped if (r := survey.facts[s].layers) is not None)
        if len(layers) > 1 and all(a[1] < b[0] for a, b in pairwise(layers)):
            reason = "no times are known; steps are, and the workers hold consecutive layers"
            return "pipeline", reason + ("" if len(layers) == len(stepped) else " (those without layers stand first)")
        ranked = all(survey.facts[s].ranks for s in stepped)
        if ranked:
            return "ranks", "no times are known; steps are, and the workers are ranks that share the layers"
    why = "no times are known"
    if len(facts) > 1:
        why += ", nor what is parallel among the workers" if len(stepped) > 1 else ", nor which steps belong together"
    return "sequential", why


_ARE = {"pipeline": "a pipeline", "ranks": "parallel"}


def _require_times(survey: Survey, which: str) -> None:
    for strand, facts in zip(survey.strands.known, survey.facts, strict=True):
        if facts.events and not facts.timed[which]:
            cure = (
                "arrival stamps are made by `tracekit run`"
                if which == "arrival"
                else "only instruments that print t0_ns know it"
            )
            raise UsageError(
                f"{strand.stream}: layout {which} needs a time for every event, and worker {strand.worker} has events "
                f"without ({cure}); use --layout auto"
            )


def _with_steps(survey: Survey) -> tuple[int, ...]:
    """Return the strands with steps: along the layers they hold, in natural order where that does not tell.

    Without layers is who only prepares the batch (llama.cpp's client looks up embeddings): first.
    """
    stepped = [n for n, f in enumerate(survey.facts) if f.has_steps]
    natural = {name: n for n, name in enumerate(natural_order([survey.strands.known[s].worker for s in stepped]))}
    return tuple(
        sorted(
            stepped,
            key=lambda s: (survey.facts[s].layers or (-1, -1), natural[survey.strands.known[s].worker], s),
        )
    )


def _pipeline(parts: pl.DataFrame, order: Sequence[int], reason: str) -> Plan:
    place = {strand: n for n, strand in enumerate(order)}
    ordered = parts.with_columns(pl.col("strand").replace_strict(place).alias("place")).sort("run", "step", "place")
    end = ordered["dur_ns"].cum_sum()
    keys = list(ordered.select("strand", "run", "step").iter_rows())
    starts = dict(zip(keys, (end - ordered["dur_ns"]).to_list(), strict=True))
    flows = [(a, b) for a, b in pairwise(keys) if a[1:] == b[1:] and a[2] >= 0]
    return Plan("pipeline", reason, starts, flows, order=tuple(order))


def _ranks(parts: pl.DataFrame, order: Sequence[int], reason: str) -> Plan:
    steps = parts.group_by("run", "step").agg(pl.col("dur_ns").max()).sort("run", "step")
    begins = steps.select("run", "step", (pl.col("dur_ns").cum_sum() - pl.col("dur_ns")).alias("start_ns"))
    placed = parts.join(begins, on=["run", "step"], how="left")
    starts = {(s, r, t): at for s, r, t, at in placed.select("strand", "run", "step", "start_ns").iter_rows()}
    return Plan("ranks", reason, starts, order=tuple(order))
