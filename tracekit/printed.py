"""Results that benchmarks print for people, read as the records that their JSON would hold.

llama-bench ``-o md``, its default: a table with the columns ``test`` (as ``pp512``, ``tg128``, ``tg128 @ d4096``) and
``t/s`` (as ``37.14 ± 0.05``). ``vllm bench serve``: the line ``Output token throughput (tok/s):``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_SERVED = re.compile(r"Output token throughput \(tok/s\):\s+(\d+\.?\d*)\s*$")
_TEST = re.compile(r"(?:pp(\d+))?\+?(?:tg(\d+))?(?: |$)")
_SPEED = re.compile(r"(\d+\.?\d*)(?: ± (\d+\.?\d*))?")


def printed(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the results found in what a benchmark printed.

    >>> list(printed("| model | test | t/s |\\n| --- | ---: | ---: |\\n| it | tg16 | 27.50 ± 0.25 |"))
    [{'n_prompt': 0, 'n_gen': 16, 'avg_ts': 27.5, 'stddev_ts': 0.25}]
    >>> list(printed("Output token throughput (tok/s):         1000.00"))
    [{'output_throughput': 1000.0}]
    """
    columns: list[str] = []
    for line in text.splitlines():
        if found := _SERVED.match(line):
            yield {"output_throughput": float(found[1])}
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if {"test", "t/s"} <= set(cells):
            columns = cells
        elif columns and len(cells) == len(columns):
            yield from _row(dict(zip(columns, cells, strict=True)))


def _row(cells: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    test, speed = _TEST.match(cells["test"]), _SPEED.fullmatch(cells["t/s"])
    if test and speed and any(test.groups()):
        row = {"n_prompt": int(test[1] or 0), "n_gen": int(test[2] or 0), "avg_ts": float(speed[1])}
        yield row if speed[2] is None else {**row, "stddev_ts": float(speed[2])}
