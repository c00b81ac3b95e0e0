"""Sampling power, frequency, temperature of Intel GPUs from sysfs while a run goes on: opt-in.

Files are opened once and read in place; nothing is started and no device is opened. What sysfs offers differs by
driver: hwmon (power, energy, temperature, fan) and the GT frequencies of xe and i915.
"""

import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tracekit import counters, machine

#: hwmon files by pattern: quantity, unit, and what one count is of that unit.
_HWMON = (
    (re.compile(r"power\d+_input"), "power", "W", 1e-6),
    (re.compile(r"energy\d+_input"), "energy", "J", 1e-6),
    (re.compile(r"temp\d+_input"), "temperature", "degC", 1e-3),
    (re.compile(r"in\d+_input"), "voltage", "V", 1e-3),
    (re.compile(r"fan\d+_input"), "fan", "rpm", 1.0),
)

#: Actual frequency in MHz: xe per tile and GT, i915 per GT.
_FREQUENCIES = ("tile*/gt*/freq*/act_freq", "drm/card*/gt/gt*/rps_act_freq_mhz", "drm/card*/gt_act_freq_mhz")


@dataclass(slots=True)
class Source:
    """One sysfs file that holds a number."""

    device: str
    quantity: str
    unit: str
    scale: float
    fd: int
    last: tuple[int, float] | None = None
    #: What stands between the time and the value in this sensor's rows, made once.
    head: str = field(init=False)

    def __post_init__(self) -> None:
        quantity, unit = self.quantity.replace('"', ""), self.unit
        if unit == "J":  # written as the mean power since the sample before
            quantity, unit = quantity.replace("energy", "power (from energy)"), "W"
        self.head = f',{self.device},"{quantity}",{unit},'

    def row(self) -> str:
        """Return a row of the table with the value now; nothing if the driver does not tell."""
        try:
            value = int(os.pread(self.fd, 64, 0)) * self.scale
        except (OSError, ValueError):
            return ""
        now_ns = time.monotonic_ns()
        if self.unit == "J":
            before, self.last = self.last, (now_ns, value)
            if before is None or value < before[1]:
                return ""
            value = (value - before[1]) / ((now_ns - before[0]) / 1e9)
        return f"{now_ns}{self.head}{value:.6g}\n"


def sources(root: Path = Path("/")) -> list[Source]:
    """Open everything that can be sampled of the Intel GPUs below `root`."""
    found = []
    for gpu in machine.gpus(root):
        device = root / "sys/bus/pci/devices" / gpu.pci
        for path, quantity, unit, scale in _files(device):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # for root only, on many kernels
                continue
            found.append(Source(gpu.pci, quantity, unit, scale, fd))
    return found


def _files(device: Path) -> Iterator[tuple[Path, str, str, float]]:
    for path in sorted(device.glob("hwmon/hwmon*/*_input")):
        for pattern, quantity, unit, scale in _HWMON:
            if pattern.fullmatch(path.name):
                yield path, f"{quantity} {_label(path)}", unit, scale
    for glob in _FREQUENCIES:
        for path in sorted(device.glob(glob)):
            yield path, f"frequency {path.relative_to(device).parent}", "MHz", 1.0


def _label(path: Path) -> str:
    """Return the name that the driver gives a sensor, else its file's."""
    stem = path.name.removesuffix("_input")
    return machine.text(path.with_name(f"{stem}_label")) or stem


@dataclass(slots=True)
class Sampler:
    """A thread that reads all sources every `period_s` and adds rows to ``counters.csv``."""

    folder: Path
    period_s: float
    root: Path = Path("/")
    #: Why sampling ended early or never began, empty if it did not.
    trouble: str = ""
    _sources: list[Source] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample, if there is anything."""
        self._sources = sources(self.root)
        if not self._sources:
            self.trouble = "nothing to sample: no Intel GPU offers readable hwmon or frequency files here"
            return
        self._thread = threading.Thread(target=self._run, name="tracekit-sample", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop and close everything."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for source in self._sources:
            os.close(source.fd)

    def _run(self) -> None:
        try:
            with (self.folder / counters.FILE).open("xb", buffering=0) as file:
                file.write((",".join(counters.COLUMNS) + "\n").encode())
                due = time.monotonic()
                while not self._stop.is_set():
                    if rows := "".join([source.row() for source in self._sources]):
                        file.write(rows.encode())
                    due = max(due + self.period_s, time.monotonic())
                    self._stop.wait(due - time.monotonic())
        except OSError as error:
            self.trouble = f"sampling stopped: {error.strerror}"
