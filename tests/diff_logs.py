"""Logs of made runs, as llama.cpp prints them, with noise between runs and steps and changes whose size is known."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from passes_made import Model, Row

#: Microseconds of one call.
COST = {"MUL_MAT": 400, "MUL_MAT_ID": 900, "MOE_FUSED_UP_GATE": 1500, "SOFT_MAX": 120, "ROPE": 90, "CPY": 60}
_OTHERS = 30

Change = Callable[[str, str], float]


def unchanged(_op: str, _name: str) -> float:
    return 1.0


def write_run(
    path: Path,
    seed: int,
    *,
    steps: int = 12,
    layers: range = range(4),
    run_sd: float = 0.005,
    step_sd: float = 0.01,
    change: Change = unchanged,
    hiccup: int | None = None,
    prompt: int = 0,
) -> Path:
    """Write one worker's log of decode steps: `hiccup` takes ten times as long, a `prompt` of so many rows is first."""
    rng = np.random.default_rng(seed)
    run = np.exp(rng.normal(0, run_sd))
    model = Model(layers, head=True, embedding=True)
    lines = [_line(row, 8.0) for row in model.one_pass(prompt)] if prompt else []
    for step in range(steps):
        pace = run * np.exp(rng.normal(0, step_sd)) * (10 if step == hiccup else 1)
        lines += [_line(row, pace * change(row[0], row[1])) for row in model.one_pass(1)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def _line(row: Row, pace: float) -> str:
    op, name, *ne = row
    us = round(COST.get(op, _OTHERS) * pace)
    return f"[SYCL_OP_TIMING] dev=0 op={op} name={name} ne={'x'.join(map(str, ne))} us={us}\n"


def write_side(folder: Path, side: str, runs: int, seed: int, **how: object) -> list[Path]:
    return [write_run(folder / f"{side}-{n}.log", seed + n, **how) for n in range(runs)]  # type: ignore[arg-type]
