"""One log: its lines to records, to packed frames. What must be seen whole is held until the log's end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit import checks, rules
from tracekit.ahead import ahead
from tracekit.dialect import Dialect
from tracekit.enrich import label_self_ns, nest, ordinals, region_classes, region_names
from tracekit.frame import COVERAGE, FINDINGS, REJECTS, STEPS, SUMMARIES, Batch, conform, empty
from tracekit.outcome import Outcome, finding
from tracekit.passes import moe, vllm
from tracekit.passes.ggml import PHASES, GgmlPasses, HeadTable, Passes, head_table
from tracekit.records import PLACE, RecordReader, Tally
from tracekit.source import Source, Stream
from tracekit.unlike import unlike_a_log

#: Rows that are handed on together: enough to make the cost of a call small, few enough to be light.
_BATCH_ROWS = 1 << 17

#: Blocks that are scanned ahead. Measured: more of them win nothing on two cores.
_AHEAD = 1


#: The runner's other phases: one call a step, give or take one.
_RUNNER = r"^(gpu_model_runner|runner)\.(preprocess|postprocess|sample|bookkeep|eplb|compute_logits|ModelRunnerOutput)"


@dataclass(slots=True)
class LogReading:
    """One log: its lines to records to frames."""

    stream: Stream
    dialects: Sequence[Dialect]
    several: bool
    #: Layers with experts, where the user told: see `passes.moe`.
    moe_layers: int | None = None
    source: Source = field(init=False)
    reader: RecordReader = field(init=False)
    held: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    summaries: pl.DataFrame = field(default_factory=lambda: empty(SUMMARIES))
    steps: pl.DataFrame = field(default_factory=lambda: empty(STEPS))
    labels: list[pl.DataFrame] = field(default_factory=list)
    checked: list[tuple[str, checks.Finding]] = field(default_factory=list)
    graphs: dict[str, "_Graph"] = field(default_factory=dict)
    named: dict[str, pl.DataFrame] = field(default_factory=dict)
    #: The ranks that records of a process bear, by the pid that stands before them.
    ranks: dict[int, set[int]] = field(default_factory=dict)
    rows: int = 0

    def __post_init__(self) -> None:
        self.source = Source(self.stream)
        self.reader = RecordReader(self.dialects, [m.text for m in rules.markers()])

    def batches(self) -> Iterator[list[Batch]]:
        """Yield events; a stream with records that must be seen whole yields from there on only at its end."""
        whole = {d.name for d in self.dialects if d.whole_stream}
        waiting = 0
        for block, prescan in ahead(self.source.blocks(), self.reader.prescan, _AHEAD):
            first = self.reader.lines + 1
            for name, read in self.reader.read(block, prescan).items():
                rows = read
                if block.arrival_ns is not None:
                    arrival = block.arrival_ns[read["line"].to_numpy() - first]
                    rows = read.with_columns(pl.Series("arrival_ns", arrival))
                self.held.setdefault(name, []).append(rows)
                waiting += rows.height
            if waiting >= _BATCH_ROWS and not whole & set(self.held):
                yield from _filled(self._packed(self._settle(self._take(), last=False)))
                waiting = 0
        found = self._settle(self._take(), last=True)
        for dialect in self.dialects:
            tally = self.reader.tallies.get(dialect.name)
            if dialect.recover is None or tally is None:
                continue
            self.reader.reject_strays(dialect)
            if tally.rejected:
                rebuilt = dialect.recover(self._lines())
                if rebuilt is not None:
                    found[dialect.name] = self.reader.replace(dialect, rebuilt)
        yield from _filled(self._packed(self._events({n: rows for n, rows in found.items() if rows.height})))

    def _lines(self) -> pl.DataFrame:
        """Return all lines of the stream, read again: torn text can only be understood whole."""
        parts, first = [], 1
        for block in Source(self.stream).blocks():
            parts.append(block.lines(first))
            first += parts[-1].height
        return pl.concat(parts)

    def _take(self) -> dict[str, pl.DataFrame]:
        """Hand over the rows that were held."""
        found = {name: pl.concat(parts, how="diagonal") for name, parts in self.held.items()}
        self.held = {}
        return found

    def _settle(self, found: dict[str, pl.DataFrame], *, last: bool) -> dict[str, pl.DataFrame]:
        """Return the rows that can be handed on; of a graph's rows those whose pass is whole."""
        for dialect in self.dialects:
            if dialect.passes == "layers" and (dialect.name in found or dialect.name in self.graphs):
                graph = self.graphs.setdefault(dialect.name, _Graph())
                found[dialect.name] = graph.settle(found.get(dialect.name), self._heads(dialect.name), last=last)
        return {name: rows for name, rows in found.items() if rows.height}

    def _events(self, found: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Finish a whole stream: find what nests, put summaries aside, compare both."""
        by_name = {d.name: d for d in self.dialects}
        events, sums = {}, {}
        for name, rows in found.items():
            dialect = by_name[name]
            if dialect.process == "process":
                rows = rows.with_columns(self._head(name, "process").gather(rows["head"]).alias("process"))
                if "pid" in rows.columns:
                    self._note_ranks(name, rows)
            if dialect.kind == "step":
                self._keep_steps(dialect, rows)
            elif dialect.kind == "summary":
                sums[name] = rows
            elif dialect.passes == "regions":
                events[name] = self._regions(name, rows)
            else:
                events[name] = rows
                if "call" in rows.columns:
                    self.checked += [(name, f) for f in checks.counted(rows)]
        for name in events:
            if by_name[name].passes == "pairs":
                events[name] = self._pairs(name, events[name], self._forwards(events))
        for name, rows in sums.items():
            family = [r for n, r in events.items() if by_name[n].family == by_name[name].family]
            self._summarise(by_name[name], rows, family)
        return events

    def _note_ranks(self, name: str, rows: pl.DataFrame) -> None:
        """Note which rank a process has, where the prefix of a line tells its pid and the record its rank."""
        rank = self._head(name, "rank").gather(rows["head"])
        for pid, one in rows.select("pid", rank.alias("rank")).drop_nulls().unique().iter_rows():
            self.ranks.setdefault(pid, set()).add(one)

    def _with_proven_ranks(self, rows: pl.DataFrame, heads: pl.DataFrame) -> pl.DataFrame:
        """Give records that were printed before the rank was known (``rank=pid812``) the rank of their process.

        Ordinals began again when the rank became known, so they are looked at before this.
        """
        proven = {pid: next(iter(ranks)) for pid, ranks in self.ranks.items() if len(ranks) == 1}
        of_head = heads["rank"].is_null().gather(rows["head"]) & rows["pid"].is_in(list(proven))
        if not of_head.any():
            return rows
        rank = pl.col("pid").replace_strict(proven, default=None, return_dtype=pl.Int32)
        worker = self._named(pl.concat_str(pl.lit("rank "), rank))
        printed = {c: heads[c].gather(rows["head"]) for c in ("rank", "worker")}
        return rows.with_columns(
            pl.when(of_head).then(rank).otherwise(printed["rank"]).alias("rank"),
            pl.when(of_head)
            .then(worker)
            .otherwise(printed["worker"].cast(pl.String))
            .cast(pl.Categorical())
            .alias("worker"),
        )

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
        return self._heads(name)[column]

    def _heads(self, name: str) -> pl.DataFrame:
        heads = self.reader.heads[name].table
        assert heads is not None
        return heads

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
        return vllm.steps(rows.drop("repeated"), self._heads(name)).with_columns(
            pl.Series("depth", depth), pl.Series("self_ns", pl.Series(self_ns).set(~pl.Series(is_event), None))
        )

    def _pairs(self, name: str, rows: pl.DataFrame, forwards: int) -> pl.DataFrame:
        """Add step and layer to pairs of kernels, if it is known how many layers there are."""
        device = self._head(name, "device").gather(rows["head"])
        process = [c for c in ("rank", "own_pid") if c in rows.columns]
        told = rows.select("line", pl.coalesce(*process, device).alias("device"))
        told = told.with_columns(self._head(name, "name").gather(rows["head"]).alias("name"))
        layers = self.moe_layers or moe.layers_from(told, forwards)
        if layers is None:
            self.checked.append((name, moe.UNKNOWN))
            return rows
        found, findings = moe.moe_passes(told, layers)
        self.checked += [(name, f) for f in findings]
        return rows.with_columns(found["step"], found["layer"], found["layer"].is_not_null().alias("layer_inferred"))

    def _forwards(self, events: Mapping[str, pl.DataFrame]) -> int:
        """Return how many forwards a process printed that is logged beside; 0 if none did."""
        found = 0
        for name, rows in events.items():
            if "process" in rows.columns and "kind" in rows.columns:
                mine = rows.filter((region_names(self._head(name, "name")) == "forward").gather(rows["head"]))
                found = max(found, *mine.group_by("process").len()["len"].to_list(), 0)
        return found

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
        found = (*checks.ordinals(labels), *checks.appended(labels), *checks.peers(labels))
        found += (*vllm.uneven(labels), *vllm.unplaced(labels))
        self.checked += [(name, f) for f in found]

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
        self.checked += [(dialect.name, f) for f in checks.skip_first(self._counts(dialect.name, last))]
        if not self.labels:
            text = self._head(dialect.name, "name").gather(last["head"]).alias("name")
            sums = last.select("process", "run", text, pl.col("calls").alias("call"), "line")
            self.checked += [(dialect.name, f) for f in (*vllm.uneven(sums), *vllm.unplaced(sums))]
        for labels in self.labels:
            name = self._head(dialect.name, "name").gather(last["head"]).alias("name")
            self.checked += [(dialect.name, f) for f in checks.summaries(labels, last.with_columns(name))]

    def _counts(self, name: str, sums: pl.DataFrame) -> pl.DataFrame:
        """Return name, calls, forward, shaped of the first rank's summary: what a skip is solved from."""
        heads = self._heads(name)
        marks = heads.select("name", "rank", (region_names(heads["name"]) == "forward").alias("forward"))
        rows = sums.select("calls", *(marks[c].gather(sums["head"]).alias(c) for c in marks.columns))
        rows = rows.filter(
            (pl.col("rank") == pl.col("rank").min()) & ~pl.col("name").cast(pl.String).str.contains(_RUNNER)
        )
        shaped = pl.col("name").cast(pl.String).str.contains(vllm.SHAPED)
        return rows.select("name", "calls", "forward", shaped.alias("shaped"))

    def _packed(self, found: dict[str, pl.DataFrame]) -> list[Batch]:
        """Number rows in printed order over all dialects, and pack them."""
        if not found:
            return []
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
        heads = self._named_heads(dialect)
        if "exact_ns" in rows.columns:
            rows = rows.with_columns(pl.coalesce("exact_ns", "dur_ns").alias("dur_ns"))
        if "pid" in rows.columns:
            own = [pl.col(c) for c in ("own_pid",) if c in rows.columns]
            told = heads["pid"].gather(rows["head"]).alias("told_pid")
            rows = rows.with_columns(pl.coalesce(*own, pl.col("pid"), told).alias("pid"))
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
        if not dialect.process:
            constants["worker"] = self.stream.worker
        elif dialect.process == "process" and "pid" in rows.columns:
            rows = self._with_proven_ranks(rows, heads)
        elif "own_pid" in rows.columns:  # printed behind the head, by some instruments of a dialect
            rows = rows.with_columns(self._own_worker(heads["worker"].gather(rows["head"])).alias("worker"))
        return Batch(rows, heads, constants)

    def _named_heads(self, dialect: Dialect) -> pl.DataFrame:
        """Return the table of heads with the process that each stands for: one object until heads are added."""
        table, named = self._heads(dialect.name), self.named.get(dialect.name)
        if named is None or named.height < table.height:
            named = table.rename({"label_pid": "pid"})
            if dialect.process:
                named = named.with_columns(self._worker(dialect).cast(pl.Categorical()).alias("worker"))
            self.named[dialect.name] = named
        return named

    def _worker(self, dialect: Dialect) -> pl.Expr:
        """Name the process that a head's rank or device stands for; with several logs, the log's name before it."""
        text = pl.col(dialect.process).cast(pl.String)
        if dialect.process == "device":
            name = pl.concat_str(pl.lit("device "), text.fill_null("not known"))
        else:
            name = pl.when(text.str.starts_with("pid")).then(text).otherwise(pl.concat_str(pl.lit("rank "), text))
        return self._named(name)

    def _own_worker(self, other: pl.Series) -> pl.Expr:
        """Name the process by the rank and pid of each row; where neither is printed, by its head."""
        rank, pid = (pl.concat_str(pl.lit(text), pl.col(c)) for text, c in (("rank ", "rank"), ("pid", "own_pid")))
        return pl.coalesce(self._named(rank), self._named(pid), other.cast(pl.String)).cast(pl.Categorical())

    def _named(self, process: pl.Expr) -> pl.Expr:
        return pl.concat_str(pl.lit(self.stream.worker + " "), process) if self.several else process

    def outcome(self) -> Outcome:
        """Return what the reading came to, once all batches were taken."""
        reader = self.reader
        rejects = reader.rejected().with_columns(pl.lit(self.stream.path).cast(pl.Categorical()).alias("stream"))
        tallies = reader.tallies
        names = list(tallies) or [""]
        counts = [tallies.get(name, Tally()) for name in names]
        coverage = pl.DataFrame(
            {
                "stream": [self.stream.path] * len(names),
                "dialect": [n or None for n in names],
                "lines": [reader.lines] * len(names),
                "records": [t.records for t in counts],
                "recovered": [t.recovered for t in counts],
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
            {self.stream.path: [w for g in self.graphs.values() for w in g.finder.widths]} if self.graphs else {},
        )

    def _findings(self, rejects: pl.DataFrame) -> Iterator[pl.DataFrame]:
        path, reader = self.stream.path, self.reader
        if self.source.ledger.unstamped:
            what = f"times of arrival are not known or wrong: {self.source.ledger.unstamped}"
            yield finding("fault", "stamps-damaged", path, "", 0, 1, what)
        if self.source.ledger.broken:
            what = f"the file is damaged or cut ({self.source.ledger.broken}): what came before that was read"
            yield finding("fault", "damaged-file", path, "", self.reader.lines, 1, what)
        if any(d.name in reader.tallies and d.marker in self.source.ledger.unended for d in self.dialects):
            what = "the last line has no line end: if the log was cut there, its last number may lack digits"
            yield finding("note", "no-line-end", path, "", reader.lines, 1, what)
        if not reader.tallies:
            if what := unlike_a_log(self.stream.file or path):
                yield finding("fault", "no-log", path, "", 0, 1, what)
            else:
                yield finding("note", "no-records", path, "", 0, 1, "no timing record in this log")
        for name, tally in reader.tallies.items():
            if tally.rejected:
                what, line = "records of which no value could be rebuilt", 0
                for first in rejects.filter(pl.col("dialect") == name).head(1).to_dicts():
                    what, line = (
                        f"records that could not be read; the first: {first['reason']}: {first['text']}",
                        first["line"],
                    )
                yield finding("fault", "rejected", path, name, line, tally.rejected, what)
            if tally.recovered:
                what = (
                    "records that were torn and were rebuilt; their device or kernel is '-' where it cannot be decided"
                )
                yield finding("note", "recovered", path, name, 0, tally.recovered, what)
            if tally.quoted:
                what = "lines quote the marker (prose, a traceback's source): no records"
                yield finding("note", "quoted-marker", path, name, 0, tally.quoted, what)
            if tally.foreign_tail:
                what = "records with other text behind them on their line: read up to it"
                yield finding("note", "text-behind", path, name, 0, tally.foreign_tail, what)
        for name, graph in self.graphs.items():
            self.checked += [(name, replace(f, line=graph.line(f.line))) for f in graph.finder.findings()]
        for name, check in self.checked:
            yield finding(check.severity, check.code, path, name, check.line, check.count, check.message)
        if reader.said:
            said = pl.concat(reader.said)
            tally = reader.tallies.get("ggml-sycl", Tally())
            for check in (*checks.notices(said), *checks.announced(said, tally.records + tally.rejected)):
                yield finding(check.severity, check.code, path, "", check.line, check.count, check.message)
        meanings = {m.text: m.meaning for m in rules.markers()}
        for marker, (count, line) in reader.unparsed.items():
            what = f"lines with {marker}, which no dialect reads yet ({meanings[marker]})"
            yield finding("note", "unparsed-marker", path, "", line, count, what)


@dataclass(slots=True)
class _Graph:
    """The rows of a graph's operations that wait for the end of their pass, and where the settled ones stood."""

    finder: GgmlPasses = field(default_factory=GgmlPasses)
    waiting: pl.DataFrame | None = None
    table: HeadTable | None = None
    known: int = 0
    #: Where settled rows stand, to tell lines of findings: runs of rows on consecutive lines, by first row and line.
    places: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = field(default_factory=list)
    settled: int = 0

    def settle(self, rows: pl.DataFrame | None, heads: pl.DataFrame, *, last: bool) -> pl.DataFrame:
        """Take new rows; return those whose pass is whole, with step, tokens, phase, layer."""
        if self.table is None or heads.height > self.known:
            self.table, self.known = head_table(heads), heads.height
        waiting = [r for r in (self.waiting, rows) if r is not None]
        pending = pl.concat(waiting, how="diagonal")
        new = rows["head"].to_numpy().astype(np.int64) if rows is not None else np.zeros(0, np.int64)
        parts = [self.finder.feed(new, self.table)]
        if last:
            parts.append(self.finder.finish(self.table))
        height = sum(len(p.step) for p in parts)
        self.waiting = pending.slice(height)
        done = pending.head(height)
        if height:
            lines = done["line"].to_numpy().astype(np.int64)
            begins = np.flatnonzero(np.append(True, np.diff(lines) != 1))
            self.places.append((begins + self.settled, lines[begins]))
        self.settled += height
        return self._with_passes(done, parts)

    @staticmethod
    def _with_passes(rows: pl.DataFrame, parts: Sequence[Passes]) -> pl.DataFrame:
        step, tokens, layer, phase = (
            np.concatenate([getattr(p, c) for p in parts]) for c in ("step", "tokens", "layer", "phase")
        )
        run = np.concatenate([p.run for p in parts])
        return rows.with_columns(
            _known("step", step),
            _known("tokens", tokens),
            _PHASES.gather(pl.Series(phase)).alias("phase"),
            _known("layer", layer),
            pl.Series("layer_inferred", np.concatenate([p.inferred for p in parts])),
            *([pl.Series("run", run)] if run.any() else []),
        )

    def line(self, row: int) -> int:
        """Return the line of a row (from 1 over all rows), 0 if there is none."""
        at = row - 1
        for rows, lines in reversed(self.places):
            if rows[0] <= at < self.settled:
                run = int(np.searchsorted(rows, at, side="right")) - 1
                return int(lines[run] + at - rows[run])
        return 0


_PHASES = pl.Series(PHASES, dtype=pl.Categorical())


def _known(name: str, values: npt.NDArray[np.int32]) -> pl.Series:
    """Return the values as a column; below zero they are not known."""
    column = pl.Series(name, values)
    return column.set(column < 0, None) if (values < 0).any() else column


def _filled(batches: list[Batch]) -> Iterator[list[Batch]]:
    """Yield batches if there are any."""
    if batches:
        yield batches


def _placed(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the place within the line where all records stand alone."""
    return rows if "sub" in rows.columns else rows.with_columns(pl.lit(0, dtype=pl.UInt16).alias("sub"))
