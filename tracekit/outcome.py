"""What a whole reading comes to, besides its events: summaries, steps, rejects, coverage, findings."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from tracekit import checks
from tracekit.frame import FINDINGS


@dataclass(slots=True)
class Outcome:
    """What one whole reading came to, besides its events."""

    summaries: pl.DataFrame
    steps: pl.DataFrame
    rejects: pl.DataFrame
    coverage: pl.DataFrame
    findings: pl.DataFrame
    other_markers: dict[str, int]
    #: The batch of each pass, by log: of the workers of a graph.
    passes: dict[str, list[int]] = field(default_factory=dict)


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Put the outcomes of several logs together."""
    markers: dict[str, int] = {}
    for outcome in outcomes:
        for marker, count in outcome.other_markers.items():
            markers[marker] = markers.get(marker, 0) + count
    passes = {log: widths for o in outcomes for log, widths in o.passes.items()}
    between = [finding(f.severity, f.code, "", "", f.line, f.count, f.message) for f in checks.steps_agree(passes)]
    return Outcome(
        summaries=pl.concat([o.summaries for o in outcomes]),
        steps=pl.concat([o.steps for o in outcomes]),
        rejects=pl.concat([o.rejects for o in outcomes]),
        coverage=pl.concat([o.coverage for o in outcomes]),
        findings=pl.concat([*(o.findings for o in outcomes), *between]),
        other_markers=markers,
        passes=passes,
    )


def finding(severity: str, code: str, stream: str, dialect: str, line: int, count: int, message: str) -> pl.DataFrame:
    """Return one row of schema `frame.FINDINGS`."""
    row = (severity, code, stream or None, dialect or None, line or None, count, message)
    return pl.DataFrame({c: [v] for c, v in zip(FINDINGS, row, strict=True)}, schema=FINDINGS)
