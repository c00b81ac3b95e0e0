"""Counts the records of a log in plain Python: the independent truth that `tracekit.read` is compared with.

It splits at line ends and carriage returns, cuts at every marker and matches each cut with a regular expression: slow,
obvious, and with nothing in common with the package. Durations are Decimal until they are integer nanoseconds.
"""

import gzip
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

MARKERS = re.compile(r"\[SYCL_OP_TIMING\]|\[llm-scaler\]\[moe-kernel\]|\[vllm-xpu-timing\]|\[vllm-xpu-timing-summary\]")
_SYCL = re.compile(
    r"\[SYCL_OP_TIMING\] dev=(-?\d+) op=(\w+) name=(.*) ne=(\d+x\d+x\d+x\d+) us=(\d+)(?!\d)((?: \w+=\S+)*)"
)
_WAIT = re.compile(r'\[llm-scaler\]\[moe-kernel\] device=(-?\d+) kernel="([^"\[]+)" wait_ms=(\d[\d.e+-]*)')
_EVENT = re.compile(r"\[vllm-xpu-timing\] rank=(\S+) label=(.*) count=(\d+) last_ms=(\d+\.\d{6})(?!\d)")
_SUMMARY = re.compile(
    r"\[vllm-xpu-timing-summary\] rank=(\S+) label=(.*) count=(\d+) "
    r"total_ms=(\d+\.\d{6}) avg_ms=(\d+\.\d{6}) max_ms=(\d+\.\d{6})(?!\d)"
)
_FRAME = re.compile(r"\[vllm-xpu-timing-summary\] (begin|end)\b")


class Label(NamedTuple):
    """What a record is about: the printed device or rank, the operation, the whole name."""

    owner: str
    op: str
    name: str


class Summary(NamedTuple):
    """A summary row in ns (the mean too)."""

    calls: int
    total_ns: int
    mean_ns: int
    max_ns: int


@dataclass
class Count:
    """What one log holds."""

    durations: dict[Label, list[int]] = field(default_factory=lambda: defaultdict(list))
    ordinals: dict[Label, list[int]] = field(default_factory=lambda: defaultdict(list))
    summaries: dict[Label, Summary] = field(default_factory=dict)
    shapes: Counter[str] = field(default_factory=Counter)
    markers: int = 0
    frames: int = 0
    unread: list[str] = field(default_factory=list)

    @property
    def events(self) -> int:
        return sum(map(len, self.durations.values()))

    def by_op(self) -> dict[str, tuple[int, int]]:
        """Calls and total ns per operation."""
        found: dict[str, tuple[int, int]] = {}
        for label, times in self.durations.items():
            calls, total = found.get(label.op, (0, 0))
            found[label.op] = calls + len(times), total + sum(times)
        return found

    def by_name(self) -> dict[str, tuple[int, int]]:
        """Calls and total ns per name."""
        found: dict[str, tuple[int, int]] = {}
        for label, times in self.durations.items():
            calls, total = found.get(label.name, (0, 0))
            found[label.name] = calls + len(times), total + sum(times)
        return found


def ns(text: str, unit: int) -> int:
    """Decimal text times its unit in ns, which must come out whole for what these formats print."""
    return int((Decimal(text) * unit).to_integral_value())


def operation(label: str) -> str:
    """The region of a vLLM label: without an all-reduce's shape and dtype, a kernel's tokens, a layer's number."""
    if label.startswith("all_reduce:"):
        rest, shape, _dtype = label.rsplit(":", 2)
        label = rest if re.fullmatch(r"\([\d, ]*\)", shape) else label
    else:
        label = re.sub(r":M\d+$", "", label)
    return re.sub(r"\blayers\.\d+\.", "layers.*.", label)


@cache
def count(path: Path) -> Count:
    """Count a log, packed or not."""
    raw = path.read_bytes()
    return count_text((gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace"))


def count_text(text: str) -> Count:
    """Count the text of a log."""
    found = Count()
    for line in re.split(r"[\n\r]", text):
        starts = [m.start() for m in MARKERS.finditer(line)]
        for start, end in pairwise([*starts, len(line)]):
            found.markers += 1
            _add(found, line[start:end])
    return found


def _add(found: Count, record: str) -> None:
    if m := _SYCL.match(record):
        device, op, name, shape, us, more = m.groups()
        exact = re.search(r" ns=(\d+)", more)  # the same duration again, not rounded
        found.durations[Label(device, op, name)].append(int(exact[1]) if exact else ns(us, 1000))
        found.shapes[shape] += 1
    elif m := _WAIT.match(record):
        device, kernel, wait = m.groups()
        found.durations[Label(device, kernel, kernel)].append(ns(wait, 10**6))
    elif m := _EVENT.match(record):
        rank, name, ordinal, last = m.groups()
        label = Label(rank, operation(name), name)
        found.durations[label].append(ns(last, 10**6))
        found.ordinals[label].append(int(ordinal))
    elif m := _SUMMARY.match(record):
        rank, name, calls, *times = m.groups()
        total, mean, longest = (ns(t, 10**6) for t in times)
        found.summaries[Label(rank, operation(name), name)] = Summary(int(calls), total, mean, longest)
    elif _FRAME.match(record):
        found.frames += 1
    else:
        found.unread.append(record)
