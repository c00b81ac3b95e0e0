"""The pieces of torn `llm_scaler` records: what each can be, and how digits that run together can be split.

A record is seven writes; `segments` turns text into a row of such pieces, each with all its readings.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

PREFIX_TEXT = "[llm-scaler][moe-kernel] device="
KERNEL_TEXT = ' kernel="'
WAIT_TEXT = '" wait_ms='

#: The seven writes in order, and a whole record that stood alone.
PREFIX, DEVICE, KERNEL, NAME, WAIT, VALUE, END, WHOLE = range(8)
STAGES = 7

INTACT = re.compile(r'\[llm-scaler\]\[moe-kernel\] device=(-?\d+) kernel="([^"\[]+)" wait_ms=([0-9.e+-]+)')
#: A double as a C++ stream prints it by default: no trailing zeros, an exponent of two digits.
_NUMBER = re.compile(r"(?:0|[1-9]\d{0,5})(?:\.\d*[1-9])?(?:e-\d\d)?")
_LONGEST_NUMBER = 14

#: Natural logarithms of milliseconds in which times are counted: from under 1 ns, steps of a tenth.
_LOWEST, _STEP, _BINS = -14.0, 0.1, 260
#: What part of the times is taken to be spread wider than the rest, and how many times: outliers.
_OUTLIERS, _WIDER = 0.03, 5


def significant(text: str) -> int:
    """Return how many significant digits a number is printed with."""
    return len(text.split("e")[0].replace(".", "").lstrip("0"))


def is_number(text: str) -> bool:
    """Return whether a C++ stream prints a double like this.

    >>> [is_number(t) for t in ("0.04465", "12", "9.1e-05", "0.0446500", "0.00009", "1234567", "")]
    [True, True, True, False, False, False, False]
    """
    if not _NUMBER.fullmatch(text) or significant(text) > 6:
        return False
    value = float(text)
    return value == 0 or (value < 1e-4) == ("e-" in text)


class Piece(NamedTuple):
    """One reading of a piece of text: between two positions of its segment.

    `what` is the kind and what it names: a device's number, a kernel's number, both for a whole record, or -1.
    `likely` tells of a value how likely it is for each kernel.
    """

    start: int
    end: int
    what: tuple[int, int, int]
    text: str
    likely: Sequence[float] = ()


class Segment(NamedTuple):
    """Text that begins and ends between two writes: one piece, or digits with all ways to split them.

    `quiet` tells that no record is open after it.
    """

    line: int
    pieces: list[Piece]
    size: int = 1
    quiet: bool = False


@dataclass(slots=True)
class Known:
    """What the intact lines tell: devices, kernels, who follows whom, how long each takes, digits printed."""

    devices: list[str]
    kernels: list[str]
    #: How many processes write as each device.
    writers: int
    #: Kernel, next kernel of the same process: how often in lines that follow without a tear.
    follows: dict[tuple[int, int], int]
    _density: list[list[float]]
    _digits: list[float]

    @classmethod
    def learn(cls, lines: pl.DataFrame) -> "Known | None":
        """Learn from all lines (column text); None if too few are intact."""
        texts = lines["text"].to_list()
        matches = [INTACT.fullmatch(t.rstrip()) for t in texts]
        good = [(m[1], m[2], m[3]) for m in matches if m and is_number(m[3])]
        names = Counter(k for _, k, _ in good)
        if len(good) < ENOUGH:
            return None
        kernels = [k for k in sorted(names, key=lambda k: -len(k)) if not _glued(k, names)]
        devices = _devices(Counter(d for d, _, _ in good), _lone_integers(lines))
        number = {k: i for i, k in enumerate(kernels)}
        logs: list[list[float]] = [[] for _ in kernels]
        digits = Counter[int]()
        follows: dict[tuple[int, int], int] = defaultdict(int)
        last: dict[str, int] = {}
        for match in matches:
            if match is None or match[1] not in devices or match[2] not in number or not is_number(match[3]):
                last.clear()
                continue
            kernel = number[match[2]]
            logs[kernel].append(_log(match[3]))
            digits[significant(match[3])] += 1
            if match[1] in last:
                follows[last[match[1]], kernel] += 1
            last[match[1]] = kernel
        total = sum(digits.values())
        writers = math.ceil(_most_open(texts) / len(devices))
        shares = [(digits[n] + 0.02) / (total + 0.2) for n in range(8)]
        return cls(devices, kernels, writers, follows, [_density(v) for v in logs], shares)

    def learn_times(self, values: Iterable[tuple[str, str]]) -> None:
        """Learn how long each kernel takes from (kernel, time) of rebuilt records too: more of them, more outliers."""
        logs: dict[str, list[float]] = defaultdict(list)
        for kernel, text in values:
            logs[kernel].append(_log(text))
        self._density = [_density(logs[k]) if len(logs[k]) >= ENOUGH else d
                         for k, d in zip(self.kernels, self._density, strict=True)]  # fmt: skip

    def likelihoods(self, text: str) -> list[float]:
        """Return how likely each kernel's time is printed as this text: density per log unit, times that of digits."""
        at = min(max(int((_log(text) - _LOWEST) / _STEP), 0), _BINS - 1)
        share = self._digits[significant(text)]
        return [share * d[at] for d in self._density]


#: Intact records that are needed to learn from.
ENOUGH = 20


def _glued(name: str, names: Counter[str]) -> bool:
    """Whether a name is digits (another record's device or time), commoner names, or a rare one both run together."""
    if not name.strip("0123456789.e-"):
        return True
    commoner = [k for k in names if k != name and k in name and names[name] < names[k]]
    if commoner and re.fullmatch(f"(?:{'|'.join(map(re.escape, commoner))}){{2,}}", name):
        return True
    common = [k for k in commoner if names[name] < 0.01 * names[k] + 2]
    return bool(common) and re.fullmatch(f"(?:{'|'.join(map(re.escape, common))}|[0-9.e-])+", name) is not None


def _lone_integers(lines: pl.DataFrame) -> Counter[str]:
    """Count the integers that stand between two other pieces: devices, and a few times that happen to be whole."""
    found = lines.lazy().select(
        pl.col("text").str.extract_all(r'(?:^|[="])-?\d{1,3}(?: kernel="|" wait|\[|$)').list.explode().alias("text")
    )  # fmt: skip
    counts = found.drop_nulls().select(pl.col("text").str.extract(r"(-?\d+)")).group_by("text").len().collect()
    return Counter(dict(counts.iter_rows()))


def _devices(intact: Counter[str], alone: Counter[str]) -> list[str]:
    """Return the devices' numbers: common ones that are not others' run together, unless many whole records say so."""
    found = {d for d in intact if intact[d] >= 0.02 * max(intact.values())}
    found -= {d for d in found if _runs_together(d, [o for o in found if intact[o] > 3 * intact[d]])}
    candidates = found | {d for d in alone if alone[d] >= 0.05 * max(alone.values())}
    return sorted(d for d in candidates if d in found or not _runs_together(d, [o for o in candidates if o != d]))


def _runs_together(number: str, others: Sequence[str]) -> bool:
    return bool(others) and re.fullmatch(f"(?:{'|'.join(map(re.escape, others))}){{2,}}", number) is not None


def _log(text: str) -> float:
    value = float(text)
    return math.log(value) if value else _LOWEST


def _density(logs: Sequence[float]) -> list[float]:
    """Smooth a histogram of logarithms: as wide as the fewness of values asks, a part wider: outliers.

    As much as one value more is spread evenly: what was not seen in so many is that rare.
    """
    many = len(logs)
    if not many:
        return [1 / (_BINS * _STEP)] * _BINS
    counts, _ = np.histogram(np.clip(logs, _LOWEST, None), _BINS, (_LOWEST, _LOWEST + _BINS * _STEP))
    spread = 1.4826 * float(np.median(np.abs(np.asarray(logs) - np.median(logs))))
    width = max(_STEP, 1.06 * max(spread, 0.05) * many**-0.2)
    seen = (1 - _OUTLIERS) * _smooth(counts, width) + _OUTLIERS * _smooth(counts, _WIDER * width)
    return [float(x) for x in (seen + 1 / (_BINS * _STEP)) / (many + 1)]


def _smooth(counts: np.ndarray, width: float) -> np.ndarray:
    reach = np.arange(-60, 61) * _STEP
    bell = np.exp(-((reach / width) ** 2) / 2)
    return np.asarray(np.convolve(counts, bell / bell.sum(), mode="same") / _STEP)


def _most_open(texts: Sequence[str]) -> int:
    """Return how many records are open at once in all but a thousandth of the lines."""
    seen, now = Counter[int](), 0
    for text in texts:
        begun = text.count(PREFIX_TEXT)
        if begun or now:
            now += begun
            seen[now] += 1
            now -= 1
    enough, most = 0.999 * sum(seen.values()), 0
    for number in sorted(seen):
        enough -= seen[number]
        most = number
        if enough <= 0:
            break
    return max(most, 1)


def segments(lines: pl.DataFrame, known: Known) -> Iterator[Segment]:
    """Cut the text (line UInt32, text String) into segments; lines of other programs are passed over."""
    literals = {PREFIX_TEXT: PREFIX, KERNEL_TEXT: KERNEL, WAIT_TEXT: WAIT}
    kernels = {k: i for i, k in enumerate(known.kernels)}
    devices = {d: i for i, d in enumerate(known.devices)}
    token = re.compile("|".join([*map(re.escape, (*literals, *known.kernels)), r"[0-9.-][0-9.e-]*"]))
    digits = _Digits(devices, known.likelihoods)
    most = known.writers * len(devices)
    opened = 0
    for line, text in lines.select("line", "text").iter_rows():
        if not opened:
            match = INTACT.fullmatch(text.rstrip())
            if match and match[1] in devices and match[2] in kernels and is_number(match[3]):
                yield Segment(line, [Piece(0, 1, (WHOLE, devices[match[1]], kernels[match[2]]), match[3])], quiet=True)
                continue
            if PREFIX_TEXT not in text:
                continue
        row = []
        found = list(token.finditer(text))
        foreign = sum(len(m[0]) for m in found) < len(text.rstrip())
        if foreign and not any(m[0] in literals or m[0] in kernels for m in found):
            continue
        before = -1
        for piece in found:
            word = piece[0]
            if word in literals:
                opened += word == PREFIX_TEXT
                row.append(Segment(line, [Piece(0, 1, (literals[word], -1, -1), word)]))
            elif word in kernels:
                row.append(Segment(line, [Piece(0, 1, (NAME, -1, kernels[word]), word)]))
            elif not foreign or piece.start() == before:
                row.append(Segment(line, digits.readings(word), len(word)))
            before = piece.end()
        closed = not foreign or before >= len(text.rstrip())
        if closed and opened:
            opened -= 1
            row.append(Segment(line, [Piece(0, 1, (END, -1, -1), "\n")], quiet=opened == 0))
        if opened > 4 * most:  # a line end was lost long ago
            opened = 0
        yield from row


class _Digits:
    """Finds the ways to split digits into devices and numbers."""

    def __init__(self, devices: dict[str, int], likelihoods: Callable[[str], list[float]]) -> None:
        self._devices = devices
        self._likelihoods = likelihoods

    def readings(self, text: str) -> list[Piece]:
        """Return all pieces that lie on a way from the first digit to the last, by their start."""
        size = len(text)
        pieces: list[Piece] = []
        leads = {size}
        for start in range(size - 1, -1, -1):
            for end in range(start + 1, min(size, start + _LONGEST_NUMBER) + 1):
                if end not in leads:
                    continue
                word = text[start:end]
                if word in self._devices:
                    pieces.append(Piece(start, end, (DEVICE, self._devices[word], -1), word))
                    leads.add(start)
                if is_number(word):
                    pieces.append(Piece(start, end, (VALUE, -1, -1), word))
                    leads.add(start)
        reached, kept = {0}, []
        for piece in reversed(pieces):
            if piece.start in reached:
                reached.add(piece.end)
                likely = self._likelihoods(piece.text) if piece.what[0] == VALUE else ()
                kept.append(piece._replace(likely=likely))
        return kept
