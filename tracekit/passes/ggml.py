"""Model passes of ggml, found without any marker, in one worker's rows as they are printed.

A pass runs through the worker's layers from the lowest to the highest. So a new pass begins where the layer falls back
to the lowest one *and* an operation that this pass already had comes again: one repeated name alone proves nothing
(``norm-0`` prints five times in a pass), nor does one fallen layer (a later layer may look at an earlier one's cache).
What stands between the last layer of one pass and the first of the next (the output head, the embedding) is divided as
it is at the start of the log. A worker without layers (a client that only looks up embeddings) has a new pass where an
operation that occurs once in a pass comes again.

Works in batches with carried state: rows of a pass that is not yet whole are held back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.checks import Finding

Ints = npt.NDArray[np.int64]

#: Prompts are longer than this; repeated batches of up to so many rows are speculation.
_SPECULATIVE = 8
#: So many of a log's passes must have one small width for that to be taken as speculation.
_REPEATED_PART = 0.3
#: With fewer passes there is nothing to compare.
_FEW = 3
#: Of a log with more odd passes than this part, the odd ones tell nothing.
_UNCLEAR_PART = 0.1
#: Unlayered names that begin a pass, and that end one, where the log does not show it itself.
_LEADS = r"^(inp|embd|token_embd|node_0$)"
_TRAILS = r"^(result|output)"


@dataclass(frozen=True, slots=True)
class HeadTable:
    """What is known of each head: one value per id.

    Attributes:
        key: equal for heads with one operation and name (shapes aside).
        layer: -1 where there is none.
        width: ``ne[1]`` of two-dimensional results of hidden width, -1 of all others.
        lead: 1 where the name begins a pass, -1 where it ends one, 0 where it tells nothing.
    """

    key: Ints
    layer: Ints
    width: Ints
    lead: Ints


def head_table(heads: pl.DataFrame) -> HeadTable:
    """Make the table from heads (columns op, name, category, layer, ne0 to ne3)."""
    text = pl.col("name").cast(pl.String)
    named = heads.with_row_index("id").select(
        # The first id of each name: it stays what it is when heads are added.
        pl.col("id").min().over("op", "name").cast(pl.Int64).alias("key"),
        pl.col("layer").fill_null(-1).cast(pl.Int64),
        pl.when(text.str.contains(_TRAILS)).then(-1).when(text.str.contains(_LEADS)).then(1).otherwise(0).alias("lead"),
    )
    plane = (pl.col("ne2") == 1) & (pl.col("ne3") == 1) & (pl.col("category").cast(pl.String) != "view")
    hidden = hidden_width(heads.filter(plane))
    width = heads.select(pl.when(plane & (pl.col("ne0") == hidden)).then("ne1").otherwise(-1).fill_null(-1)).to_series()
    return HeadTable(named["key"].to_numpy(), named["layer"].to_numpy(), width.to_numpy(), named["lead"].to_numpy())


def hidden_width(planes: pl.DataFrame) -> int:
    """Return the model's hidden width: ``ne[0]`` of the residual stream, else of most layers' results."""
    residual = planes.filter(pl.col("name").cast(pl.String).str.contains(r"^(l_out|ffn_inp|attn_norm|ffn_norm)-\d+$"))
    counted = (residual if residual.height else planes)["ne0"].drop_nulls().value_counts(sort=True)
    return int(counted["ne0"][0]) if counted.height else -1


@dataclass(frozen=True, slots=True)
class Passes:
    """What is known of rows that are settled, in order: one value per row; -1 is not known."""

    step: Ints
    tokens: Ints
    layer: Ints
    inferred: npt.NDArray[np.bool_]

    @classmethod
    def none(cls) -> "Passes":
        """Return no rows."""
        blank = np.zeros(0, np.int64)
        return cls(blank, blank, blank, np.zeros(0, np.bool_))

    def then(self, other: "Passes") -> "Passes":
        """Return these rows and others behind them."""
        if not len(self.step):
            return other
        both = ((getattr(self, c), getattr(other, c)) for c in ("step", "tokens", "layer", "inferred"))
        return Passes(*map(np.concatenate, both))


@dataclass(slots=True)
class GgmlPasses:
    """Finds passes in one stream. Feed it rows as they come, then finish.

    Attributes:
        last: heads of the last pass that is settled.
        lengths: rows of each pass so far; widths: its batch; kinds: a number for its sequence of operations.
    """

    step: int = -1
    lead: int = -1
    last: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    held_heads: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    lengths: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    def feed(self, heads: Ints, table: HeadTable) -> Passes:
        """Take the next rows (ids of heads); return what is settled, the oldest first."""
        rows = np.concatenate((self.held_heads, heads))
        known = self._repeated(rows, table)
        rows = rows[len(known.step) :]
        starts = self._starts(rows, table)
        settled = int(starts[-1]) if len(starts) > 1 else 0
        self.held_heads = rows[settled:]
        if not settled:
            return known
        return known.then(self._passes(rows[:settled], starts[:-1], table))

    def _repeated(self, rows: Ints, table: HeadTable) -> Passes:
        """Settle passes that repeat the last one operation by operation, as decode passes do: nothing is searched.

        A pass counts only if the next one repeats it too: it might be longer.
        """
        size = len(self.last)
        count = len(rows) // size if size else 0
        if count < 2:
            return Passes.none()
        keys = table.key[rows[: count * size]].reshape(count, size)
        same = (keys == table.key[self.last]).all(axis=1)
        count = (count if same.all() else int(np.argmin(same))) - 1
        if count < 1:
            return Passes.none()
        widths = self._common_widths(table.width[rows[: count * size]].reshape(count, size))
        layer, inferred = _filled(table.layer[self.last], np.zeros(size, np.int64))
        self.lengths += [size] * count
        self.widths += widths.tolist()
        self.kinds += [self.kinds[-1]] * count
        step = self.step + 1 + np.repeat(np.arange(count), size)
        self.step += count
        return Passes(step, np.repeat(widths, size), np.tile(layer, count), np.tile(inferred, count))

    @staticmethod
    def _common_widths(width: Ints) -> Ints:
        """Return the mode of each row (a pass), at once where all results of hidden width agree."""
        known = width >= 0
        low, high = np.where(known, width, np.iinfo(np.int64).max).min(axis=1), width.max(axis=1)
        result = np.where(low == high, high, -1)
        for row in np.flatnonzero(low < high):
            result[row] = _mode(width[row])
        return result

    def finish(self, table: HeadTable) -> Passes:
        """Return the rest."""
        rows, self.held_heads = self.held_heads, np.zeros(0, np.int64)
        return self._passes(rows, self._starts(rows, table), table)

    def _starts(self, rows: Ints, table: HeadTable) -> Ints:
        """Return where passes begin, the first row included."""
        if not len(rows):
            return np.zeros(0, np.int64)
        layer = table.layer[rows]
        before = _previous(table.key[rows])
        layered = np.flatnonzero(layer >= 0)
        if len(layered) and (layer[layered] != layer[layered[0]]).any():
            candidates, heads_in = self._drops(rows, layer, layered, table)
        else:
            candidates = np.flatnonzero(before >= 0)
            heads_in = candidates
        starts = [0]
        for at, begin in zip(candidates.tolist(), heads_in.tolist(), strict=True):
            if begin > starts[-1] and before[at] >= starts[-1]:
                starts.append(begin)
        return np.array(starts)

    def _drops(self, rows: Ints, layer: Ints, layered: Ints, table: HeadTable) -> tuple[Ints, Ints]:
        """Return the rows where the layer falls to the lowest, and where the pass around each of them begins."""
        own = layer[layered]
        falls = np.flatnonzero((own[1:] == own.min()) & (own[:-1] > own.min())) + 1
        first, last = layered[falls], layered[falls - 1]
        gap = first - last - 1
        if self.lead < 0 and len(gap):
            self.lead = self._leading(rows, layered, own, int(np.median(gap)), first, last, table)
        return first, first - np.minimum(max(self.lead, 0), gap)

    @staticmethod
    def _leading(rows: Ints, layered: Ints, own: Ints, gap: int, first: Ints, last: Ints, table: HeadTable) -> int:
        """Return how many rows without a layer begin a pass."""
        if own[0] == own.min() and 0 < layered[0] <= gap:
            return int(layered[0])  # the log begins with them
        middle = len(first) // 2
        hints = table.lead[rows[last[middle] + 1 : first[middle]]]
        leads, trails = np.flatnonzero(hints > 0), np.flatnonzero(hints < 0)
        if len(leads):
            return len(hints) - int(leads[0])
        return len(hints) - 1 - int(trails[-1]) if len(trails) else 0

    def _passes(self, rows: Ints, starts: Ints, table: HeadTable) -> Passes:
        lengths = np.diff(np.append(starts, len(rows)))
        number = np.repeat(np.arange(len(lengths)), lengths)
        keys, width = table.key[rows], table.width[rows]
        own = [slice(a, a + n) for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
        widths = np.array([_mode(width[one]) for one in own], np.int64)
        self.lengths += lengths.tolist()
        self.widths += widths.tolist()
        self.kinds += [hash(keys[one].tobytes()) for one in own]
        if own:
            self.last = rows[own[-1]]
        layer, inferred = _filled(table.layer[rows], number)
        step = self.step + 1 + number
        self.step += len(lengths)
        return Passes(step, widths[number] if len(number) else widths, layer, inferred)

    def findings(self) -> Iterator[Finding]:
        """Tell what does not fit: passes unlike all others, a log that begins or ends within one, other batches.

        Call it when all rows were fed. `Finding.count` is of passes; `Finding.line` counts rows from 1.
        """
        kinds, counts = np.unique(self.kinds, return_counts=True)
        if len(self.kinds) < _FEW:
            return
        common = {int(k) for k, n in zip(kinds, counts, strict=True) if n > 1}
        widths = np.array(self.widths)
        odd = [
            i for i, kind in enumerate(self.kinds)
            if kind not in common and (widths == widths[i]).sum() > 1
        ]  # fmt: skip
        if len(odd) > max(2, _UNCLEAR_PART * len(self.kinds)):
            yield Finding("note", "unclear-steps", "passes have many different sequences of operations", len(odd))
            return
        begins = np.concatenate(([0], np.cumsum(self.lengths))).tolist()
        usual = int(np.median(self.lengths))
        last = len(self.kinds) - 1
        for i in odd:
            size = f"{self.lengths[i]} operations where {usual} are usual"
            if i == last:
                yield Finding("fault", "cut-step", f"the log ends within a step: {size}", 1, begins[i] + 1)
            elif i == 0:
                yield Finding("fault", "cut-step", f"the log begins within a step: {size}", 1, 1)
            else:
                yield Finding("fault", "odd-step", f"step {i} lacks lines or has some twice: {size}", 1, begins[i] + 1)
        yield from self._batches(begins)

    def _batches(self, begins: list[int]) -> Iterator[Finding]:
        """Tell of a prompt after decoding: another request, or a run that was appended to the log."""
        widths = np.array(self.widths)
        again = np.flatnonzero((widths[1:] > _SPECULATIVE) & (widths[:-1] == 1)) + 1
        if not len(again):
            return
        first = int(again[0])
        if len(widths) % first == 0 and (widths.reshape(-1, first) == widths[:first]).all():
            times = len(widths) // first
            what = f"the same {first} batches stand {times} times in the log: runs that were appended to one another?"
            yield Finding("fault", "appended-runs", what, times, begins[first] + 1)
        else:
            what = "prompts after decoding: further requests, or a run that was appended to the log"
            yield Finding("note", "prompt-again", what, len(again), begins[first] + 1)

    def decodes(self, tokens: Ints) -> npt.NDArray[np.bool_]:
        """Return whether a batch of that width is a decode step.

        One row is; so are a few rows, if a good part of the passes so far has as many: speculation.
        """
        widths = np.array(self.widths)
        small = [w for w in range(2, _SPECULATIVE + 1) if (widths == w).sum() >= max(3, _REPEATED_PART * len(widths))]
        return np.isin(tokens, [1, *small])


def _previous(keys: Ints) -> Ints:
    """Return the row of the last occurrence of each row's key before it, -1 if there is none."""
    # Sorting 16-bit numbers is by radix: ten times faster.
    order = np.argsort(keys.astype(np.uint16) if len(keys) and keys.max() < 1 << 16 else keys, kind="stable")
    result = np.full(len(keys), -1, np.int64)
    same = keys[order][1:] == keys[order][:-1]
    result[order[1:][same]] = order[:-1][same]
    return result


def _mode(values: Ints) -> int:
    known, counts = np.unique(values[values >= 0], return_counts=True)
    return int(known[np.argmax(counts)]) if len(known) else -1


def _filled(layer: Ints, number: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Give rows without a layer the one on both their sides within the pass, if it is the same."""
    places = np.arange(len(layer))
    known = layer >= 0
    left = np.maximum.accumulate(np.where(known, places, -1))
    right = np.minimum.accumulate(np.where(known, places, len(layer))[::-1])[::-1]
    inside = ~known & (left >= 0) & (right < len(layer))
    at, before, behind = places[inside], left[inside], right[inside]
    same = (layer[before] == layer[behind]) & (number[before] == number[at]) & (number[behind] == number[at])
    result, inferred = layer.copy(), np.zeros(len(layer), np.bool_)
    result[at[same]] = layer[before[same]]
    inferred[at[same]] = True
    return result, inferred
