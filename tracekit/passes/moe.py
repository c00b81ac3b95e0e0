"""Model passes of llm-scaler's MoE kernels: one up and one down per layer and device.

A record tells neither layer nor step, so both can only be counted: the k-th ``up`` of a device is layer ``k mod n`` of
step ``k div n``, once the number ``n`` of layers that have experts is known. The log alone does not tell it (four steps
of 62 layers look like eight of 31). It follows from the forwards that vLLM printed beside, or it is given.

Counting only holds if nothing is lost: a device whose ups and downs do not alternate, or whose count is not a whole
number of passes, has no steps, and that is said.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from tracekit.checks import Finding

#: The two kernels that every layer with experts has, by words of the kernel's text.
_UP, _DOWN = r"\bup\b", r"\bdown\b"


#: Said where the number of layers is not known.
UNKNOWN = Finding(
    "note",
    "layers-unknown",
    "a record tells neither step nor layer: with --moe-layers N (how many layers have experts) both are counted",
)


def layers_from(rows: pl.DataFrame, forwards: int) -> int | None:
    """Return how many layers have experts, if every device says the same; columns as in `moe_passes`."""
    ups = rows.filter(pl.col("name").cast(pl.String).str.contains(_UP)).group_by("device").len()
    found = {layers_of(n, forwards) for n in ups["len"]}
    return found.pop() if len(found) == 1 else None


def layers_of(ups: int, forwards: int) -> int | None:
    """Return how many layers have experts, from a device's ``up`` kernels and the forwards of its process.

    None if that is not a whole number above one: then something is missing, or a warm-up was only half traced.

    >>> layers_of(248, 4)
    62
    """
    layers, rest = divmod(ups, forwards) if forwards else (0, 1)
    return layers if layers > 1 and not rest else None


def moe_passes(rows: pl.DataFrame, layers: int | None) -> tuple[pl.DataFrame, list[Finding]]:
    """Add ``step`` and ``layer`` to the rows of one stream, and tell what does not fit.

    Args:
        rows: columns device and name (both nullable: not to be decided in torn text), line; in printed order.
        layers: how many layers have experts; None if that is not known: then there are no steps.

    Returns:
        The rows with ``step`` (Int32) and ``layer`` (Int16; counted, so from 0 over the layers with experts), null
        where they are not known.
    """
    findings = list(_unpaired(rows))
    step = np.full(rows.height, -1, np.int32)
    layer = np.full(rows.height, -1, np.int16)
    torn = rows["device"].null_count() or rows["name"].null_count()
    if layers is not None and not torn and not findings:
        name = rows["name"].cast(pl.String)
        up, down = (name.str.contains(word).to_numpy() for word in (_UP, _DOWN))
        device = rows["device"].to_numpy()
        for one in np.unique(device):
            mine = np.flatnonzero(device == one)
            ups = int(up[mine].sum())
            if ups % layers:
                what = f"device {one} has {ups} up kernels, no whole number of {layers} layers: lines are lost"
                findings.append(Finding("fault", "counts-do-not-fit", what, 1, int(rows["line"][int(mine[0])])))
                continue
            # What comes before a layer's up kernel (routing) is counted to it; what follows its down, to the next.
            pair = np.concatenate(([0], np.cumsum(down[mine])[:-1]))
            pair = np.minimum(pair, max(ups - 1, 0))
            step[mine], layer[mine] = pair // layers, pair % layers
    columns = (pl.Series("step", step), pl.Series("layer", layer))
    return rows.with_columns(c.set(c < 0, None) for c in columns), findings


def _unpaired(rows: pl.DataFrame) -> Iterator[Finding]:
    """Tell of devices whose up and down kernels do not alternate."""
    kernels = rows.select("device", "line", pl.col("name").cast(pl.String)).drop_nulls()
    is_up, is_down = pl.col("name").str.contains(_UP), pl.col("name").str.contains(_DOWN)
    kernels = kernels.with_columns(is_up.alias("up"), is_down.alias("down")).filter(pl.col("up") != pl.col("down"))
    again = pl.col("up") == pl.col("up").shift(1, fill_value=False)
    broken = kernels.with_columns(again.over("device").alias("again")).filter("again")
    counts = kernels.group_by("device").agg(pl.col("up").sum(), pl.col("down").sum())
    if broken.height and rows["device"].null_count() == 0 and rows["name"].null_count() == 0:
        first = broken.sort("line").row(0, named=True)
        what = (
            f"up and down kernels that do not alternate, first on device {first['device']}: lines are lost or there "
            "twice, or several processes print one device; there are no steps"
        )
        yield Finding("fault", "unpaired-kernels", what, broken.height, first["line"])
    odd = counts.filter(pl.col("up") != pl.col("down")).sort("device")
    if odd.height and not broken.height:
        row = odd.row(0, named=True)
        what = f"device {row['device']} has {row['up']} up and {row['down']} down kernels: the log ends within a step"
        yield Finding("fault", "cut-step", what, odd.height)
