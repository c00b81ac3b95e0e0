"""`read`: logs to frames. Streams are read block by block; what must be seen whole is held until its end."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from tracekit import checks, rules, source
from tracekit.dialect import Dialect
from tracekit.enrich import label_self_ns, nest, ordinals, region_classes
from tracekit.errors import NothingRecognisedError, UsageError
from tracekit.frame import COVERAGE, EVENTS, FINDINGS, REJECTS, STEPS, SUMMARIES, Batch, conform, empty
from tracekit.parsers import catalogue
from tracekit.records import PLACE, Prescan, RecordReader, Tally
from tracekit.source import Block, Source, Stream

#: Called with the bytes read and the bytes there are, over all logs.
Progress = Callable[[int, int], None]

#: Rows that are handed on together: enough to make the cost of a call small, few enough to be light.
_BATCH_ROWS = 1 << 18

#: Blocks that are scanned ahead, each in a thread.
_AHEAD = 2

#: Rows of a Parquet file that are read at once.
_SLICE_ROWS = 1 << 20


def read(
    paths: str | Path | Sequence[str | Path],
    *,
    workers: Sequence[str] = (),
    dialects: Sequence[Dialect] | None = None,
) -> "Run":
    """Open logs; they are read when a result is asked for.

    Args:
        paths: files, globs, directories, ``-`` for standard input; ``.gz`` and ``.zst`` are unpacked, ``.parquet``
            files of `tracekit events` are taken as they are.
        workers: ``NAME=PATH`` overrides of the display name of the process behind a log.
        dialects: the dialects to look for; all that are known, if not given.

    Raises:
        UsageError: a path does not exist.
        NothingRecognisedError: a directory holds no log.

    >>> import tracekit as tk
    >>> run = tk.read("samples/llama_rpc_worker*.log")
    >>> run.events.select("worker", "op", "dur_ns").collect().height
    26208
    """
    several = [paths] if isinstance(paths, str | Path) else paths
    return Run(source.streams(several, workers), catalogue() if dialects is None else tuple(dialects))


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
        return cls(phase, max(int(start or 0), skip), int(stop) if stop else None)

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
class Outcome:
    """What one whole reading came to, besides its events."""

    summaries: pl.DataFrame
    steps: pl.DataFrame
    rejects: pl.DataFrame
    coverage: pl.DataFrame
    findings: pl.DataFrame
    other_markers: dict[str, int]


@dataclass(slots=True)
class Run:
    """Logs that were opened together; frames are lazy, each reading of them streams."""

    streams: Sequence[Stream]
    dialects: Sequence[Dialect]
    progress: Progress | None = None
    selection: Selection | None = None
    _outcome: Outcome | None = field(default=None, init=False, repr=False)

    @property
    def label(self) -> str:
        """What the logs are called in a title: the path of one, else how many."""
        return self.streams[0].path if len(self.streams) == 1 else f"{len(self.streams)} logs"

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
        for together in self._selected():
            yield _in_order(together, schema)

    def packed(self) -> Iterator[Batch]:
        """Yield events in packed form, dialects apart: what counting needs, at a fraction of the work."""
        for together in self._selected():
            yield from together

    def _selected(self) -> Iterator[list[Batch]]:
        for together in self._read():
            if self.selection is None:
                yield together
            else:
                yield [Batch(b.rows.filter(self.selection.mask(b)), b.heads, b.constants) for b in together]

    def _read(self) -> Iterator[list[Batch]]:
        """Yield the batches of all dialects that stand together in a stream."""
        total = sum(source.size(s) for s in self.streams)
        before = 0
        done = []
        for stream in self.streams:
            if stream.parquet:
                reading: _ParquetReading | _LogReading = _ParquetReading(stream)
            else:
                reading = _LogReading(stream, self.dialects, several=len(self.streams) > 1)
                reading.source.progress = self._reporter(before, total)
            yield from reading.batches()
            before += source.size(stream)
            done.append(reading.outcome())
        self._outcome = _together(done)

    def require_records(self) -> None:
        """Raise if the logs held nothing that a dialect reads.

        Raises:
            NothingRecognisedError: with the dialects that were looked for.
        """
        outcome = self.outcome
        if outcome.coverage["records"].sum() or outcome.coverage["rejected"].sum():
            return
        looked = ", ".join(f"{d.marker}" for d in self.dialects)
        also = ""
        if outcome.other_markers:
            also = "; it does bear lines that no dialect reads yet: " + ", ".join(outcome.other_markers)
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


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    markers: dict[str, int] = {}
    for outcome in outcomes:
        for marker, count in outcome.other_markers.items():
            markers[marker] = markers.get(marker, 0) + count
    return Outcome(
        summaries=pl.concat([o.summaries for o in outcomes]),
        steps=pl.concat([o.steps for o in outcomes]),
        rejects=pl.concat([o.rejects for o in outcomes]),
        coverage=pl.concat([o.coverage for o in outcomes]),
        findings=pl.concat([o.findings for o in outcomes]),
        other_markers=markers,
    )


@dataclass(slots=True)
class _ParquetReading:
    """A frame that was written by `tracekit events`, read back in slices that end with a whole tree."""

    stream: Stream
    rows: int = 0

    def batches(self) -> Iterator[list[Batch]]:
        """Yield slices; what repeats is packed again."""
        try:
            frame = pl.scan_parquet(self.stream.path)
            missing = [c for c in EVENTS if c not in frame.collect_schema()]
            height = frame.select(pl.len()).collect().item()
        except (pl.exceptions.ComputeError, OSError) as error:
            raise UsageError(f"{self.stream.path}: is no Parquet file that can be read ({error})") from error
        if missing:
            raise UsageError(
                f"{self.stream.path}: lacks the columns {', '.join(missing[:3])}; "
                "only frames of `tracekit events` can be read back"
            )
        while self.rows < height:
            part = conform(frame.slice(self.rows, _SLICE_ROWS).collect(), EVENTS)
            if self.rows + part.height < height:
                roots = np.flatnonzero(part["depth"].to_numpy() == 0)
                part = part.head(int(roots[-1]) + 1 if len(roots) else part.height)
            self.rows += part.height
            yield [_pack(part)]

    def outcome(self) -> Outcome:
        row = {"stream": self.stream.path, "dialect": "parquet", "records": self.rows}
        coverage = conform(pl.DataFrame({k: [v] for k, v in row.items()}), COVERAGE).with_columns(
            pl.col(pl.UInt64).fill_null(0)
        )
        finding = _finding(
            "note",
            "parquet",
            self.stream.path,
            "parquet",
            0,
            1,
            "a frame: what its log lost or refused is not known",
        )
        return Outcome(empty(SUMMARIES), empty(STEPS), empty(REJECTS), coverage, finding, {})


def _pack(frame: pl.DataFrame) -> Batch:
    """Pack a whole frame: its repeating columns become heads."""
    repeating = ["dialect", "stream", "worker", "op", "name", "category", "shape", "clock", "kind", "rank", "device"]
    heads = frame.select(repeating).unique(maintain_order=True).with_row_index("head")
    rows = frame.join(heads, on=repeating, how="left", nulls_equal=True, maintain_order="left")
    return Batch(rows.drop(repeating), heads.drop("head"), {})


@dataclass(slots=True)
class _LogReading:
    """One log: its lines to records to frames."""

    stream: Stream
    dialects: Sequence[Dialect]
    several: bool
    source: Source = field(init=False)
    reader: RecordReader = field(init=False)
    held: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    summaries: pl.DataFrame = field(default_factory=lambda: empty(SUMMARIES))
    steps: pl.DataFrame = field(default_factory=lambda: empty(STEPS))
    labels: list[pl.DataFrame] = field(default_factory=list)
    checked: list[tuple[str, checks.Finding]] = field(default_factory=list)
    rows: int = 0

    def __post_init__(self) -> None:
        self.source = Source(self.stream)
        self.reader = RecordReader(self.dialects, [m.text for m in rules.markers()])

    def batches(self) -> Iterator[list[Batch]]:
        """Yield events; a stream with records that must be seen whole yields from there on only at its end."""
        whole = {d.name for d in self.dialects if d.whole_stream}
        holding, waiting = False, 0
        for block, prescan in _ahead(self.source.blocks(), self.reader.prescan):
            for name, rows in self.reader.read(block, prescan).items():
                self.held.setdefault(name, []).append(rows)
                holding = holding or name in whole
                waiting += rows.height
            if waiting >= _BATCH_ROWS and not holding:
                yield self._packed(self._release())
                waiting = 0
        if self.held and (events := self._events(self._release())):
            yield self._packed(events)

    def _release(self) -> dict[str, pl.DataFrame]:
        found = {name: pl.concat(parts, how="diagonal") for name, parts in self.held.items()}
        self.held = {}
        return found

    def _events(self, found: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Finish a whole stream: find what nests, put summaries aside, compare both."""
        by_name = {d.name: d for d in self.dialects}
        events, sums = {}, {}
        for name, rows in found.items():
            dialect = by_name[name]
            if dialect.process == "process":
                rows = rows.with_columns(self._head(name, "process").gather(rows["head"]).alias("process"))
            if dialect.kind == "step":
                self._keep_steps(dialect, rows)
            elif dialect.kind == "summary":
                sums[name] = rows
            elif "call" in rows.columns:
                events[name] = self._regions(name, rows)
            else:
                events[name] = rows
        for name, rows in sums.items():
            family = [r for n, r in events.items() if by_name[n].family == by_name[name].family]
            self._summarise(by_name[name], rows, family)
        return events

    def _keep_steps(self, dialect: Dialect, rows: pl.DataFrame) -> None:
        """Keep printed steps, and their rows as summaries of that step."""
        rows = rows.sort(PLACE, maintain_order=True).with_row_index("seq")
        sums = self._batch(dialect, rows).frame(SUMMARIES)
        self.summaries = pl.concat([self.summaries, sums])
        spent = (
            label_self_ns(sums)
            .group_by("line", "worker", "rank", pl.col("category").cast(pl.String))
            .agg(
                pl.when(pl.col("self_ns").is_not_null().all()).then(pl.col("self_ns").sum()).alias("self_ns"),
                pl.col("cost_ns").sum(),
            )
            .sort("self_ns", "category", descending=[True, False], nulls_last=True)
            .group_by("line", "worker", "rank")
            .agg(pl.struct("category", "self_ns").alias("categories"), pl.col("cost_ns").sum())
        )
        steps = pl.concat(self.reader.steps[dialect.name]).join(spent, on="line", how="left", maintain_order="left")
        steps = steps.with_columns(
            pl.coalesce("dur_ns", "cost_ns").alias("dur_ns"),
            pl.lit(dialect.name).alias("dialect"),
            pl.lit(self.stream.path).alias("stream"),
            pl.lit(0).alias("run"),
        )
        self.steps = pl.concat([self.steps, conform(steps, STEPS)])

    def _head(self, name: str, column: str) -> pl.Series:
        heads = self.reader.heads[name].table
        assert heads is not None
        return heads[column]

    def _regions(self, name: str, rows: pl.DataFrame) -> pl.DataFrame:
        """Add kind, run, depth and self time: regions nest within a process's run, and samples do not nest."""
        rows = ordinals(rows)
        classes = region_classes(self._head(name, "name"))[rows["head"].to_numpy()]
        dur_ns = rows["dur_ns"].to_numpy()
        depth = np.zeros(rows.height, np.uint8)
        self_ns = dur_ns.copy()
        is_event = (rows["kind"] == "event").to_numpy()
        process = rows.select(pl.struct("process", "run").rank("dense")).to_series().to_numpy()
        for one in np.unique(process):
            mine = np.flatnonzero((process == one) & is_event)
            nesting = nest(classes[mine], dur_ns[mine])
            depth[mine], self_ns[mine] = nesting.depth, nesting.self_ns
        self._check_ordinals(name, rows)
        return rows.drop("repeated").with_columns(
            pl.Series("depth", depth), pl.Series("self_ns", pl.Series(self_ns).set(~pl.Series(is_event), None))
        )

    def _check_ordinals(self, name: str, rows: pl.DataFrame) -> None:
        labels = rows.group_by("process", "run", "head", maintain_order=True).agg(
            pl.col("kind").first(),
            pl.len().alias("n"),
            pl.col("call").min().alias("first_call"),
            pl.col("call").max(),
            pl.col("repeated").sum(),
            pl.col("line").min(),
            pl.col("dur_ns").sum().alias("total_ns"),
        )
        text = self._head(name, "name").gather(labels["head"]).alias("name")
        rank = self._head(name, "rank").gather(labels["head"]).alias("rank")
        labels = labels.with_columns(text, rank).with_columns(
            pl.concat_str(pl.lit("rank "), pl.col("process"), pl.lit(" "), pl.col("name")).alias("label")
        )
        self.labels.append(labels)
        self.checked += [(name, f) for f in (*checks.ordinals(labels), *checks.peers(labels))]

    def _summarise(self, dialect: Dialect, rows: pl.DataFrame, events: Sequence[pl.DataFrame]) -> None:
        """Keep the last row of each process, run and label: printed aggregates are cumulative."""
        if events:
            # A summary belongs to the run whose lines stand before it.
            before = pl.concat([e.select("process", "line", "run") for e in events]).sort("line")
            rows = rows.sort("line").join_asof(before, on="line", by="process", check_sortedness=False)
            rows = rows.with_columns(pl.col("run").fill_null(0))
        else:
            rows = rows.with_columns(pl.int_range(pl.len()).over("head").cast(pl.UInt16).alias("run"))
        last = rows.group_by("run", "head", maintain_order=True).last()
        last = last.with_columns(pl.Series("seq", np.arange(last.height, dtype=np.uint64)))
        self.summaries = pl.concat([self.summaries, self._batch(dialect, last).frame(SUMMARIES)])
        for labels in self.labels:
            name = self._head(dialect.name, "name").gather(last["head"]).alias("name")
            self.checked += [(dialect.name, f) for f in checks.summaries(labels, last.with_columns(name))]

    def _packed(self, found: dict[str, pl.DataFrame]) -> list[Batch]:
        """Number rows in printed order over all dialects, and pack them."""
        by_name = {d.name: d for d in self.dialects}
        height = sum(rows.height for rows in found.values())
        numbers = np.arange(self.rows, self.rows + height, dtype=np.uint64)
        self.rows += height
        if len(found) == 1:
            name, rows = next(iter(found.items()))
            return [self._batch(by_name[name], rows.with_columns(pl.Series("seq", numbers)))]
        places = pl.concat(
            [_placed(rows).select(pl.lit(name).alias("dialect"), *PLACE) for name, rows in found.items()]
        ).with_row_index()
        order = places.sort(PLACE, maintain_order=True)["index"].to_numpy()
        seq = np.empty(height, np.uint64)
        seq[order] = numbers
        batches, start = [], 0
        for name, rows in found.items():
            own = pl.Series("seq", seq[start : start + rows.height])
            batches.append(self._batch(by_name[name], rows.with_columns(own)))
            start += rows.height
        return batches

    def _batch(self, dialect: Dialect, rows: pl.DataFrame) -> Batch:
        heads = self.reader.heads[dialect.name].table
        assert heads is not None
        if "exact_ns" in rows.columns:
            rows = rows.with_columns(pl.coalesce("exact_ns", "dur_ns").alias("dur_ns"))
        if "self_ns" not in rows.columns and dialect.kind == "event":
            rows = rows.with_columns(pl.col("dur_ns").alias("self_ns"))
        if "pid" in rows.columns:
            own = heads["label_pid"].gather(rows["head"]).alias("label_pid")
            rows = rows.with_columns(pl.coalesce(pl.col("pid"), own).alias("pid"))
        else:
            heads = heads.rename({"label_pid": "pid"})
        constants: dict[str, str | int | bool] = {
            "dialect": dialect.name,
            "stream": self.stream.path,
            "run": 0,
            "kind": "event",
            "clock": dialect.clock,
            "depth": 0,
            "recovered": False,
            "layer_inferred": False,
        }
        if dialect.process:
            heads = heads.with_columns(self._worker(dialect).cast(pl.Categorical()).alias("worker"))
        else:
            constants["worker"] = self.stream.worker
        return Batch(rows, heads, constants)

    def _worker(self, dialect: Dialect) -> pl.Expr:
        """Name the process that a head's rank or device stands for; with several logs, the log's name before it."""
        text = pl.col(dialect.process).cast(pl.String)
        if dialect.process == "device":
            name = pl.concat_str(pl.lit("device "), text)
        else:
            name = pl.when(text.str.starts_with("pid")).then(text).otherwise(pl.concat_str(pl.lit("rank "), text))
        return pl.concat_str(pl.lit(self.stream.worker + " "), name) if self.several else name

    def outcome(self) -> Outcome:
        ledger, reader = self.source.ledger, self.reader
        rejects = reader.rejected().with_columns(pl.lit(self.stream.path).cast(pl.Categorical()).alias("stream"))
        tallies = reader.tallies
        names = list(tallies) or [""]
        counts = [tallies.get(name, Tally()) for name in names]
        coverage = pl.DataFrame(
            {
                "stream": [self.stream.path] * len(names),
                "dialect": [n or None for n in names],
                "lines": [ledger.lines] * len(names),
                "records": [t.records for t in counts],
                "recovered": [0] * len(names),
                "rejected": [t.rejected for t in counts],
                "quoted": [t.quoted for t in counts],
                "frame_lines": [t.structure for t in counts],
            },
            schema=COVERAGE,
        )
        return Outcome(
            self.summaries,
            self.steps,
            rejects.select(list(REJECTS)),
            coverage,
            pl.concat([empty(FINDINGS), *self._findings(rejects)]),
            {marker: count for marker, (count, _) in reader.unparsed.items()},
        )

    def _findings(self, rejects: pl.DataFrame) -> Iterator[pl.DataFrame]:
        path, reader = self.stream.path, self.reader
        if self.source.ledger.broken:
            what = f"the file is damaged or cut ({self.source.ledger.broken}): what came before that was read"
            yield _finding("fault", "damaged-file", path, "", self.source.ledger.lines, 1, what)
        if not reader.tallies:
            yield _finding("note", "no-records", path, "", 0, 1, "no timing record in this log")
        for name, tally in reader.tallies.items():
            if tally.rejected:
                first = rejects.filter(pl.col("dialect") == name).row(0, named=True)
                what = f"records that could not be read; the first: {first['reason']}: {first['text']}"
                yield _finding("fault", "rejected", path, name, first["line"], tally.rejected, what)
            if tally.quoted:
                what = "lines quote the marker (prose, a traceback's source): no records"
                yield _finding("note", "quoted-marker", path, name, 0, tally.quoted, what)
            if tally.foreign_tail:
                what = "records with other text behind them on their line: read up to it"
                yield _finding("note", "text-behind", path, name, 0, tally.foreign_tail, what)
        for name, check in self.checked:
            yield _finding(check.severity, check.code, path, name, check.line, check.count, check.message)
        meanings = {m.text: m.meaning for m in rules.markers()}
        for marker, (count, line) in reader.unparsed.items():
            what = f"lines with {marker}, which no dialect reads yet ({meanings[marker]})"
            yield _finding("note", "unparsed-marker", path, "", line, count, what)


def _ahead(blocks: Iterable[Block], work: Callable[[Block], Prescan | None]) -> Iterator[tuple[Block, Prescan | None]]:
    """Do work on the next blocks while the last one is used (numpy lets threads run side by side)."""
    with ThreadPoolExecutor(_AHEAD) as pool:
        waiting: deque[tuple[Block, Future[Prescan | None]]] = deque()
        for block in blocks:
            waiting.append((block, pool.submit(work, block)))
            if len(waiting) > _AHEAD:
                first, done = waiting.popleft()
                yield first, done.result()
        for block, done in waiting:
            yield block, done.result()


def _placed(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the place within the line where all records stand alone."""
    return rows if "sub" in rows.columns else rows.with_columns(pl.lit(0, dtype=pl.UInt16).alias("sub"))


def _finding(severity: str, code: str, stream: str, dialect: str, line: int, count: int, message: str) -> pl.DataFrame:
    row = (severity, code, stream, dialect or None, line or None, count, message)
    return pl.DataFrame({c: [v] for c, v in zip(FINDINGS, row, strict=True)}, schema=FINDINGS)
