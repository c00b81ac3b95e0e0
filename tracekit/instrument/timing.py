"""Timed regions of one process: counting them, and printing records of the formats that `tracekit.parsers` reads.

Records, one ``write`` each, so that processes which share a standard output do not glue theirs together::

    [vllm-xpu-timing] rank=<R> label=<L> count=<int> last_ms=<%.6f>
    [vllm-xpu-timing-summary] begin | rank=<R> label=<L> count= total_ms= avg_ms= max_ms= | end
    [vllm-xpu-timing-step] {"metadata": ..., "rank": "<R>", "status": ..., "step": <int>, "summary_by_total_ms": [...]}

A region that an exception leaves is not counted: what it timed is no call, and the exception passes. Regions nest, and
one prints after those inside it.
"""

import json
import os
import re
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from tracekit.instrument.settings import Settings

EVENT = "[vllm-xpu-timing]"
SUMMARY = "[vllm-xpu-timing-summary]"
STEP = "[vllm-xpu-timing-step]"
NOTICE = "[tracekit-vllm]"

_OUT, _ERR = 1, 2


class Tally:
    """Calls of one label: how many, their total and the longest, in nanoseconds."""

    __slots__ = ("count", "max_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.total_ns = self.max_ns = 0

    def add(self, ns: int) -> None:
        """Count one call."""
        self.count += 1
        self.total_ns += ns
        if ns > self.max_ns:
            self.max_ns = ns


class Region:
    """A context manager that times its body under one label."""

    __slots__ = ("_label", "_recorder", "_start")

    def __init__(self, recorder: "Recorder", label: str) -> None:
        self._recorder = recorder
        self._label = label
        self._start = 0

    def __enter__(self) -> None:
        recorder = self._recorder
        recorder.synchronize()
        self._start = recorder.clock()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            return
        recorder = self._recorder
        recorder.synchronize()
        recorder.record(self._label, recorder.clock() - self._start)


class Recorder:
    """What one process has timed. The process's rank is settled at its first record and never changes after."""

    def __init__(
        self,
        settings: Settings,
        *,
        write: Callable[[int, str], None] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.in_pass = False
        self._write = write or write_whole
        self._device_wait: Callable[[], object] | None = None
        self.forget()

    def forget(self) -> None:
        """Start anew, as a forked child must: nothing counted, no rank, and a lock that no thread left behind holds."""
        # Re-entrant: the signal handlers of vLLM's workers raise SystemExit in the middle of anything, and the summary
        # is printed by the same thread on its way out.
        self._lock = threading.RLock()
        self._rank: str | None = None
        self._closed = False
        self._changed = False
        self._skips: defaultdict[str, int] = defaultdict(int)
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._step = 0
        self._pass_tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._metadata: dict[str, Any] = {}
        self.in_pass = False

    # -- who and what

    @property
    def rank(self) -> str:
        """The rank to print. A process that nobody gave one is ``pid<pid>``."""
        if self._rank is None:
            self._rank = f"pid{os.getpid()}"
        return self._rank

    def settle_rank(self, rank: int) -> None:
        """Give this process its rank, unless it has printed under another already."""
        if self._rank is None:
            self._rank = str(rank)

    @property
    def wanted(self) -> bool:
        """Whether this process is to be timed."""
        return not self._closed and self.settings.wants_rank(self.rank)

    def wait_with(self, device_wait: Callable[[], object] | None) -> None:
        """Set what waits for the device; None where there is none to wait for."""
        self._device_wait = device_wait

    @property
    def waits(self) -> bool:
        """Whether regions wait for the device: that is asked for, and there is one to wait for."""
        return self.settings.sync and self._device_wait is not None

    def synchronize(self) -> None:
        """Wait for the device, where that is asked for. Outside a model pass nothing of ours runs on it."""
        if self.settings.sync and self.in_pass and self._device_wait is not None:
            self._device_wait()

    # -- regions

    def region(self, label: str) -> Region:
        """Return a context manager that times its body under this label."""
        return Region(self, label)

    def record(self, label: str, ns: int) -> None:
        """Count one call of ``ns`` nanoseconds, and print it if it is its turn."""
        with self._lock:
            if self.in_pass and self.settings.step_summary:
                self._pass_tallies[label].add(ns)
            if self.settings.skip_first and self._skips[label] < self.settings.skip_first:
                self._skips[label] += 1
                return
            tally = self._tallies[label]
            tally.add(ns)
            self._changed = True
            every = self.settings.print_every
            if every and tally.count % every == 0:
                self._print(f"{EVENT} rank={self.rank} label={label} count={tally.count} last_ms={milliseconds(ns)}")

    # -- model passes

    def begin_pass(self, metadata: Mapping[str, Any]) -> None:
        """Open a model pass. One that is still open ends here, with the status ``unfinished``."""
        with self._lock:
            if self.in_pass:
                self.end_pass("unfinished")
            self.in_pass = True
            self._step += 1
            self._metadata = dict(metadata)
            self._pass_tallies = defaultdict(Tally)

    def describe_pass(self, metadata: Mapping[str, Any]) -> None:
        """Add to what is known of the open pass."""
        self._metadata.update(metadata)

    def end_pass(self, status: str = "ok") -> None:
        """Close the open pass, and print its line if it is its turn."""
        with self._lock:
            if not self.in_pass:
                return
            self.in_pass = False
            if self.settings.step_summary and self._step_is_due():
                self._print(f"{STEP} {self._step_json(status)}")

    def _step_is_due(self) -> bool:
        every, past = self.settings.step_every, self._step - self.settings.step_skip_first
        return every > 0 and past > 0 and (past - 1) % every == 0

    def _step_json(self, status: str) -> str:
        rows = [
            {
                "avg_ms": tally.total_ns / tally.count / 1e6,
                "count": tally.count,
                "label": label,
                "max_ms": tally.max_ns / 1e6,
                "rank": self.rank,
                "total_ms": tally.total_ns / 1e6,
            }
            for label, tally in _longest_first(self._pass_tallies)
        ]
        body = {
            "metadata": self._metadata,
            "rank": self.rank,
            "status": status,
            "step": self._step,
            "summary_by_total_ms": rows,
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":"))

    # -- the end

    def print_summary(self) -> None:
        """Print the totals since the process started, unless that was done and nothing has happened since."""
        with self._lock:
            if not (self.settings.summary and self._changed and self.wanted):
                return
            self._changed = False
            self._print(f"{SUMMARY} begin")
            for label, tally in _longest_first(self._tallies):
                self._print(
                    f"{SUMMARY} rank={self.rank} label={label} count={tally.count} "
                    f"total_ms={milliseconds(tally.total_ns)} avg_ms={tally.total_ns / tally.count / 1e6:.6f} "
                    f"max_ms={milliseconds(tally.max_ns)}"
                )
            self._print(f"{SUMMARY} end")

    # -- printing

    def notice(self, text: str) -> None:
        """Say something about the timing itself, on standard error. This does not settle the rank."""
        rank = self._rank or f"pid{os.getpid()}"
        try:
            self._write(_ERR, f"{NOTICE} rank={rank} {text}")
        except OSError:
            return  # nobody listens; the engine must not suffer from that

    def _print(self, record: str) -> None:
        if self._closed:
            return
        try:
            self._write(_OUT, record)
        except OSError as error:
            self._closed = True
            self.notice(f"standard output takes no more ({error.strerror}): timing lines end here")


def milliseconds(ns: int) -> str:
    """Return nanoseconds as milliseconds, every digit.

    >>> milliseconds(12_134_711)
    '12.134711'
    """
    return f"{ns // 1_000_000}.{ns % 1_000_000:06d}"


def clean_label(text: str) -> str:
    """Return the text fit for a label: on one line, and not to be mistaken for the field after it.

    >>> clean_label("a\\nlabel  count=3")
    'a label count:3'
    """
    return re.sub(r"\bcount=", "count:", " ".join(text.split()))


def write_whole(descriptor: int, text: str) -> None:
    """Write one line in one call, as far as the system lets us: a full pipe that does not block is waited for."""
    data = text.encode("utf-8", "replace") + b"\n"
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            select.select([], [descriptor], [], 1.0)


def _longest_first(tallies: Mapping[str, Tally]) -> list[tuple[str, Tally]]:
    return sorted(tallies.items(), key=lambda item: (-item[1].total_ns, item[0]))
