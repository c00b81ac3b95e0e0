"""Writes llm-scaler records as the engine does, field by field, from several processes to one pipe.

`torn` returns the text that comes out of the pipe and the truth: what each process meant to write, and where it stands.
Each write bears a byte that names its process; the reader takes it off again.
"""

import gzip
import json
import multiprocessing
import os
import random
import time
from dataclasses import astuple, dataclass
from pathlib import Path

UP, DOWN = "moe ws up routed cutlass int4", "moe ws down cutlass int4"
TOPK = "moe topk softmax int4"
_TAG = 0x80


@dataclass(frozen=True)
class Truth:
    line: int
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


def write(out: int, device: int, drawn: list[tuple[str, str]], pause: float, seed: int, sleep: bool) -> None:
    chance = random.Random(seed)
    for kernel, text in drawn:
        for part in fields(device, kernel, text):
            os.write(out, bytes([_TAG + device]) + part)
            if chance.random() < pause:
                if sleep:
                    time.sleep(chance.expovariate(1 / 2e-5))
                else:
                    os.sched_yield()
        time.sleep(chance.expovariate(1 / 2e-5) if pause < 1 else 0)


def torn(
    processes: int,
    records: int,
    pause: float,
    kernels: tuple[str, ...] = (UP, DOWN),
    seed: int = 1,
    *,
    sleep: bool = False,
) -> tuple[str, list[Truth]]:
    """Let so many processes write into one pipe.

    `pause` is how often a writer gives way between two writes; with `sleep` it rests for 20 microseconds on average.
    """
    into, out = os.pipe()
    drawn = [values(seed + d, records, kernels) for d in range(processes)]
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(out, d, drawn[d], pause, seed + d, sleep)) for d in range(processes)]
    for writer in writers:
        writer.start()
    os.close(out)
    with os.fdopen(into, "rb") as pipe:
        raw = pipe.read()
    for writer in writers:
        writer.join()
    starts = [n for n, byte in enumerate(raw) if byte >= _TAG]
    ends = [*starts[1:], len(raw)]
    return told([(raw[a] - _TAG, raw[a + 1 : b].decode()) for a, b in zip(starts, ends, strict=True)])


def told(pieces: list[tuple[int, str]]) -> tuple[str, list[Truth]]:
    """Return the text of pieces (writer, what it wrote) and the truth, by the place of each value."""
    truth: list[Truth] = []
    record: dict[int, list[str]] = {}
    line = 1
    for writer, piece in pieces:
        parts = record.setdefault(writer, [])
        parts.append(piece)
        if len(parts) == 6:
            truth.append(Truth(line, int(parts[1]), parts[3], parts[5]))
        if piece == "\n":
            line += 1
            parts.clear()
    return "".join(piece for _, piece in pieces), truth


def interleaved(
    processes: int, records: int, keep: float, kernels: tuple[str, ...] = (UP, DOWN), seed: int = 1, devices: int = 0
) -> tuple[str, list[Truth]]:
    """Interleave by a seeded draw instead: `keep` is how likely the last writer writes again within its record.

    `devices` is how many numbers the processes share, if not each has its own.
    """
    chance = random.Random(seed)
    drawn = [values(seed + d, records, kernels) for d in range(processes)]
    numbers = [d % (devices or processes) for d in range(processes)]
    queues = [[part for k, t in one for part in fields(numbers[d], k, t)] for d, one in enumerate(drawn)]
    at = [0] * processes
    pieces, last = [], 0
    while any(at[d] < len(queues[d]) for d in range(processes)):
        ready = [d for d in range(processes) if at[d] < len(queues[d])]
        if last not in ready or (at[last] % 7 and chance.random() > keep) or not at[last] % 7:
            last = chance.choice(ready)
        pieces.append((last, queues[last][at[last]].decode()))
        at[last] += 1
    return told(pieces)


def keep(file: Path, text: str, truth: list[Truth]) -> None:
    """Write a capture and its truth to a file, for `kept`."""
    body = json.dumps({"text": text, "truth": [astuple(t) for t in truth]}).encode()
    file.write_bytes(gzip.compress(body, mtime=0))


def kept(file: Path) -> tuple[str, list[Truth]]:
    """Return a capture that was kept: its text and its truth."""
    content = json.loads(gzip.decompress(file.read_bytes()))
    return content["text"], [Truth(*t) for t in content["truth"]]
