"""A pair: the same work run clean and timed, so that timed costs can be set against a real throughput."""

import json
from collections.abc import Sequence
from pathlib import Path

from tracekit import manifest


def save_pair(folder: Path, runs: Sequence[manifest.Manifest]) -> None:
    """Write down which runs a pair has, and what each took.

    ``pair.json``: schema, version, runs: a row per run with ``role``, ``directory``, ``outcome``, ``duration_ns``
    (of the process that ends the run, null if it never ran).
    """
    rows = [
        {
            "role": run.role,
            "directory": run.role,
            "outcome": run.outcome.name if run.outcome else None,
            "duration_ns": _duration_ns(run),
        }
        for run in runs
    ]
    content = {"schema": "tracekit-pair", "version": 1, "runs": rows}
    (folder / manifest.PAIR_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _duration_ns(run: manifest.Manifest) -> int | None:
    end = next(p for p in run.processes if p.name == run.end)
    if end.started_mono_ns is None or end.ended_mono_ns is None:
        return None
    return end.ended_mono_ns - end.started_mono_ns
