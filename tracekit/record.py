"""The record of a probe: the JSON that a lab book keeps. ``docs/record.md`` tells every key.

Keys are in camel case and times in milliseconds, as in the notes that these records join; what is not known is null.
The version changes when a key changes its meaning or goes; new keys may come at any time.
"""

import glob
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from tracekit import __version__, manifest, rules
from tracekit.bench import read_bench, read_collectives
from tracekit.bucketing import Table, buckets
from tracekit.budget import Budget, budgets
from tracekit.columns import condition
from tracekit.errors import TracekitError, UsageError
from tracekit.manifest import Manifest
from tracekit.pairs import clean_tok_s
from tracekit.reading import Run
from tracekit.source import STDIN
from tracekit.table import CLOCKS, DIAGNOSTIC, ledger_of

SCHEMA = "tracekit-record"
VERSION = 1

#: The clock of kernel waits, which go under ``trace``.
_WAITS = "backlog"

#: Results of a benchmark that are throughput, and the key that each goes under.
_THROUGHPUT = {"decode": "tokSOut", "prefill": "tokSIn", "both": "tokSTotal", "total": "tokSTotal"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the person who keeps the record says and asks for.

    Attributes:
        name: ending of the key ``timingProbe``, as in ``timingProbeKqvOffloadOn``.
        label, interpretation: of the probe.
        warning: why its times are no throughput; what its clock says, if not given.
        outcome: the judgement; how the capture ended, if not given.
        top: how many buckets to name.
        timed_bench: benchmark of the timed run itself; what the capture's client printed, if it is one.
        benches: benchmarks of runs without timing; what the clean run of a pair printed, if not given.
        collectives: a probe of all-reduces.
    """

    name: str = ""
    label: str | None = None
    warning: str | None = None
    interpretation: str | None = None
    outcome: str | None = None
    top: int = 6
    timed_bench: str | None = None
    benches: Sequence[str] = ()
    collectives: str | None = None


def record(run: Run, asked: Asked, *, where: Sequence[str] = (), arrangement: str | None = None) -> dict[str, Any]:
    """Return the record of one probe.

    Args:
        run: what `tracekit.read` returned; of at most one capture.
        where, arrangement: as in `bucketing.buckets`.

    Raises:
        UsageError: the logs are of several engines or captures, or a benchmark's file is none.
    """
    kept = _capture(run)
    capture = None if kept is None else kept[1]
    timed_bench = asked.timed_bench or (None if kept is None else _own_bench(*kept))
    tables = buckets(run, ["op"], where=where, arrangement=arrangement)
    run.require_records()
    ledger = ledger_of(run)
    if not asked.benches:
        asked = replace(asked, benches=_clean_bench(run))
    benches = [b for b in (timed_bench, *asked.benches) if b is not None]
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "tracekit": __version__,
        "date": None if capture is None else _date(capture),
        "label": asked.label,
        "outcome": asked.outcome or (capture.outcome.name if capture and capture.outcome else None),
        "details": capture.outcome.evidence if capture and capture.outcome else None,
        "complete": None if capture is None else capture.complete,
        **_ran(capture),
        "runs": [row for path in asked.benches for row in _results(path)],
        **_probe(run, asked, tables, timed_bench, where, arrangement),
        "trace": _waits(run, where) if any(t.clock == _WAITS for t in tables) else None,
        "collectives": None if asked.collectives is None else _collectives(asked.collectives),
        "coverage": {k: v for k, v in ledger.items() if isinstance(v, int)}
        | {k: [f"{f['code']}: {f['message']}" for f in ledger[k]] for k in ("faults", "notes")},
        "artifacts": _artifacts(run, kept, [*benches, *filter(None, [asked.collectives])]),
    }
    return found


def _probe(
    run: Run,
    asked: Asked,
    tables: Sequence[Table],
    timed_bench: str | None,
    where: Sequence[str],
    arrangement: str | None,
) -> dict[str, Any]:
    """Return the probe of the engine's operations or regions, under its key; nothing where there is none."""
    tables = [t for t in tables if t.clock != _WAITS]
    if len(tables) > 1:
        several = ", ".join(f"{t.family} ({t.clock})" for t in tables)
        raise UsageError(f"a record is of one engine and clock, and these logs hold {several}; choose with --where")
    if not tables:
        return {"timingProbe" + asked.name: None}
    table = tables[0]
    mine = [*where, "dialect=" + ",".join(d for d, family in run.families.items() if family == table.family)]
    parts = buckets(run, ["worker", "op", "category"], where=mine, sort="group", arrangement=arrangement)[0].frame
    cost = _most_costly(table.frame, parts)
    speed = None if timed_bench is None else _decode(timed_bench)
    clean = _decode(asked.benches[0]) if len(asked.benches) == 1 else None
    # A benchmark's throughput is of decoding: other steps are not to be set against it, unless they were asked for.
    asked_phase = run.selection is not None and run.selection.phase is not None
    decoding = (speed, clean) != (None, None) and not asked_phase
    found = budgets(run, where=mine, arrangement=arrangement, tok_s=speed, decoding=decoding)
    budget = found[0] if found else None
    notes = [*table.notes, *_order_note(cost), *([_of_decode(budget)] if decoding and budget is not None else [])]
    return {
        "timingProbe" + asked.name: {
            "label": asked.label,
            "warning": asked.warning or f"{CLOCKS.get(table.clock, table.clock)}; {DIAGNOSTIC}",
            "tokSOutWithTiming": speed,
            "json": timed_bench,
            "workerTotalsMs": _worker_totals(run, table, parts, mine),
            "topBuckets": cost["op"].cast(pl.String).head(asked.top).to_list(),
            "buckets": [_bucket(row) for row in cost.head(asked.top).to_dicts()],
            "budget": None if budget is None else _budget(budget, clean),
            "interpretation": asked.interpretation,
            "notes": notes,
        }
    }


def _most_costly(ops: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of operations that are cost, by self time; by total where not every self time is known.

    Args:
        ops: the buckets of ``op``; parts: those of worker, op and category.
    """
    cost = ops.join(parts.filter(~pl.col("category").cast(pl.String).is_in(rules.NOT_COST)), on="op", how="semi")
    return cost.sort("total_ns", descending=True, maintain_order=True) if cost["self_ns"].null_count() else cost


def _order_note(cost: pl.DataFrame) -> list[str]:
    said = "buckets are ordered by their total, as not every self time is known; totals of nested regions overlap"
    return [said] if cost["self_ns"].null_count() else []


def _worker_totals(run: Run, table: Table, parts: pl.DataFrame, where: Sequence[str]) -> dict[str, float]:
    """Return the cost of each worker; what its parts do not tell is asked for that worker alone."""
    found = {}
    idle = pl.col("category").cast(pl.String).is_in(rules.NOT_COST)
    for name in parts["worker"].cast(pl.String).unique(maintain_order=True).to_list():
        own = parts.filter((pl.col("worker").cast(pl.String) == name) & ~idle)
        if not own["self_ns"].null_count():
            cost_ns = int(own["self_ns"].sum())
        elif len(table.workers) == 1:
            cost_ns = table.cost_ns
        else:
            (alone,) = buckets(run, ["worker"], where=[*where, f"worker={_literal(name)}"])
            cost_ns = alone.cost_ns
        found[name] = cost_ns / 1e6
    return found


def _literal(name: str) -> str:
    """Return the pattern of ``--where`` that a name alone matches (a comma would part it, so any sign stands for it).

    >>> _literal("rank [0],1")
    'rank [[]0]?1'
    """
    return glob.escape(name).replace(",", "?")


def _of_decode(budget: Budget) -> str:
    return (
        f"budget: a mean over {budget.steps} steps of each worker, of the decode steps alone where phases are known, "
        "since a benchmark's throughput is of decoding; --phase chooses others"
    )


def _bucket(row: Mapping[str, Any]) -> dict[str, Any]:
    times = {f"{c}Ms": _ms(row[f"{c}_ns"]) for c in ("total", "self", "mean", "p50", "p95", "max")}
    return {"op": str(row["op"]), "basis": row["basis"], "calls": row["calls"], "share": row["share"], **times}


def _budget(budget: Budget, clean: float | None) -> dict[str, Any]:
    clean_ns = None if clean is None else 1e9 * budget.tokens / clean
    return {
        "topology": budget.topology,
        "steps": budget.steps,
        "stepMs": _ms(budget.per_step_ns),
        "impliedMs": _ms(budget.implied_ns),
        "outsideMs": _ms(budget.outside_ns),
        "cleanStepMs": None if clean_ns is None else _ms(round(clean_ns)),
        "timesCleanStep": None if clean_ns is None else round(budget.per_step_ns / clean_ns, 3),
    }


def _waits(run: Run, where: Sequence[str]) -> dict[str, Any]:
    """Return count, mean, median, 95th percentile, least and largest of all kernel waits, and of each kernel."""
    wanted = condition(where) & (pl.col("clock").cast(pl.String) == _WAITS)
    waits = run.events.filter(wanted).select(pl.col("op").cast(pl.String), "dur_ns").collect()
    numbers = (
        pl.len().alias("kernelWaitSamples"),
        pl.col("dur_ns").mean().alias("avgWaitMs"),
        pl.col("dur_ns").median().alias("medianWaitMs"),
        pl.col("dur_ns").quantile(0.95, interpolation="linear").alias("p95WaitMs"),
        pl.col("dur_ns").min().alias("minWaitMs"),
        pl.col("dur_ns").max().alias("maxWaitMs"),
    )
    kernels = waits.group_by("op", maintain_order=True).agg(numbers)
    return {**_wait(waits.select(numbers).row(0, named=True)), "kernels": [_wait(row) for row in kernels.to_dicts()]}


def _wait(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _ms(round(v)) if k.endswith("Ms") else v for k, v in row.items()}


def _results(path: str) -> list[dict[str, Any]]:
    """Return the results of a benchmark: throughputs under the key of what they count."""
    rows = []
    for row in read_bench(path).to_dicts():
        key = _THROUGHPUT.get(row["what"])
        speed = {} if key is None else {key: row["tok_s"], **_spread(key, row)}
        times = {"meanMs": _ms(row["mean_ns"]), "stddevMs": _ms(row["stddev_ns"])}
        sizes = {"promptTokens": row["n_prompt"], "outputTokens": row["n_gen"]}
        known = {k: v for k, v in (speed | sizes | times).items() if v is not None}
        rows.append({"source": row["source"], "what": row["what"], "model": row["label"], **known, "json": path})
    return rows


def _spread(key: str, row: Mapping[str, Any]) -> dict[str, Any]:
    name = key[0].upper() + key[1:]
    return {f"stddev{name}": row["stddev_tok_s"], f"samples{name}": row["samples_tok_s"]}


def _collectives(path: str) -> list[dict[str, Any]]:
    rows = read_collectives(path).to_dicts()
    return [{"label": r["label"], "bytes": r["bytes"], "avgMs": _ms(r["mean_ns"])} for r in rows]


def _decode(path: str) -> float | None:
    """Return the one decode throughput of a benchmark, None if it tells none or several."""
    decode = read_bench(path).filter((pl.col("what") == "decode") & pl.col("tok_s").is_not_null())
    return float(decode["tok_s"][0]) if decode.height == 1 else None


def _capture(run: Run) -> tuple[Path, Manifest] | None:
    """Return the capture directory that the logs lie in, with its manifest; None if they lie in none."""
    found = [(one.folder, one.manifest) for one in run.captures if one.manifest is not None]
    if len(found) > 1:
        raise UsageError(f"a record is of one capture, and these are {', '.join(str(f) for f, _ in found)}")
    return found[0] if found else None


def _own_bench(folder: Path, capture: Manifest) -> str | None:
    """Return the output of the capture's main process if that is a benchmark's JSON."""
    for process in capture.processes:
        for log in process.logs:
            path = folder / log.file
            if process.name == capture.end and log.stream == "stdout" and path.suffix == ".log" and path.exists():
                with path.open("rb") as file:
                    starts = file.read(1)
                if starts in (b"[", b"{"):
                    try:
                        read_bench(path)
                    except UsageError:
                        return None
                    return str(path)
    return None


def _clean_bench(run: Run) -> list[str]:
    """Return the output of the clean run beside a timed one, where it tells a throughput."""
    try:
        found = clean_tok_s(run.captures)
    except TracekitError:
        return []
    return [] if found is None else [str(found[1])]


def _date(capture: Manifest) -> str:
    return datetime.fromtimestamp(capture.started.wall_ns / 1e9, UTC).date().isoformat()


def _ran(capture: Manifest | None) -> dict[str, Any]:
    """Return what was run: the command, the environment that all timed processes share, each process."""
    if capture is None:
        return {"command": None, "environment": None, "processes": []}
    timed = [p for p in capture.processes if p.timed] or capture.processes
    shared = {k: v for k, v in (timed[0].env if timed else {}).items() if all(p.env.get(k) == v for p in timed)}
    processes = [
        {
            "name": p.name,
            "command": shlex.join(p.argv),
            "environment": {k: v for k, v in p.env.items() if shared.get(k) != v},
            "timed": p.timed,
            "status": p.status,
            "commit": p.git_commit,
        }
        for p in capture.processes
    ]
    main = next((p["command"] for p in processes if p["name"] == capture.end), None)
    return {"command": main, "environment": shared, "processes": processes}


def _artifacts(run: Run, kept: tuple[Path, Manifest] | None, benches: Sequence[str]) -> list[dict[str, Any]]:
    """Return the files that the record rests on, with size and SHA-256, then the programs that ran."""
    paths = [s.path for s in run.streams if s.path != STDIN]
    paths += [] if kept is None else [str(kept[0] / manifest.FILE)]
    files = [_file(path) for path in dict.fromkeys([*paths, *benches])]
    binaries = [] if kept is None else kept[1].binaries
    return files + [
        {"path": b.get("path"), "bytes": b.get("size"), "sha256": b.get("sha256"), "buildId": b.get("build_id")}
        for b in binaries
    ]


def _file(path: str) -> dict[str, Any]:
    with Path(path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"path": path, "bytes": file.tell(), "sha256": digest}


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6
