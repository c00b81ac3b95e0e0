"""What is known of ggml's operations and of the graphs they make: a graph is the sequence of a whole pass.

A log of two million lines has under a thousand distinct operations and a handful of graphs (a prompt's and a decode
step's differ where nodes are numbered by position: ``node_24``), so everything here is worked out once.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Names without a layer that stand in front of a model's layers, and behind them (llama.cpp's and ik's graphs).
_LEADS = r"^(inp|embd|token_embd|model\.embed|node_\d$)"
_TRAILS = r"^(result|output|logits)"
#: A node without a name of its own is numbered by its position in the graph.
_NODE = r"^node_(\d+)$"


@dataclass(frozen=True, slots=True)
class HeadTable:
    """What is known of each head (a distinct text of device, operation, name and shape): one value per id.

    Attributes:
        key: equal for heads with one operation and name (shapes aside).
        layer: -1 where there is none.
        work: whether it does something; views do not, and their names may tell another layer's cache.
        width: ``ne[0]`` of results of two dimensions, -1 of all others and of views.
        rows: ``ne[1]``.
        lead: 1 where the name begins a pass, -1 where it ends one, 0 where it tells nothing.
        node: position in the graph, where the name tells it, else -1.
    """

    key: Ints
    layer: Ints
    work: Flags
    width: Ints
    rows: Ints
    lead: Ints
    node: Ints


def head_table(heads: pl.DataFrame) -> HeadTable:
    """Make the table from heads (columns op, name, category, layer, ne0 to ne3)."""
    text = pl.col("name").cast(pl.String)
    work = pl.col("category").cast(pl.String) != "view"
    plane = work & (pl.col("ne2") == 1) & (pl.col("ne3") == 1)
    found = heads.with_row_index("id").select(
        # The first id of each name: it stays what it is when heads are added.
        pl.col("id").min().over("op", "name").cast(pl.Int64).alias("key"),
        pl.col("layer").fill_null(-1).cast(pl.Int64),
        work.alias("work"),
        pl.when(plane).then("ne0").otherwise(-1).fill_null(-1).alias("width"),
        pl.col("ne1").fill_null(-1).alias("rows"),
        pl.when(text.str.contains(_TRAILS))
        .then(-1)
        .when(text.str.contains(_LEADS))
        .then(1)
        .otherwise(0)
        .cast(pl.Int64)
        .alias("lead"),
        pl.when(work).then(text.str.extract(_NODE, 1)).cast(pl.Int64, strict=False).fill_null(-1).alias("node"),
    )
    return HeadTable(**{c: found[c].to_numpy() for c in found.columns})


@dataclass(slots=True)
class Graph:
    """The sequence of a pass.

    Attributes:
        keys: one per operation.
        layer: of each operation, filled between equal neighbours (`inferred`), -1 where there is none.
        lowest, highest: layers that work is done in, -1 without.
        hidden: the model's width, -1 if it cannot be told.
        batch: places of results of hidden width that have a row for every row of the batch.
        output: place of the output head's result, -1 without one.
        first: row of the stream, from 0, where the graph was first seen; `count`: passes seen.
        step: of its first pass.
        batches: of the passes seen: 1 one row, 2 several, 3 both; 0 not known.
        gaps: whether layers are left out between the lowest and the highest.
    """

    keys: Ints
    layer: npt.NDArray[np.int16]
    inferred: Flags
    lowest: int
    highest: int
    hidden: int
    batch: Ints
    output: int
    count: int = 0
    first: int = 0
    step: int = 0
    batches: int = 0
    gaps: bool = False

    def seen(self, tokens: Ints) -> None:
        """Note the batches of passes."""
        self.batches |= int((tokens == 1).any()) + 2 * int((tokens > 1).any())

    @property
    def model(self) -> tuple[int, int, int]:
        """What passes of one model share: lowest and highest layer, hidden width."""
        return self.lowest, self.highest, self.hidden


def graph_of(heads: Ints, table: HeadTable, *, begins_whole: bool = True) -> Graph:
    """Describe a pass, given its heads.

    If it does not begin where a pass begins, rows of the last layer tell nothing of the batch: there only the rows
    are left whose output is wanted.
    """
    layer, work = table.layer[heads], table.work[heads]
    placed = np.flatnonzero(work & (layer >= 0))
    lowest, highest = (int(layer[placed].min()), int(layer[placed].max())) if len(placed) else (-1, -1)
    width = table.width[heads]
    hidden = hidden_width(layer, placed, width)
    batch = np.flatnonzero(width == hidden) if hidden > 0 else np.zeros(0, np.int64)
    if not begins_whole:
        lower = placed[layer[placed] < highest]
        batch = batch[batch <= lower[-1]] if len(lower) else batch[:0]
    behind = int(placed[-1]) + 1 if len(placed) else len(heads)
    output = np.flatnonzero(width[behind:] > hidden) + behind
    filled, inferred = fill_layers(layer, placed)
    steps_up = np.diff(np.unique(layer[placed]))
    return Graph(
        keys=table.key[heads],
        layer=filled,
        inferred=inferred,
        lowest=lowest,
        highest=highest,
        hidden=hidden,
        batch=batch[:3],
        output=int(output[-1]) if len(output) and hidden > 0 else -1,
        gaps=bool((steps_up > 1).any()),
    )


def hidden_width(layer: Ints, placed: Ints, width: Ints) -> int:
    """Return the width of the residual stream, -1 if it cannot be told.

    What leaves a layer and what the next one does first with it have that width, whatever their names: so the
    commonest width beside the borders between layers is it. Without layers it is the commonest of all.

    Args:
        layer: of each operation of a pass.
        placed: places of operations that do work and have a layer.
        width: ``ne[0]`` of two-dimensional results, -1 of others.
    """
    border = np.flatnonzero(np.diff(layer[placed], prepend=-1, append=-1)) if len(placed) else np.zeros(0, np.int64)
    beside = placed[np.concatenate((border[:-1], border[1:] - 1))] if len(border) else np.arange(len(width))
    known = width[beside]
    known = known[known > 0]
    if not len(known):
        return -1
    # Of equally common ones the first: a pass begins with the residual stream.
    values, first, counts = np.unique(known, return_index=True, return_counts=True)
    return int(values[np.lexsort((first, -counts))[0]])


def fill_layers(layer: Ints, placed: Ints) -> tuple[npt.NDArray[np.int16], Flags]:
    """Give operations of a pass without a layer the one on both their sides, if it is the same.

    Neighbours are operations that do work: a view's name may be another layer's cache.
    """
    places = np.arange(len(layer))
    if not len(placed):
        return layer.astype(np.int16), np.zeros(len(layer), np.bool_)
    right = np.searchsorted(placed, places)
    before = layer[placed[np.maximum(right - 1, 0)]]
    behind = layer[placed[np.minimum(right, len(placed) - 1)]]
    inferred = (layer < 0) & (right > 0) & (right < len(placed)) & (before == behind)
    return np.where(inferred, before, layer).astype(np.int16), inferred
