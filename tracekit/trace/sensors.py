"""Power, frequency and temperature on the timeline: what `tracekit run --sample` took, where times are real."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.trace.layout import Layout, Plan
from tracekit.trace.source import Ints, TraceSource

#: Layouts whose times are those of the samples' clock, CLOCK_MONOTONIC.
REAL_TIMES: tuple[Layout, ...] = ("arrival", "start")


@dataclass(frozen=True, slots=True)
class Sensor:
    """What one sensor of one device told: values that hold from their time on."""

    quantity: str
    unit: str
    times_ns: Ints
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sensors:
    """The samples of a run, on the timeline's clock.

    Attributes:
        samples: time_ns, device, quantity, unit, value, by time; empty where the layout has no real times.
        left_out: samples that could not be placed, and the layout that has no place for them.
    """

    samples: pl.DataFrame
    left_out: tuple[int, str] = (0, "")

    @classmethod
    def of(cls, source: TraceSource, plan: Plan, end_ns: int) -> "Sensors":
        """Return the samples of a source from the timeline's beginning to its end.

        The last sample before the beginning stands at it, as its value still held then.
        """
        taken = source.sensors
        if plan.layout not in REAL_TIMES:
            return cls(taken.clear(), (taken.height, plan.layout))
        time = (pl.col("mono_ns") - plan.origin_ns).alias("time_ns")
        one = ("device", "quantity", "unit")
        placed = taken.select(time, *one, "value").filter(pl.col("time_ns") <= end_ns)
        before = pl.col("time_ns") <= 0
        older = before & before.shift(-1, fill_value=False).over(one)
        return cls(placed.filter(~older).with_columns(pl.col("time_ns").clip(0)))

    @property
    def devices(self) -> Sequence[str]:
        """The devices that were sampled."""
        return sorted(self.samples["device"].unique())

    def sensors(self, device: str) -> Iterator[Sensor]:
        """Yield the sensors of a device by name."""
        mine = self.samples.filter(pl.col("device") == device)
        for (quantity, unit), rows in sorted(mine.group_by("quantity", "unit")):
            by_time = rows.sort("time_ns")
            yield Sensor(str(quantity), str(unit), by_time["time_ns"].to_numpy(), by_time["value"].to_numpy())

    def remarks(self) -> tuple[str, ...]:
        """Return what a reader of the trace must know of them."""
        count, layout = self.left_out
        if not count:
            return ()
        return (
            f"{count} samples of power, frequency and temperature are left out: in layout {layout} no times are real "
            f"(those of {' and '.join(REAL_TIMES)} are)",
        )
