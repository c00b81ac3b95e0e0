"""The named peer of `bench_top`: what a person writes first. ``re_loop.py FILE``

A plain loop over lines with a regular expression fills a polars frame with the columns that `tracekit top` needs (layer
and category included, by a few patterns), groups it, and prints the table.
"""

import re
import sys

import polars as pl

LINE = re.compile(r"\[SYCL_OP_TIMING\] dev=(\d+) op=(\S+) name=(.*) ne=(\d+x\d+x\d+x\d+) us=(\d+)\s*$")
LAYER = re.compile(r"cache_[kvr]\w*_l(\d+)|^\S*-(\d+)(?:\s|$)")
CATEGORIES = {"MUL_MAT": "matmul", "ROPE": "rope", "RMS_NORM": "norm", "SOFT_MAX": "attention", "CPY": "kv-cache"}


def main() -> None:
    """Read, group, print."""
    rows = []
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:  # noqa: PTH123 (as a person writes it)
        for number, line in enumerate(file, 1):
            match = LINE.search(line)
            if match is None:
                continue
            device, op, name, shape, us = match.groups()
            layer = LAYER.search(name)
            at = int(layer[1] or layer[2]) if layer else None
            category = "moe" if name.startswith("ffn_moe") else CATEGORIES.get(op, "other")
            rows.append((number, int(device), op, name, category, at, shape, int(us) * 1000))
    columns = ["line", "device", "op", "name", "category", "layer", "shape", "dur_ns"]
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    duration = pl.col("dur_ns")
    table = frame.group_by("op").agg(
        pl.len().alias("calls"),
        duration.sum().alias("total_ns"),
        duration.mean().alias("mean_ns"),
        duration.quantile(0.5, "linear").alias("p50_ns"),
        duration.quantile(0.95, "linear").alias("p95_ns"),
        duration.max().alias("max_ns"),
    )
    print(table.sort("total_ns", descending=True))


if __name__ == "__main__":
    main()
