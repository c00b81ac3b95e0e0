"""Writes llm-scaler records as the engine does, field by field, from several processes to one pipe.

`torn` returns the text that comes out of the pipe and the truth: what each process meant to write.
"""

import multiprocessing
import os
import random
import time
from dataclasses import dataclass

UP, DOWN = "moe ws up routed cutlass int4", "moe ws down cutlass int4"


@dataclass(frozen=True)
class Truth:
    device: int
    kernel: str
    text: str


def values(seed: int, records: int, kernels: tuple[str, ...], cycle: bool = True) -> list[tuple[str, str]]:
    """Draw a process's kernels and waits: each kernel around its own median, some outliers."""
    chance = random.Random(seed)
    drawn = []
    for n in range(records):
        at = n % len(kernels) if cycle else chance.randrange(len(kernels))
        wait = (0.0445 / (1 + at)) * chance.lognormvariate(0, 0.25) * (30 if chance.random() < 0.01 else 1)
        drawn.append((kernels[at], f"{wait:g}"))
    return drawn


def fields(device: int, kernel: str, text: str) -> list[bytes]:
    """Return the seven writes of a record."""
    parts = ("[llm-scaler][moe-kernel] device=", str(device), ' kernel="', kernel, '" wait_ms=', text, "\n")
    return [p.encode() for p in parts]


def write(out: int, device: int, drawn: list[tuple[str, str]], pause: float, seed: int) -> None:
    chance = random.Random(seed)
    for kernel, text in drawn:
        for part in fields(device, kernel, text):
            os.write(out, part)
            if chance.random() < pause:
                os.sched_yield()
        time.sleep(chance.expovariate(1 / 2e-5) if pause < 1 else 0)


def torn(
    processes: int, records: int, pause: float, kernels: tuple[str, ...] = (UP, DOWN), seed: int = 1
) -> tuple[str, list[Truth]]:
    """Let so many processes write into one pipe; `pause` is how often a writer gives way between two writes."""
    into, out = os.pipe()
    drawn = [values(seed + d, records, kernels) for d in range(processes)]
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(out, d, drawn[d], pause, seed + d)) for d in range(processes)]
    for writer in writers:
        writer.start()
    os.close(out)
    with os.fdopen(into, "rb") as pipe:
        text = pipe.read().decode()
    for writer in writers:
        writer.join()
    return text, [Truth(d, kernel, text) for d in range(processes) for kernel, text in drawn[d]]


def interleaved(
    processes: int, records: int, keep: float, kernels: tuple[str, ...] = (UP, DOWN), seed: int = 1
) -> tuple[str, list[Truth]]:
    """Interleave by a seeded draw instead: `keep` is how likely the last writer writes again within its record."""
    chance = random.Random(seed)
    drawn = [values(seed + d, records, kernels) for d in range(processes)]
    queues = [[part for k, t in one for part in fields(d, k, t)] for d, one in enumerate(drawn)]
    at = [0] * processes
    text, last = [], 0
    while any(at[d] < len(queues[d]) for d in range(processes)):
        ready = [d for d in range(processes) if at[d] < len(queues[d])]
        if last not in ready or (at[last] % 7 and chance.random() > keep) or not at[last] % 7:
            last = chance.choice(ready)
        text.append(queues[last][at[last]])
        at[last] += 1
    return b"".join(text).decode(), [Truth(d, k, t) for d, one in enumerate(drawn) for k, t in one]
