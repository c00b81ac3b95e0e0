"""What `tracekit run --sample` costs: CPU time of the sampling thread, against a thread that only wakes as often.

    python benchmarks/bench_sample.py [--seconds 30] [--period 0.5] [--cards 4]

The least of six parts counts: other work on the machine empties the caches. The sensors are files laid out like sysfs
(9 for each card), so what a real driver does when it is asked is not in it.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path

from tracekit.capture.sample import Sampler

PARTS = 6
FILES = {
    "vendor": "0x8086", "class": "0x030000", "device": "0xe223", "hwmon/hwmon1/power1_input": "75000000",
    "hwmon/hwmon1/energy1_input": "123456789", "hwmon/hwmon1/energy2_input": "123456789",
    "hwmon/hwmon1/temp2_input": "51000", "hwmon/hwmon1/temp3_input": "50000", "hwmon/hwmon1/in1_input": "900",
    "hwmon/hwmon1/fan1_input": "1200", "tile0/gt0/freq0/act_freq": "2400", "tile0/gt1/freq0/act_freq": "1200",
}  # fmt: skip


def main() -> None:
    """Measure both."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=30)
    options.add_argument("--period", type=float, default=0.5)
    options.add_argument("--cards", type=int, default=4)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as folder:
        root = Path(folder)
        for card in range(given.cards):
            for name, value in FILES.items():
                file = root / f"sys/bus/pci/devices/0000:{card + 3:02x}:00.0" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(value + "\n")
        sampler = Sampler(root, given.period, root)
        begun = time.process_time()
        sampler.start()
        found = time.process_time() - begun
        sampled, wall = _spent(given.seconds)
        sampler.finish()
        rows = (root / "counters.csv").read_bytes().count(b"\n") - 1
        stop = threading.Event()
        waiter = threading.Thread(target=_wake, args=(stop, given.period))
        waiter.start()
        idle, _ = _spent(given.seconds)
        stop.set()
        waiter.join()
    samples = wall / given.period
    print(f"{given.cards} cards, {rows} values; finding the sensors, once: {found * 1e3:.1f} ms CPU")
    for what, cpu in (("sampling", sampled), ("waking only", idle)):
        print(f"{what:>12}: {cpu / samples * 1e6:7.0f} us CPU each time, {100 * cpu / wall:.4f} % of one CPU")


def _spent(seconds: float) -> tuple[float, float]:
    """Sleep in parts; return the CPU time and the wall time of the part that took the least CPU time."""
    parts = []
    for _ in range(PARTS):
        cpu, wall = time.process_time(), time.monotonic()
        time.sleep(seconds / PARTS)
        parts.append((time.process_time() - cpu, time.monotonic() - wall))
    return min(parts)


def _wake(stop: threading.Event, period: float) -> None:
    while not stop.wait(period):
        pass


if __name__ == "__main__":
    main()
