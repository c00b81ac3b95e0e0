"""From lines to records: finds markers, splits glued records, reads heads once and numbers per line.

Works on one stream, block by block; what is carried over is the dictionary of heads and the counts. Nothing that
bears a marker is dropped uncounted: a record is read, refused (with line and reason), or told to be prose.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.checks import NOTICE
from tracekit.dialect import Dialect, Recovered
from tracekit.enrich import enrich_heads
from tracekit.frame import REJECTS, empty
from tracekit.scan import HashTable, Scan, scan
from tracekit.source import Block

#: Carries the order of records: physical line and place within it.
PLACE = ("line", "sub")

#: vLLM's process prefixes and logger colours, before a record or behind it.
_PID = r".*\b[A-Za-z][\w-]* pid=(\d+)\)"
_ANSI = r"\x1b\[[0-9;]*[A-Za-z]"
_CUT_CHARACTERS = 80


@dataclass(slots=True)
class Heads:
    """The dictionary of heads of one dialect and stream: text to id, and a table of columns by id."""

    dialect: Dialect
    markers: Sequence[str]
    ids: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"head": pl.String, "id": pl.UInt32, "valid": pl.Boolean})
    )
    table: pl.DataFrame | None = None
    hashes: HashTable = field(default_factory=HashTable)
    added: int = 0

    def look_up(self, heads: pl.Series) -> pl.DataFrame:
        """Return ``id`` and ``valid`` for each head; new heads are parsed and remembered, bad ones too."""
        found = heads.to_frame("head").join(self.ids, on="head", how="left", maintain_order="left")
        if found["id"].null_count():
            self._learn(found.filter(pl.col("id").is_null())["head"].unique(maintain_order=True).drop_nulls())
            found = heads.to_frame("head").join(self.ids, on="head", how="left", maintain_order="left")
        return found.select("id", pl.col("valid").fill_null(value=False))

    def add(self, texts: pl.DataFrame) -> pl.Series:
        """Add heads that no text was parsed for, from the dialect's own columns (null: not known); return their ids."""
        first = self.ids.height + self.added
        self.added += texts.height
        rows = enrich_heads(self.dialect, texts)
        self.table = rows if self.table is None else pl.concat([self.table, rows])
        return pl.Series("head", np.arange(first, first + texts.height), dtype=pl.UInt32)

    def _learn(self, new: pl.Series) -> None:
        groups = new.str.extract_groups(self.dialect.head_regex).struct.unnest()
        # A head that holds a second marker is two records, however well it fits.
        valid = groups.to_series(0).is_not_null() & ~new.str.slice(1).str.contains_any(list(self.markers))
        first = self.ids.height
        ids = pl.Series("id", np.arange(first, first + len(new)), dtype=pl.UInt32)
        added = enrich_heads(self.dialect, groups.select(**self.dialect.columns))
        self.table = added if self.table is None else pl.concat([self.table, added])
        self.ids = pl.concat([self.ids, pl.DataFrame([new.alias("head"), ids, valid.alias("valid")])])


def _join(parts: Sequence[pl.DataFrame]) -> pl.DataFrame | None:
    """Put a block's rows of one dialect together in printed order; None if there are none."""
    filled = [p for p in parts if p.height]
    if not filled:
        return None
    if len(filled) == 1:
        return filled[0]
    rows = pl.concat(filled, how="diagonal")
    return rows.with_columns(pl.col("sub").fill_null(0)).sort(PLACE)


@dataclass(slots=True)
class Tally:
    """Counts of one dialect in one stream."""

    records: int = 0
    rejected: int = 0
    recovered: int = 0
    quoted: int = 0
    structure: int = 0
    foreign_tail: int = 0
    #: Values of refused records and of lines without the marker, less the records that were refused: where more, it
    #: was the marker that was torn.
    strays: int = 0
    #: Line and text of the first line with such a value and no marker.
    stray: tuple[int, str] = (0, "")


@dataclass(frozen=True, slots=True)
class Prescan:
    """The fast lane's findings in a block, and whose records they are."""

    dialect: Dialect
    scan: Scan


@dataclass(slots=True)
class RecordReader:
    """Reads the records of one stream.

    Attributes:
        lines: physical lines so far.
        heads: the dictionary per dialect name.
        tallies: counts per dialect name.
        rejects: refused records (schema `frame.REJECTS` without its stream).
        unparsed: known markers that no dialect reads, with how many lines bear them and the first.
        said: lines in which an instrument of ours speaks of itself: line, text.
        steps: what dialects with a JSON body tell of steps, per dialect name.
    """

    dialects: Sequence[Dialect]
    other_markers: Sequence[str] = ()
    lines: int = 0
    heads: dict[str, Heads] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    rejects: list[pl.DataFrame] = field(default_factory=list)
    unparsed: dict[str, tuple[int, int]] = field(default_factory=dict)
    said: list[pl.DataFrame] = field(default_factory=list)
    steps: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def prescan(self, block: Block) -> Prescan | None:
        """Do the part of reading that needs no memory of other blocks, so that threads may do it ahead."""
        for dialect in self.dialects:
            marker = dialect.marker.encode()
            if dialect.plain_number and marker in block.data:
                return Prescan(dialect, scan(block.data, marker, dialect.cut.encode()))
        return None

    def read(self, block: Block, prescan: Prescan | None) -> dict[str, pl.DataFrame]:
        """Read a block of lines.

        Args:
            block: the lines.
            prescan: what `prescan` returned for it.

        Returns:
            Per dialect name its rows in printed order: line, head (id), the declared numbers; and sub (place within
            the line) and pid where records do not stand alone on their lines.
        """
        rows: dict[str, list[pl.DataFrame]] = {}
        if prescan is None:
            lines = block.lines(self.lines + 1)
            self.lines += lines.height
        else:
            lines = self._fast_lane(block, prescan, rows)
            self.lines += len(prescan.scan.ends)
        if lines.height:
            lines, plain = self._plain_lines(lines)
            for dialect, frame in plain:
                rows.setdefault(dialect.name, []).append(frame)
            for dialect, records in self._glued(lines):
                rows.setdefault(dialect.name, []).append(self._parse(dialect, records))
        found = {}
        for name, parts in rows.items():
            joined = _join(parts)
            if joined is not None:
                if name not in self.steps:  # a step's record holds several rows and was counted when it was read
                    self.tallies[name].records += joined.height
                found[name] = joined
        return found

    def _fast_lane(self, block: Block, prescan: Prescan, rows: dict[str, list[pl.DataFrame]]) -> pl.DataFrame:
        """Take the lines of the commonest form without making strings; return the others."""
        dialect, found = prescan.dialect, prescan.scan
        ids, valid = self._ids(dialect, block, found)
        self.tallies.setdefault(dialect.name, Tally())
        taken, values = found.rows, found.values
        if not valid.all():
            taken, ids, values = taken[valid], ids[valid], values[valid]
        columns = {
            "line": (taken + self.lines + 1).astype(np.uint32),
            "head": ids.astype(np.uint32),
            dialect.fields[0].column: values * dialect.plain_number,
        }
        rows[dialect.name] = [pl.DataFrame(columns)]
        others = np.ones(len(found.starts), np.bool_)
        others[taken] = False
        left = np.flatnonzero(others)
        if len(left) * 4 < len(others):
            return block.some(self.lines + 1, left, found.starts, found.ends)
        return block.lines(self.lines + 1).filter(pl.Series(others))

    def _ids(self, dialect: Dialect, block: Block, found: Scan) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the id of each scanned head and whether it is valid; new heads are parsed."""
        heads = self._heads(dialect)
        ids, known = heads.hashes.find(found.hashes)
        if not known.all():
            missed = np.flatnonzero(~known)
            new, first = np.unique(found.hashes[missed], return_index=True)
            where = missed[first]
            starts = found.starts[found.rows[where]].tolist()
            texts = [
                block.data[start:end].decode("utf-8", "replace")
                for start, end in zip(starts, found.heads[where].tolist(), strict=True)
            ]
            looked = heads.look_up(pl.Series(texts, dtype=pl.String))
            heads.hashes.add(new, np.where(looked["valid"].to_numpy(), looked["id"].to_numpy().astype(np.int64), -1))
            ids, _ = heads.hashes.find(found.hashes)
        return ids, ids >= 0

    def _plain_lines(self, lines: pl.DataFrame) -> tuple[pl.DataFrame, list[tuple[Dialect, pl.DataFrame]]]:
        """Take the lines that are one whole record from their first byte to their last; return the others too."""
        done = []
        for dialect in self.dialects:
            if dialect.unpack is not None:
                continue
            opens = lines["text"].str.starts_with(dialect.marker)
            if not opens.any():
                continue
            whole = opens.all()
            records = (lines if whole else lines.filter(opens)).with_columns(
                pl.lit(0, dtype=pl.UInt16).alias("sub"), pl.lit(None, dtype=pl.Int32).alias("pid")
            )
            rows, accepted = self._fast(dialect, records)
            self.tallies.setdefault(dialect.name, Tally())
            done.append((dialect, rows))
            if whole:
                lines = lines.filter(~accepted)
            else:
                lines = pl.concat([lines.filter(~opens), lines.filter(opens).filter(~accepted)])
        return lines, done

    def _glued(self, lines: pl.DataFrame) -> Iterable[tuple[Dialect, pl.DataFrame]]:
        """Cut the remaining lines at markers: one record from each marker to the next or to the line's end."""
        markers = [d.marker for d in self.dialects]
        bears = lines["text"].str.contains_any(markers)
        self._note_unparsed(lines.filter(~bears))
        self._note_strays(lines.filter(~bears))
        lines = lines.filter(bears)
        if lines.is_empty():
            return
        pieces = (
            # A line end cannot stand inside a line, so it is the one safe separator.
            lines.with_columns(pl.col("text").str.replace_many(markers, ["\n" + m for m in markers]).str.split("\n"))
            .explode("text")
            .with_columns(
                pl.int_range(pl.len(), dtype=pl.UInt16).over("line").alias("sub"),
                pl.col("text").shift(1).over("line").alias("before"),
            )
            .sort(PLACE)
        )
        pieces = pieces.with_columns(
            pl.col("before").str.replace_all(_ANSI, "").str.extract(_PID, 1).cast(pl.Int32, strict=False).alias("pid")
        )
        for dialect in self.dialects:
            records = pieces.filter(pl.col("text").str.starts_with(dialect.marker) & (pl.col("sub") > 0))
            if records.height:
                yield dialect, records

    def _parse(self, dialect: Dialect, records: pl.DataFrame) -> pl.DataFrame:
        """Read records (line, sub, pid, text, before): first as most are, then anchored at the right."""
        tally = self.tallies.setdefault(dialect.name, Tally())
        if dialect.unpack is not None:
            return self._unpack(dialect, tally, records)
        rows, accepted = self._fast(dialect, records)
        rest = records.filter(~accepted)
        if rest.is_empty():
            return rows
        slow, accepted = self._anchored(dialect, rest)
        rest = rest.filter(~accepted)
        if rest.height:
            self._refuse(dialect, tally, rest)
        return pl.concat([rows, slow], how="diagonal").sort(PLACE) if slow.height else rows

    def _unpack(self, dialect: Dialect, tally: Tally, records: pl.DataFrame) -> pl.DataFrame:
        """Read records with a JSON body: each is one step and several rows."""
        assert dialect.unpack is not None
        found = dialect.unpack(records)
        if not found.read.all():
            self._refuse(dialect, tally, records.filter(~found.read))
        tally.records += found.steps.height
        self.steps.setdefault(dialect.name, []).append(found.steps)
        ids = self._heads(dialect).look_up(found.rows["text"])["id"].alias("head")
        return found.rows.drop("text").with_columns(ids)

    def _fast(self, dialect: Dialect, records: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
        """Split at the first cut; take what has a known or new valid head and nothing but numbers behind."""
        parts = records["text"].str.splitn(dialect.cut, 2).struct.unnest()
        head, tail = parts.to_series(0), parts.to_series(1)
        found = self._heads(dialect).look_up(head)
        numbers = self._numbers(dialect, tail)
        accepted = found["valid"] & numbers.to_series(0).is_not_null()
        rows = self._rows(dialect, records, found["id"], numbers)
        return (rows if accepted.all() else rows.filter(accepted)), accepted

    def _anchored(self, dialect: Dialect, records: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
        """Split at the last cut that numbers follow: names may hold the cut; foreign text may hang behind."""
        text = records["text"].str.replace_all(_ANSI, "").str.strip_chars_end("\0 \t")
        whole = f"^(?P<head>.*){re.escape(dialect.cut)}(?:{dialect.tail_regex})"
        groups = text.str.extract_groups(whole).struct.unnest()
        found = self._heads(dialect).look_up(groups["head"])
        numbers = self._values(dialect, groups)
        accepted = found["valid"] & numbers.to_series(0).is_not_null()
        foreign = accepted & (groups["rest"].str.strip_chars() != "")
        self.tallies[dialect.name].foreign_tail += int(foreign.sum())
        return self._rows(dialect, records, found["id"], numbers).filter(accepted), accepted

    def _heads(self, dialect: Dialect) -> Heads:
        if dialect.name not in self.heads:
            self.heads[dialect.name] = Heads(dialect, [d.marker for d in self.dialects])
        return self.heads[dialect.name]

    @staticmethod
    def _rows(dialect: Dialect, records: pl.DataFrame, ids: pl.Series, numbers: pl.DataFrame) -> pl.DataFrame:
        return records.select(*PLACE, "pid").with_columns(ids.alias("head"), *numbers.get_columns())

    def _numbers(self, dialect: Dialect, tail: pl.Series) -> pl.DataFrame:
        """Read the text behind the cut; null numbers where anything but the declared ones stands there."""
        first = dialect.fields[0]
        if dialect.plain_number and tail.str.contains(r"^\d+$").all():
            return tail.to_frame("tail").select(first.value(pl.col("tail")).alias(first.column))
        groups = tail.str.extract_groups("^" + dialect.tail_regex).struct.unnest()
        numbers = self._values(dialect, groups)
        # The value of a trailing pair may hold anything but the next record.
        another = tail.str.contains_any([dialect.cut, *(d.marker for d in self.dialects)])
        clean = (groups["rest"] == "") & ~another
        if clean.all():
            return numbers
        return numbers.select(pl.when(clean).then(pl.all()))

    @staticmethod
    def _values(dialect: Dialect, groups: pl.DataFrame) -> pl.DataFrame:
        """Return the declared numbers of matched groups, trailing ones included; all null where one is missing."""
        values = groups.select(f.value(pl.col(f.column)).alias(f.column) for f in dialect.fields)
        if dialect.trailing and (groups["pairs"] != "").any():
            values = values.with_columns(
                groups.select(
                    f.value(pl.col("pairs").str.extract(rf"(?:^| ){f.key}=({f.regex})(?: |$)", 1)).alias(f.column)
                    for f in dialect.trailing
                ).get_columns()
            )
        whole = pl.all_horizontal(pl.col(f.column).is_not_null() for f in dialect.fields)
        return values.select(pl.when(whole).then(pl.all()))

    def _refuse(self, dialect: Dialect, tally: Tally, records: pl.DataFrame) -> None:
        """Tell refused records from quotations and from the dialect's own frame lines, and count each."""
        behind = pl.col("text").str.strip_prefix(dialect.marker)
        opening = dialect.opening
        values = pl.col("text").str.count_matches(_value(dialect)) if dialect.recover else pl.lit(0)
        kinds = records.with_columns(
            pl.when(behind.str.contains(dialect.structure) if dialect.structure else pl.lit(value=False))
            .then(pl.lit("structure"))
            .when(behind.str.contains(opening) | self._cut_short(dialect, behind) | (values > 0))
            .then(pl.lit("reject"))
            .otherwise(pl.lit("quoted"))
            .alias("verdict")
        )
        counts = dict(kinds["verdict"].value_counts().iter_rows())
        tally.structure += counts.get("structure", 0)
        tally.quoted += counts.get("quoted", 0)
        tally.rejected += counts.get("reject", 0)
        refused = kinds.filter(pl.col("verdict") == "reject")
        if refused.height:
            tally.strays += refused.select((values.cast(pl.Int64) - 1).sum()).item() if dialect.recover else 0
            self.rejects.append(
                refused.select(
                    "line",
                    pl.lit(dialect.name).alias("dialect"),
                    self._reason(dialect).alias("reason"),
                    pl.col("text").str.slice(0, _CUT_CHARACTERS),
                ).cast({c: REJECTS[c] for c in ("line", "dialect", "reason", "text")})
            )

    @staticmethod
    def _cut_short(dialect: Dialect, behind: pl.Expr) -> pl.Expr:
        """Whether the record ends before its first value: torn, not quoted."""
        first = dialect.expects[0]
        return behind.is_in([first[:n] for n in range(len(first) + 1)])

    @staticmethod
    def _reason(dialect: Dialect) -> pl.Expr:
        """Say what a refused record lacks: the first expected piece that does not follow the ones before."""
        reason: pl.Expr = pl.lit("a number or a name does not fit the grammar")
        for n in range(len(dialect.expects), 0, -1):
            path = ".*".join(re.escape(e) for e in dialect.expects[:n])
            missing = pl.lit(f"'{dialect.expects[n - 1].strip()}' is missing")
            reason = pl.when(~pl.col("text").str.contains(path)).then(missing).otherwise(reason)
        # The innermost condition wins only where all before it hold, so the first missing piece is named.
        return reason

    def _note_unparsed(self, lines: pl.DataFrame) -> None:
        """Count the lines that bear a known marker which no dialect reads yet; keep what instruments say."""
        if not self.other_markers or lines.is_empty():
            return
        said = lines.filter(pl.col("text").str.contains(NOTICE, literal=True))
        if said.height:
            self.said.append(said.select("line", "text"))
        hits = lines.filter(pl.col("text").str.contains_any(list(self.other_markers)))
        for marker in self.other_markers if hits.height else ():
            places = hits.filter(pl.col("text").str.contains(marker, literal=True))["line"]
            if len(places):
                count, first = self.unparsed.get(marker, (0, int(places[0])))
                self.unparsed[marker] = (count + len(places), first)

    def _note_strays(self, lines: pl.DataFrame) -> None:
        """Count the values of records that can be torn, in lines without the marker."""
        for dialect in self.dialects:
            if dialect.recover is None or lines.is_empty():
                continue
            found = lines.filter(pl.col("text").str.contains(dialect.cut, literal=True))
            values = found["text"].str.count_matches(_value(dialect)) if found.height else pl.Series([0])
            if values.sum():
                tally = self.tallies.setdefault(dialect.name, Tally())
                tally.strays += int(values.sum())
                if not tally.stray[0]:
                    tally.stray = found.filter(values > 0).select("line", "text").row(0)

    def reject_strays(self, dialect: Dialect) -> None:
        """Reject the records whose marker itself was torn, at the end of a stream: their values are left over."""
        tally = self.tallies[dialect.name]
        if tally.strays > 0:
            tally.rejected += tally.strays
            line, text = tally.stray
            reason = "a value is left over: its record's marker is torn"
            refused = {"line": line, "dialect": dialect.name, "reason": reason, "text": text[:_CUT_CHARACTERS]}
            self.rejects.append(pl.DataFrame([refused], schema={c: REJECTS[c] for c in refused}))

    def replace(self, dialect: Dialect, found: Recovered) -> pl.DataFrame:
        """Take a dialect's rebuilt records in the place of what was read of it; return them as rows of `read`."""
        tally = self.tallies[dialect.name]
        name = pl.lit(dialect.name)
        tally.recovered = int(found.events["recovered"].sum())
        tally.records = found.events.height - tally.recovered
        tally.rejected, tally.quoted, tally.foreign_tail = max(0, found.opened - found.events.height), 0, 0
        others = [r.filter(pl.col("dialect").cast(pl.String) != dialect.name) for r in self.rejects]
        refused = found.rejects.with_columns(name.alias("dialect"), pl.col("text").str.slice(0, _CUT_CHARACTERS))
        columns = ("line", "dialect", "reason", "text")
        self.rejects = [*others, refused.select(columns).cast({c: REJECTS[c] for c in columns})]
        texts = found.events.select(pl.col("device").cast(pl.String), pl.col("kernel").alias("name"))
        distinct = texts.unique(maintain_order=True)
        ids = distinct.with_columns(self._heads(dialect).add(distinct.select(**dialect.columns)))
        heads = texts.join(ids, on=texts.columns, how="left", nulls_equal=True, maintain_order="left")["head"]
        place = pl.int_range(pl.len(), dtype=pl.UInt16).over("line").alias("sub")
        pid = pl.lit(None, dtype=pl.Int32).alias("pid")
        return found.events.select("line", place, pid, heads, "dur_ns", "recovered").sort(PLACE)

    def rejected(self) -> pl.DataFrame:
        """Return the refused records so far, in printed order."""
        if not self.rejects:
            return empty({c: t for c, t in REJECTS.items() if c != "stream"})
        return pl.concat(self.rejects).sort("line", maintain_order=True)


def _value(dialect: Dialect) -> str:
    """Return what a record's first value and the text before it look like."""
    return re.escape(dialect.cut) + r"\d"
