"""Draws a trace as text: what a person sees in Perfetto, at a glance. The pictures in docs/traces.md are made by it."""

from trace_check import Read

WIDTH = 50


def steps(trace: Read) -> str:
    """One line a worker and step: where its part of the step stands."""
    parts = [s for s in trace.slices if s.category in ("prefill", "decode", "mixed", "step")]
    whole = max(s.end_ns for s in parts)
    lines = []
    for process in trace.processes:
        for one in sorted((s for s in parts if trace.process(s) == process), key=lambda s: s.start_ns):
            begin, end = (round(WIDTH * t / whole) for t in (one.start_ns, one.end_ns))
            bar = " " * begin + "#" * max(end - begin, 1)
            lines.append(
                f"{process}  |{bar:{WIDTH}}|  {one.name}  {one.start_ns / 1e6:7.3f} to {one.end_ns / 1e6:7.3f} ms"
            )
    return "\n".join(lines) + "\n"


def nesting(trace: Read, process: str, count: int) -> str:
    """The first slices of a process, indented by depth."""
    mine = [s for s in trace.slices if trace.process(s) == process]
    lines = []
    for one in sorted(mine, key=lambda s: (s.start_ns, s.depth, s.end_ns))[:count]:
        shown = [f"{k}={v}" for k, v in one.details.items() if k in ("name", "shape", "tokens", "line")]
        label = "  " * one.depth + one.name
        lines.append(f"{label:16}{one.dur_ns / 1e6:7.3f} ms  {one.category:8}{' '.join(shown)}".rstrip())
    return "\n".join(lines) + "\n"
