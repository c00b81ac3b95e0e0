"""`write_trace`: reads a source twice, once to see what there is and once to place and write it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracekit import __version__
from tracekit.errors import UsageError
from tracekit.trace.background import BackgroundWriter
from tracekit.trace.chrome import ChromeWriter
from tracekit.trace.flame import stacks, write_folded, write_speedscope
from tracekit.trace.layout import plan
from tracekit.trace.perfetto import PerfettoWriter
from tracekit.trace.slices import ARGUMENTS, Texts
from tracekit.trace.source import TraceSource
from tracekit.trace.survey import survey
from tracekit.trace.timeline import Progress, Timeline, TimelineWriter
from tracekit.writing import whole_file

FORMATS = ("perfetto", "chrome-json", "speedscope", "folded")


@dataclass(frozen=True, slots=True)
class TraceReport:
    """What was written.

    Attributes:
        path, format: the file.
        layout, reason: the layout that was used and why; empty for flame graphs, which have no timeline.
        slices: operations in it (of a flame graph: the calls that it sums).
        aggregates: slices that stand for samples or printed summaries.
        tracks: of all kinds (of a flame graph: workers).
        notes: what a reader must know, each one sentence.
    """

    path: Path
    format: str
    layout: str
    reason: str
    slices: int
    aggregates: int
    tracks: int
    notes: tuple[str, ...]


def write_trace(
    source: TraceSource,
    path: str | Path,
    *,
    layout: str = "auto",
    format: str = "auto",
    compress: bool = False,
    steps: range | None = None,
    where: pl.Expr | None = None,
    min_dur_ns: int = 0,
    arguments: Sequence[str] = ARGUMENTS,
    progress: Progress | None = None,
    surveyed: Callable[[], None] | None = None,
) -> TraceReport:
    """Write events as a trace. They are read twice and never held whole.

    Args:
        source: where the events come from.
        path: the file; it appears when it is complete.
        layout: one of `LAYOUTS`, or ``auto``: the best that the data allows.
        format: one of `FORMATS`, or ``auto``: by the end of the file's name (`format_of`).
        compress: deflate packets (Perfetto only): a third of the size, and every reader knows it.
        steps: only these steps (``range(100, 120)``); the timeline begins with the first of them.
        where: shows only the events for which it holds (columns of `frame.EVENTS`). The others keep their time.
        min_dur_ns: hides shorter events. They keep their time.
        arguments: what slices tell besides name and category, some of `ARGUMENTS`.
        progress: called now and then with the events written and the events there are.
        surveyed: called after the first reading, before anything is written; what it raises ends the work.

    Raises:
        UsageError: an unknown layout, format or argument; a layout that needs what the log does not tell, or for a
            flame graph.
        OutputError: the file cannot be written.
    """
    path = Path(path)
    surveyed = surveyed or (lambda: None)
    if format == "auto":
        format = format_of(path)
    if format not in FORMATS:
        raise UsageError(f"unknown trace format {format!r}; there are {', '.join(FORMATS)}")
    if unknown := [a for a in arguments if a not in ARGUMENTS]:
        raise UsageError(f"unknown argument {', '.join(unknown)}; there are {', '.join(ARGUMENTS)}")
    if compress and format != "perfetto":
        raise UsageError(f"--compress is for the perfetto format; pack a {format} file with gzip or zstd")
    if format in ("speedscope", "folded"):
        if layout != "auto":
            raise UsageError(f"layout {layout} is for timelines; a flame graph ({format}) has none")
        rows = stacks(source, steps=steps, where=_shown(where, min_dur_ns))
        surveyed()
        return _write_flame(source.label, path, format, rows)
    known = survey(source, steps=steps, where=where, min_dur_ns=min_dur_ns)
    surveyed()
    decided = plan(known, layout, source.topology)
    texts = Texts()
    with whole_file(path) as beside, beside.open("wb") as file:
        writer: TimelineWriter
        if format == "chrome-json":
            writer = ChromeWriter(file, texts)
        else:
            writer = PerfettoWriter(file, texts, compress=compress)
        with BackgroundWriter(writer) as behind:
            timeline = Timeline(source.label, known, decided, behind, texts, arguments)
            timeline.write(source, steps=steps, shown=_shown(where, min_dur_ns), progress=progress)
    counts = (timeline.slices, timeline.aggregates, timeline.tracks)
    return TraceReport(path, format, decided.layout, decided.reason, *counts, timeline.notes)


def format_of(path: Path) -> str:
    """Return the format that a file's name asks for.

    >>> [format_of(Path(name)) for name in ("a.pftrace", "a.json", "a.speedscope.json", "a.folded", "a")]
    ['perfetto', 'chrome-json', 'speedscope', 'folded', 'perfetto']
    """
    return next((form for end, form in _ENDINGS.items() if path.name.endswith(end)), "perfetto")


_ENDINGS = {".speedscope.json": "speedscope", ".json": "chrome-json", ".folded": "folded"}


def _shown(where: pl.Expr | None, min_dur_ns: int) -> pl.Expr | None:
    """Return the condition for an event to be shown, None if all are."""
    conditions = [] if where is None else [where]
    if min_dur_ns > 0:
        conditions.append(pl.col("dur_ns") >= min_dur_ns)
    return pl.all_horizontal(conditions) if conditions else None


def _write_flame(label: str, path: Path, format: str, rows: pl.DataFrame) -> TraceReport:
    with whole_file(path) as beside, beside.open("wb") as file:
        if format == "folded":
            write_folded(rows, file)
        else:
            write_speedscope(rows, label, __version__, file)
    note = "widths are self time in ns, summed over calls; samples and printed summaries are left out"
    return TraceReport(path, format, "", "", int(rows["calls"].sum()), 0, rows["worker"].n_unique(), (note,))
