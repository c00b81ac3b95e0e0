"""Made graphs: what llama.cpp prints of a model's passes, with the truth of where each begins."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.enrich import enrich_heads
from tracekit.parsers.ggml_sycl import DIALECT
from tracekit.passes.ggml import GgmlPasses, Passes, head_table

#: Operation, name, dimensions of the output.
Row = tuple[str, str, int, int, int, int]


@dataclass(frozen=True)
class Model:
    """A model, or the part of one that a worker holds."""

    layers: range
    hidden: int = 3072
    embedding: bool = False
    head: bool = False
    offset: int = 0
    shared_cache: bool = False

    def one_pass(self, width: int, outputs: int | None = None) -> list[Row]:
        """Return the operations of a pass; a prompt's graph has more of them, so its nodes are numbered otherwise."""
        out = outputs if outputs is not None else 1
        rows = list(self._rows(width, out))
        return [
            (op, name.replace("node_?", f"node_{self.offset + at}"), *ne) for at, (op, name, *ne) in enumerate(rows)
        ]  # type: ignore[misc]

    def _rows(self, width: int, out: int) -> Iterator[Row]:
        if self.embedding:
            yield ("GET_ROWS", "inp_embd", self.hidden, width, 1, 1)
        for n in self.layers:
            yield from self._layer(n, width, out if self.head and n == self.layers[-1] else width)
        if self.head and out:
            yield ("RMS_NORM", "norm", self.hidden, out, 1, 1)
            yield ("MUL", "result_norm", self.hidden, out, 1, 1)
            yield ("MUL_MAT", "result_output", 200064, out, 1, 1)

    def _layer(self, n: int, w: int, out: int) -> Iterator[Row]:
        h = self.hidden
        cache = n if not self.shared_cache or n < 4 else n - 3
        yield ("RMS_NORM", f"norm-{n}", h, w, 1, 1)
        yield ("MUL", f"attn_norm-{n}", h, w, 1, 1)
        yield ("MUL_MAT", f"Qcur-{n}", 6144, w, 1, 1)
        yield ("RESHAPE", f"Qcur-{n} (reshaped)", 128, 48, w, 1)
        yield ("RMS_NORM", f"norm-{n}", 128, 48, w, 1)
        yield ("ROPE", f"Qcur-{n}", 128, 48, w, 1)
        yield ("MUL_MAT", f"Kcur-{n}", 1024, w, 1, 1)
        yield ("ROPE", f"Kcur-{n}", 128, 8, w, 1)
        if cache == n:
            yield ("CPY", f"cache_k_l{n} (view) (copy of Kcur-{n})", 1024, w, 1, 1)
        yield ("VIEW", f"cache_k_l{cache} (view)", 128, 512, 8, 1)
        yield ("MUL_MAT", f"kq-{n}", 512, w, 48, 1)
        yield ("SOFT_MAX", "node_?", 512, w, 48, 1)
        yield ("MUL_MAT", f"kqv-{n}", 128, w, 48, 1)
        if w > 1:
            yield ("CONT", "node_?", 6144, w, 1, 1)
        yield ("MUL_MAT", f"kqv_out-{n}", h, w, 1, 1)
        if not out:
            return
        if out < w:
            yield ("GET_ROWS", "node_?", h, out, 1, 1)
            yield ("GET_ROWS", "node_?", h, out, 1, 1)
        yield ("ADD", f"ffn_inp-{n}", h, out, 1, 1)
        yield ("RMS_NORM", f"norm-{n}", h, out, 1, 1)
        yield ("MUL_MAT", f"ffn_moe_logits-{n}", 256, out, 1, 1)
        yield ("ARGSORT", f"ffn_moe_argsort-{n}", 256, out, 1, 1)
        yield ("MOE_FUSED_UP_GATE", f"ffn_moe_gate_par-{n}", 1536, 8, out, 1)
        yield ("MUL_MAT_ID", f"ffn_moe_down-{n}", h, 8, out, 1)
        yield ("MUL_MULTI_ADD", f"ffn_moe_out-{n}", h, out, 1, 1)
        yield ("ADD", f"l_out-{n}", h, out, 1, 1)


def numbered(rows: Sequence[Row]) -> tuple[npt.NDArray[np.int64], pl.DataFrame]:
    """Return the rows as ids of heads, and the table of heads."""
    ids: dict[Row, int] = {}
    heads = np.array([ids.setdefault(row, len(ids)) for row in rows], np.int64)
    columns = {"op": pl.String, "name": pl.String, **{f"ne{k}": pl.Int64 for k in range(4)}}
    frame = pl.DataFrame(list(ids), schema=columns, orient="row")
    return heads, enrich_heads(DIALECT, frame.with_columns(pl.lit("0").alias("device")))


def split(layers: int, workers: int, **options: bool) -> list[Model]:
    """Divide a model's layers over workers as `-ts 1/1/1/1` does: the last one has the output head."""
    size = -(-layers // workers)
    parts = [range(first, min(first + size, layers)) for first in range(0, layers, size)]
    return [Model(part, head=at == len(parts) - 1, offset=at * size * 30, **options) for at, part in enumerate(parts)]


def found(
    heads: npt.NDArray[np.int64], frame: pl.DataFrame, cuts: Sequence[int] = (), restart: int | None = None
) -> tuple[Passes, GgmlPasses]:
    """Find passes, the rows fed in parts that end at `cuts`; from row `restart` on it is known to be another run."""
    table, finder = head_table(frame), GgmlPasses()
    borders = sorted({0, len(heads), *(c for c in cuts if c < len(heads)), *([restart] if restart else [])})
    parts = []
    for start, end in pairwise(borders):
        if start == restart:
            parts.append(finder.restart(table))
        parts.append(finder.feed(heads[start:end], table))
    parts.append(finder.finish(table))
    columns = ("step", "run", "tokens", "phase", "layer", "inferred")
    return Passes(*(np.concatenate([getattr(p, c) for p in parts]) for c in columns)), finder
