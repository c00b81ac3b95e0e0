"""Traces, side by side: `write_trace` against a loop over StreamingTraceProtoBuilder that writes the same slices.

Both write step, layer and operation slices with category and shape. Run as::

    python benchmarks/bench_trace.py              # 2 million events, the loop on a tenth of them
    python benchmarks/bench_trace.py --events 20  # memory at 20 million

Each measurement is a process of its own, so that peaks of memory do not mix. ``x loop`` compares elapsed times,
``by CPU`` the processor's time; `write_trace` encodes in a second thread.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

OPS = (
    "MUL_MAT", "ROPE", "CPY", "SOFT_MAX", "MUL", "MUL_MAT_ID", "MOE_FUSED_UP_GATE", "RMS_NORM", "ADD", "CONT",
    "GET_ROWS", "ARGSORT", "SUM_ROWS", "DIV", "UNARY", "MULTI_ADD", "SCALE", "SIGMOID",
)  # fmt: skip
CATEGORIES = ("matmul", "rope", "kv-cache", "attention", "elementwise", "moe", "moe", "norm", "elementwise")
LAYERS = 62
PASS = len(OPS) * LAYERS
BATCH_STEPS = 90  # about what a block of a log holds


class MadeUp:
    """A decode log's events, made batch by batch: nothing is held."""

    label = "made up"
    topology = None

    def __init__(self, events: int, *, held: bool) -> None:
        self.steps = events // PASS
        self.frame = pl.concat(list(self._make())) if held else None

    @property
    def events(self) -> int:
        """How many there are."""
        return self.steps * PASS

    @property
    def summaries(self) -> pl.LazyFrame:
        """None were printed."""
        from tracekit.frame import SUMMARIES, empty

        return empty(SUMMARIES).lazy()

    @property
    def sensors(self) -> pl.DataFrame:
        """None were sampled."""
        from tracekit.counters import no_counters

        return no_counters()

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield events, whole steps at a time."""
        if self.frame is None:
            yield from (b.select(columns or pl.all()) for b in self._make())
            return
        rows = BATCH_STEPS * PASS
        for at in range(0, self.frame.height, rows):
            yield self.frame.slice(at, rows).select(columns or pl.all())

    def _make(self) -> Iterator[pl.DataFrame]:
        from tracekit.frame import EVENTS, conform

        rng = np.random.default_rng(7)
        names = [f"{op.lower()}-{layer}" for layer in range(LAYERS) for op in OPS]
        one = {
            "op": pl.Series(list(OPS) * LAYERS, dtype=pl.Categorical()),
            "name": pl.Series(names, dtype=pl.Categorical()),
            "category": pl.Series([CATEGORIES[i % 9] for i in range(len(OPS))] * LAYERS, dtype=pl.Categorical()),
            "shape": pl.Series([f"{64 << i % 6}x1x1x1" for i in range(len(OPS))] * LAYERS, dtype=pl.Categorical()),
            "layer": pl.Series(np.repeat(np.arange(LAYERS), len(OPS)), dtype=pl.Int16),
        }
        shared = {"dialect": "ggml-sycl", "stream": "rpc-b70-0.log", "worker": "rpc-b70-0", "kind": "event"}
        shared |= {"clock": "host-wait", "phase": "decode"}
        for first in range(0, self.steps, BATCH_STEPS):
            steps = min(BATCH_STEPS, self.steps - first)
            count = steps * PASS
            dur = pl.Series(rng.integers(1, 400, count) * 1000)
            frame = pl.DataFrame({k: v.gather(np.tile(np.arange(PASS), steps)) for k, v in one.items()})
            yield conform(
                frame.with_columns(
                    *(pl.lit(v).alias(k) for k, v in shared.items()),
                    pl.Series("step", np.repeat(np.arange(first, first + steps), PASS)),
                    pl.Series("line", np.arange(first * PASS + 1, first * PASS + 1 + count)),
                    dur.alias("dur_ns"),
                    dur.alias("self_ns"),
                    run=0,
                    depth=0,
                    device=0,
                    tokens=1,
                ),
                EVENTS,
            )


def naive(source: MadeUp, path: Path) -> int:
    """Write step, layer and operation slices one packet at a time, as Perfetto's documentation shows."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

    with path.open("wb") as file:
        builder = StreamingTraceProtoBuilder(file)
        clock, slices = 0, 0

        def begin(name: str, category: str, shape: str | None) -> None:
            packet = builder.create_packet()
            packet.timestamp = clock
            packet.trusted_packet_sequence_id = 1
            event = packet.track_event
            event.type, event.track_uuid, event.name = TrackEvent.TYPE_SLICE_BEGIN, 7, name
            event.categories.append(category)
            if shape is not None:
                annotation = event.debug_annotations.add()
                annotation.name, annotation.string_value = "shape", shape
            builder.write_packet(packet)

        def end() -> None:
            packet = builder.create_packet()
            packet.timestamp = clock
            packet.trusted_packet_sequence_id = 1
            packet.track_event.type, packet.track_event.track_uuid = TrackEvent.TYPE_SLICE_END, 7
            builder.write_packet(packet)

        packet = builder.create_packet()
        packet.track_descriptor.uuid, packet.track_descriptor.name = 7, "operations"
        builder.write_packet(packet)
        step = layer = -1
        for batch in source.batches(["op", "category", "shape", "step", "layer", "dur_ns"]):
            columns = batch.with_columns(pl.col(pl.Categorical()).cast(pl.String)).to_dict(as_series=False)
            for op, category, shape, its_step, its_layer, dur in zip(*columns.values(), strict=True):
                if (its_step, its_layer) != (step, layer):
                    if layer >= 0:
                        end()
                    if its_step != step:
                        if step >= 0:
                            end()
                        begin(f"decode {its_step}", "decode", None)
                    begin(f"layer {its_layer}", "layer", None)
                    step, layer = its_step, its_layer
                begin(op, category, shape)
                clock += dur
                end()
                slices += 1
        end()
        end()
    return slices


def measure(how: str, events: int, *, held: bool) -> dict[str, float]:
    """Write one trace in this process; return its figures."""
    import tracekit.trace
    from tracekit.trace import write_trace

    source = MadeUp(events, held=held)
    write_trace(MadeUp(PASS * 4, held=False), Path(tempfile.mkdtemp()) / "warm.pftrace")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.pftrace"
        start, worked = time.perf_counter(), time.process_time()
        if how == "naive":
            naive(source, path)
        else:
            arguments = tracekit.trace.ARGUMENTS if how == "all" else ("shape",)
            write_trace(source, path, arguments=arguments, compress=how == "deflated")
        seconds, worked = time.perf_counter() - start, time.process_time() - worked
        size = path.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "events": source.events,
        "seconds": seconds,
        "slices_per_s": source.events / seconds,
        "slices_per_cpu_s": source.events / worked,
        "bytes_per_event": size / source.events,
        "peak_mb": peak,
        "above_mb": peak - before,
    }


def main() -> None:
    """Measure each way in a process of its own and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=float, default=2.0, help="in millions")
    parser.add_argument("--naive-share", type=float, default=0.1, help="part of the events that the loop writes")
    parser.add_argument("--held", action="store_true", help="hold the whole frame, instead of making it by batches")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    events = int(options.events * 1e6)
    if options.one:
        print(json.dumps(measure(options.one, events, held=options.held)))
        return
    print(f"{'':28}{'slices/s':>12}{'bytes/event':>13}{'above start':>13}{'x loop':>8}{'by CPU':>8}")
    base: dict[str, float] = {}
    for how, words in (
        ("naive", "StreamingTraceProtoBuilder"),
        ("shape", "write_trace, same arguments"),
        ("deflated", "the same, deflated"),
        ("all", "write_trace, all arguments"),
    ):
        millions = options.events * (options.naive_share if how == "naive" else 1)
        command = [sys.executable, __file__, "--one", how, "--events", str(millions)]
        done = subprocess.run(command + ["--held"] * options.held, capture_output=True, text=True, check=True)
        got = json.loads(done.stdout)
        base = base or got
        print(
            f"{words:28}{got['slices_per_s']:12,.0f}{got['bytes_per_event']:13.1f}{got['above_mb']:10.0f} MB"
            f"{got['slices_per_s'] / base['slices_per_s']:8.1f}"
            f"{got['slices_per_cpu_s'] / base['slices_per_cpu_s']:8.1f}"
        )


if __name__ == "__main__":
    main()
