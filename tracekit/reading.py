"""`read`: logs to frames. What is read is decided here; how one log is read, in `tracekit.log`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from tracekit import captured, manifest, source
from tracekit.captured import Captured
from tracekit.counters import no_counters, read_counters
from tracekit.dialect import Dialect
from tracekit.errors import NothingRecognisedError, UsageError
from tracekit.frame import EVENTS, Batch
from tracekit.framefile import FrameReading
from tracekit.log import LogReading
from tracekit.outcome import Outcome, finding, together
from tracekit.parsers import catalogue
from tracekit.source import Stream

#: Called with the bytes read and the bytes there are, over all logs.
Progress = Callable[[int, int], None]


def read(
    paths: str | Path | Sequence[str | Path],
    *,
    workers: Sequence[str] = (),
    dialects: Sequence[Dialect] | None = None,
    moe_layers: int | None = None,
) -> "Run":
    """Open logs; they are read when a result is asked for.

    Args:
        paths: files, globs, directories, ``-`` for standard input; ``.gz`` and ``.zst`` are unpacked, ``.parquet``
            files of `tracekit events` are taken as they are.
        workers: ``NAME=PATH`` overrides of the display name of the process behind a log.
        dialects: the dialects to look for; all that are known, if not given.
        moe_layers: how many layers have experts: llm-scaler's kernels tell neither step nor layer, so both are counted.

    Raises:
        UsageError: a path does not exist.
        NothingRecognisedError: a directory holds no log.

    >>> import tracekit as tk
    >>> run = tk.read("samples/llama_rpc_worker*.log")
    >>> run.events.select("worker", "op", "dur_ns").collect().height
    26208
    """
    several = [paths] if isinstance(paths, str | Path) else paths
    known = catalogue() if dialects is None else tuple(dialects)
    return Run(source.streams(several, workers), known, moe_layers)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which steps are wanted; rows that belong to no known step are then left out."""

    phase: str | None = None
    first: int = 0
    last: int | None = None

    @classmethod
    def parse(cls, phase: str | None, chosen: str | None, skip: int) -> "Selection | None":
        """Read ``--phase``, ``--steps A:B`` and ``--skip-steps``; None if all steps are wanted.

        Raises:
            UsageError: ``chosen`` is not of the form A:B.
        """
        if phase is None and chosen is None and not skip:
            return None
        start, colon, stop = (chosen or ":").partition(":")
        if not colon or not all(part.isdecimal() or not part for part in (start, stop)):
            raise UsageError(f"--steps {chosen}: expected A:B, as in 10:20")
        if stop and int(start or 0) >= int(stop):
            raise UsageError(
                f"--steps {chosen}: no step is from {start or 0} up to and without {stop}; expected A:B, as in 10:20"
            )
        return cls(phase, max(int(start or 0), skip), int(stop) if stop else None)

    @property
    def said(self) -> str:
        """The selection in words.

        >>> Selection("decode", 1).said
        'phase decode, steps 1:'
        """
        steps = f"steps {self.first}:{'' if self.last is None else self.last}"
        return steps if self.phase is None else f"phase {self.phase}, {steps}"

    def mask(self, batch: Batch) -> pl.Series:
        """Return which rows are wanted."""
        frame = batch.frame({c: EVENTS[c] for c in ("step", "phase")})
        return frame.select(self.wanted()).to_series()

    def wanted(self) -> pl.Expr:
        """Return the filter over the columns step and phase."""
        wanted = pl.col("step") >= self.first
        if self.last is not None:
            wanted &= pl.col("step") < self.last
        if self.phase is not None:
            wanted &= pl.col("phase").cast(pl.String) == self.phase
        return wanted.fill_null(value=False)


@dataclass(slots=True)
class Run:
    """Logs that were opened together; frames are lazy, each reading of them streams."""

    streams: Sequence[Stream]
    dialects: Sequence[Dialect]
    moe_layers: int | None = None
    progress: Progress | None = None
    selection: Selection | None = None
    _outcome: Outcome | None = field(default=None, init=False, repr=False)
    _captures: list[Captured] | None = field(default=None, init=False, repr=False)

    @property
    def label(self) -> str:
        """What the logs are called in a title: the path of one, else how many."""
        return self.streams[0].path if len(self.streams) == 1 else f"{len(self.streams)} logs"

    @property
    def captures(self) -> list[Captured]:
        """The captures of `tracekit run` that the logs belong to."""
        if self._captures is None:
            self._captures = captured.captures([s.path for s in self.streams])
        return self._captures

    @property
    def topology(self) -> str | None:
        """How workers share a step by the captures' manifests; None where these do not tell."""
        return captured.topology(self.captures)

    @property
    def sensors(self) -> pl.DataFrame:
        """Power, frequency and temperature that were sampled meanwhile, as `counters.read_counters` returns them."""
        return pl.concat([no_counters(), *(read_counters(c.folder) for c in self.captures)]).sort("mono_ns")

    @property
    def families(self) -> dict[str, str]:
        """The family of each dialect."""
        return {d.name: d.family for d in self.dialects}

    @property
    def resolutions(self) -> dict[str, int]:
        """What each clock's printed durations are rounded to, in ns (the coarsest dialect's)."""
        found: dict[str, int] = {}
        for d in self.dialects:
            found[d.clock] = max(found.get(d.clock, 1), d.resolution_ns)
        return found

    @property
    def events(self) -> pl.LazyFrame:
        """Timed occurrences, schema `frame.EVENTS`, in printed order within a stream."""

        def rows(
            columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _size: int | None
        ) -> Iterator[pl.DataFrame]:
            left = n_rows
            for frame in self.batches(columns):
                kept = frame if left is None else frame.head(left)
                left = None if left is None else left - kept.height
                yield kept if predicate is None else kept.filter(predicate)
                if left == 0:
                    return

        return register_io_source(rows, schema=EVENTS)

    @property
    def summaries(self) -> pl.LazyFrame:
        """Rows that were printed as aggregates, schema `frame.SUMMARIES`; with a selection, those of its steps."""
        rows = self.outcome.summaries.lazy()
        return rows if self.selection is None else rows.filter(self.selection.wanted())

    @property
    def printed_steps(self) -> pl.DataFrame:
        """Steps that the engine itself printed, schema `frame.STEPS`; with a selection, those of it."""
        return self.outcome.steps if self.selection is None else self.outcome.steps.filter(self.selection.wanted())

    @property
    def rejects(self) -> pl.LazyFrame:
        """Records that could not be read, schema `frame.REJECTS`."""
        return self.outcome.rejects.lazy()

    @property
    def coverage(self) -> pl.LazyFrame:
        """What was read, per stream and dialect, schema `frame.COVERAGE`."""
        return self.outcome.coverage.lazy()

    @property
    def findings(self) -> pl.LazyFrame:
        """Faults and notes, schema `frame.FINDINGS`."""
        return self.outcome.findings.lazy()

    @property
    def outcome(self) -> Outcome:
        """What a whole reading came to; reads the logs if that was not done yet."""
        if self._outcome is None:
            for _ in self._read():
                pass
        assert self._outcome is not None
        return self._outcome

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield events, one stream after the other, whole trees at a time; the outcome is known afterwards.

        Args:
            columns: the columns of `frame.EVENTS` that are wanted, all if None.
        """
        schema = {c: EVENTS[c] for c in (EVENTS if columns is None else columns)}
        for batches in self._selected():
            yield _in_order(batches, schema)

    def packed(self) -> Iterator[Batch]:
        """Yield events in packed form, dialects apart: what counting needs, at a fraction of the work."""
        for batches in self._selected():
            yield from batches

    def _selected(self) -> Iterator[list[Batch]]:
        for batches in self._read():
            if self.selection is None:
                yield batches
            else:
                yield [Batch(b.rows.filter(self.selection.mask(b)), b.heads, b.constants) for b in batches]

    def _read(self) -> Iterator[list[Batch]]:
        """Yield the batches of all dialects that stand together in a stream."""
        total = sum(source.size(s) for s in self.streams)
        before = 0
        done = []
        for stream in self.streams:
            if stream.parquet:
                reading: FrameReading | LogReading = FrameReading(stream)
            else:
                reading = LogReading(stream, self.dialects, len(self.streams) > 1, self.moe_layers)
                reading.source.progress = self._reporter(before, total)
            yield from reading.batches()
            before += source.size(stream)
            done.append(reading.outcome())
        self._outcome = together(done)
        silent = [path for one in self.captures for path in captured.silent(one)]
        missed = ~(pl.col("code").cast(pl.String).eq("no-records") & pl.col("stream").cast(pl.String).is_in(silent))
        self._outcome.findings = pl.concat(
            [self._outcome.findings.filter(missed), *self._of_captures(), *self._of_names()]
        )

    def _of_names(self) -> Iterator[pl.DataFrame]:
        for name, paths in source.shared_names(self.streams).items():
            said = (
                f"{len(paths)} logs of several directories have one worker name, {name}, so their calls are added: "
                "told apart by --by stream or with --worker NAME=PATH"
            )
            yield finding("note", "one-worker-name", paths[0], "", 0, len(paths), said)

    def _of_captures(self) -> Iterator[pl.DataFrame]:
        for one in self.captures:
            place = str(one.folder / manifest.FILE)
            for f in captured.findings(one):
                yield finding(f.severity, f.code, place, "", f.line, f.count, f.message)

    def require_records(self) -> None:
        """Raise if the logs held nothing that a dialect reads.

        Raises:
            NothingRecognisedError: with the dialects that were looked for.
        """
        outcome = self.outcome
        if outcome.coverage["records"].sum() or outcome.coverage["recovered"].sum():
            return
        for first in outcome.rejects.head(1).to_dicts():
            place = f"{first['stream']}:{first['line']}"
            count = f"none of {outcome.rejects.height} records could be read"
            raise NothingRecognisedError(f"{place}: {count}; the first: {first['reason']}: {first['text']}")
        for said in outcome.findings.filter(pl.col("code") == "timing-refused").head(1).to_dicts():
            raise NothingRecognisedError(f"{said['stream']}:{said['line']}: no timing record found: {said['message']}")
        code = pl.col("code").cast(pl.String)
        for said in (
            outcome.findings.filter(code.is_in(["no-log", "damaged-file", "capture-missing"]))
            .sort(code)
            .tail(1)
            .to_dicts()
        ):
            raise NothingRecognisedError(f"{said['stream']}: no timing record found: {said['message']}")
        for one in self.captures:
            if one.manifest is not None and one.manifest.role == "clean":
                timed = one.folder.parent / "timed"
                raise NothingRecognisedError(f"{one.folder}: the clean run of a pair has no timing record; see {timed}")
        looked = ", ".join(f"{d.marker}" for d in self.dialects)
        also = ""
        if outcome.other_markers:
            also = "; it does bear lines that no dialect reads yet: " + ", ".join(outcome.other_markers)
        if any(one.manifest is not None and not one.manifest.presets for one in self.captures):
            also += "; the capture was made without --preset, so nothing switched timing on"
        raise NothingRecognisedError(
            f"{self.label}: no timing record found (looked for {looked}){also}; "
            "`tracekit formats` tells what switches each on"
        )

    def _reporter(self, start: int, total: int) -> Callable[[int], None] | None:
        report = self.progress
        return None if report is None else lambda position: report(start + position, total)


def _in_order(batches: Sequence[Batch], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """Unpack batches that stand together in a stream, in printed order."""
    if len(batches) == 1:
        return batches[0].frame(schema)
    with_order = schema | {"seq": EVENTS["seq"]}
    return pl.concat([b.frame(with_order) for b in batches]).sort("seq").select(list(schema))
