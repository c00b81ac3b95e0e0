"""Records of `llm_scaler` that several processes tore apart on one standard error, rebuilt.

One record is seven writes to an unbuffered stream, and writes of several processes come in any order::

    0 ``[llm-scaler][moe-kernel] device=``   1 an integer   2 `` kernel="``   3 the kernel's name
    4 ``" wait_ms=``   5 a number   6 a line end

So the text is a mixture of as many such sequences as there are processes. What is known of it:

- the order of fragments within a record, and that a process finishes one record before it begins the next;
- how a number is printed: the default of a C++ stream, six significant digits without trailing zeros (``%g``). So a run
  of digits can be several numbers, and often only one split makes numbers that are printed like that;
- that a process's kernels take turns, where exactly two kernels do so in the intact lines;
- which kernel takes how long, from the intact lines; and who writes next, after whom: learned from the text.

A hidden Markov model puts this together: its state is each process's stage and next kernel, processes in the order of
their last writes. Forward and backward probabilities of all readings of a stretch of fragments give each value the
probability of being one, and of belonging to each device and kernel. A value stands if that is at least `SURE`; its
device and kernel are told only if `SURE_OF_OWNER`, else they are null. Nothing is invented: what is not sure is
a reject. Stretches end where no record is open, so time is linear and memory that of a stretch.

An intact-looking line can be false (a name in which two kernels are glued, a device read as a value): lines whose
kernel or device is not among the common ones of the log are taken apart like torn ones.
"""

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from tracekit.dialect import Recovered

PREFIX = "[llm-scaler][moe-kernel] device="
KERNEL = ' kernel="'
WAIT = '" wait_ms='

#: Posterior probability at which a value is told, and at which its device or kernel is. The model knows less of how
#: writers take turns than it believes: at 0.999, two or three of a thousand devices were wrong in badly torn logs.
SURE = 0.999
SURE_OF_OWNER = 1 - 1e-6

_PREFIX, _DEVICE, _KERNEL, _NAME, _WAIT, _VALUE, _END = range(7)
_WHOLE = 7
_STAGES = 7

_INTACT = re.compile(r'\[llm-scaler\]\[moe-kernel\] device=(-?\d+) kernel="([^"\[]+)" wait_ms=([0-9.e+-]+)')
#: A double as a C++ stream prints it by default: no trailing zeros, an exponent of two digits.
_NUMBER = re.compile(r"(?:0|[1-9]\d{0,5})(?:\.\d*[1-9])?(?:e-\d\d)?")
_LONGEST_NUMBER = 14

#: States that are kept of a node: the most likely ones, down to this part of the best.
_BEAM = 1e-9
_MOST_STATES = 600
#: Where no reading is left, it is read again with this part of the best and so many states.
_WIDE_BEAM = 1e-15
_WIDE_STATES = 6_000
#: Fragments from which the order of writers is learned, and how often it is refined.
_LEARN_FRAGMENTS = 4_000
_ROUNDS = 3
#: Intact records that are needed to learn from.
_ENOUGH = 20
#: A stretch that never ends (a lost line end) is cut here.
_MOST_FRAGMENTS = 20_000


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


def is_torn(lines: pl.DataFrame) -> bool:
    """Return whether any line (column text) has pieces of a record and is not one whole record."""
    text = pl.col("text")
    piece = text.str.contains_any([PREFIX, KERNEL, WAIT])
    whole = text.str.contains("^" + _INTACT.pattern + r"\s*$")
    return bool(lines.select((piece & ~whole).any()).item())


class _Intact(NamedTuple):
    """A whole record that stands alone on its line."""

    device: str
    kernel: int
    text: str


#: From node, to node, kind of fragment, what it holds: text, the number of a kernel, a whole record.
Edge = tuple[int, int, int, "str | int | _Intact"]


@dataclass(frozen=True, slots=True)
class _Value:
    line: int
    text: str
    device: str | None
    kernel: str | None
    recovered: bool


@dataclass(slots=True)
class _Log:
    """What the intact lines tell of the log."""

    devices: list[str]
    kernels: list[str]
    takes_turns: bool
    usual: dict[int, tuple[float, float]]  # kernel: median and spread of log(ms)
    digits: dict[int, float]

    @classmethod
    def learn(cls, intact: Sequence[tuple[str, str, str]]) -> "_Log":
        good = [x for x in intact if is_number(x[2])]
        names, owners = Counter(k for _, k, _ in good), Counter(d for d, _, _ in good)
        kernels = [
            k for k in sorted(names, key=lambda k: -len(k))
            if not any(other != k and other in k and names[k] < 0.01 * names[other] + 2 for other in names)
        ]  # fmt: skip
        devices = sorted(d for d in owners if owners[d] >= 0.02 * max(owners.values()))
        good = [x for x in good if x[1] in kernels and x[0] in devices]
        logs: dict[int, list[float]] = defaultdict(list)
        for _, kernel, value in good:
            logs[kernels.index(kernel)].append(_log(value))
        usual = {}
        for kernel_id, values in logs.items():
            middle = statistics.median(values)
            usual[kernel_id] = (middle, max(0.05, 1.4826 * statistics.median(abs(v - middle) for v in values)))
        count = Counter(significant(v) for _, _, v in good)
        total = sum(count.values())
        digits = {n: (count[n] + 0.02) / (total + 0.2) for n in range(8)}
        return cls(devices, kernels, cls._turns(good, len(kernels)), usual, digits)

    @staticmethod
    def _turns(good: Sequence[tuple[str, str, str]], kernels: int) -> bool:
        """Whether two kernels take turns: a device's intact lines, gaps included, change more often than not."""
        if kernels != 2:
            return False
        last: dict[str, str] = {}
        changed = same = 0
        for device, kernel, _ in good:
            if device in last:
                changed += last[device] != kernel
                same += last[device] == kernel
            last[device] = kernel
        return changed > same

    def likelihood(self, text: str, kernel: int) -> float:
        """Return how likely a kernel's value is printed as this text (density per log unit, and digits)."""
        middle, spread = self.usual.get(kernel, (-3.0, 3.0))
        z = (_log(text) - middle) / spread
        bell = math.exp(-min(z * z / 2, 700)) / spread / math.sqrt(2 * math.pi)
        return self.digits.get(significant(text), 1e-6) * (0.97 * bell + 0.03 / 20)  # a broad tail for outliers


def _log(text: str) -> float:
    value = float(text)
    return math.log(value) if value else -12.0


@dataclass(slots=True)
class _Stretch:
    """Fragments between two moments at which no record is open: a lattice, since digits can be split in many ways."""

    edges: dict[int, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    lines: dict[int, int] = field(default_factory=dict)
    size: int = 0
    opened: int = 0
    torn: bool = False

    def add(self, kind: int, payload: str | int | _Intact, line: int) -> None:
        self.edges[self.size].append((self.size, self.size + 1, kind, payload))
        self.lines[self.size] = line
        self.size += 1

    def add_digits(self, text: str, devices: Sequence[str], line: int) -> None:
        for start in range(len(text)):
            node = self.size + start
            self.lines[node] = line
            for end in range(start + 1, min(len(text), start + _LONGEST_NUMBER) + 1):
                piece = text[start:end]
                if piece in devices:
                    self.edges[node].append((node, self.size + end, _DEVICE, piece))
                if is_number(piece):
                    self.edges[node].append((node, self.size + end, _VALUE, piece))
        self.size += len(text)


def _stretches(lines: pl.DataFrame, log: _Log) -> Iterator[_Stretch]:
    """Cut the text into stretches; lines of other programs are passed over."""
    literals = {PREFIX: _PREFIX, KERNEL: _KERNEL, WAIT: _WAIT}
    kernels = {k: i for i, k in enumerate(log.kernels)}
    token = re.compile("|".join([*map(re.escape, (*literals, *log.kernels)), r"-\d+", r"[0-9.][0-9.e-]*"]))
    now, open_records = _Stretch(), 0
    for line, text in lines.select("line", "text").iter_rows():
        match = _INTACT.fullmatch(text.rstrip())
        if open_records == 0 and match and match[1] in log.devices and match[2] in kernels and is_number(match[3]):
            if now.torn:
                yield now
                now = _Stretch()
            now.opened += 1
            now.add(_WHOLE, _Intact(match[1], kernels[match[2]], match[3]), line)
            continue
        found = list(token.finditer(text))
        foreign = sum(len(m[0]) for m in found) < len(text.rstrip())
        ours = [m for m in found if m[0] in literals or m[0] in kernels]
        if (foreign and not ours) or (not found and open_records == 0):
            continue
        before = -1
        for piece in found:
            if piece[0] in literals:
                now.opened += piece[0] == PREFIX
                open_records += piece[0] == PREFIX
                now.add(literals[piece[0]], piece[0], line)
            elif piece[0] in kernels:
                now.add(_NAME, kernels[piece[0]], line)
            elif not foreign or piece.start() == before:
                now.add_digits(piece[0], log.devices, line)
            before = piece.end()
        now.torn = True
        if open_records:
            now.add(_END, "\n", line)
            open_records -= 1
        if (open_records == 0 or now.size > _MOST_FRAGMENTS) and now.size:
            yield now
            now, open_records = _Stretch(), 0
    if now.size:
        yield now


#: The probability of a value being that of a device and kernel.
Votes = dict[tuple[str, int], float]
#: Each process's device, stage and next (or present) kernel, the one that wrote last at the end; and who that was.
Processes = tuple[tuple[str, int, int], ...]
State = tuple[Processes, int]
Move = tuple[State, State, int, int, "str | int | _Intact", str, int, float, tuple[int, int, int] | None]


@dataclass(slots=True)
class _Model:
    log: _Log
    weights: dict[tuple[int, int, int], float] = field(default_factory=lambda: defaultdict(lambda: 1.0))

    def start(self) -> State:
        return tuple((d, 0, -1) for d in self.log.devices), 0

    def moves(self, state: State, edge: Edge) -> Iterator[Move]:
        """Yield what can have written a fragment, and the state after it with its weight."""
        processes, before = state
        _, to, kind, payload = edge
        busy = 0
        for i in range(len(processes) - 1, -1, -1):
            device, stage, kernel = processes[i]
            rank = busy
            busy += stage > 0
            rest = (*processes[:i], *processes[i + 1 :])
            if isinstance(payload, _Intact):
                turn = not self.log.takes_turns or kernel in (-1, payload.kernel)
                if device == payload.device and stage == 0 and turn:
                    after = ((*rest, (device, 0, self._next(payload.kernel))), 0)
                    yield state, after, to, kind, payload, device, payload.kernel, 1.0, None
                continue
            if stage != kind or (kind == _DEVICE and device != payload):
                continue
            if kind == _NAME:
                if self.log.takes_turns and kernel not in (-1, payload):
                    continue
                kernel = int(payload)
            key = (before, kind, 9 if kind == _PREFIX else rank)
            weight = self.weights[key]
            if kind == _VALUE:
                weight *= self.log.likelihood(str(payload), kernel)
            done = kind == _END
            after = ((*rest, (device, 0 if done else stage + 1, self._next(kernel) if done else kernel)), min(rank, 3))
            yield state, after, to, kind, payload, device, kernel, weight, key

    def _next(self, kernel: int) -> int:
        return 1 - kernel if self.log.takes_turns and kernel >= 0 else -1

    def read(self, stretch: _Stretch, start: dict[State, float]) -> "_Reading":
        """Compute forward probabilities over a stretch; where the beam lost every reading, with a wide one."""
        reading = self._read(stretch, start, _BEAM, _MOST_STATES)
        return reading if reading.end else self._read(stretch, start, _WIDE_BEAM, _WIDE_STATES)

    def _read(self, stretch: _Stretch, start: dict[State, float], beam: float, most: int) -> "_Reading":
        """Compute forward probabilities, all scaled, so that none vanishes."""
        ahead: dict[int, dict[State, float]] = {0: dict(start)}
        scale = {0: 0.0}
        taken: dict[int, list[Move]] = {}
        for node in range(stretch.size):
            states = _pruned(ahead.get(node), beam, most)
            if not states:
                continue
            best = max(states.values())
            states = {s: p / best for s, p in states.items()}
            ahead[node], scale[node] = states, scale[node] + math.log(best)
            taken[node] = []
            for edge in stretch.edges.get(node, ()):
                target = ahead.setdefault(edge[1], {})
                factor = math.exp(max(-700.0, min(700.0, scale[node] - scale.setdefault(edge[1], scale[node]))))
                for state, p in states.items():
                    for move in self.moves(state, edge):
                        taken[node].append(move)
                        target[move[1]] = target.get(move[1], 0.0) + p * move[7] * factor
        return _Reading(stretch, ahead, scale, taken)


def _pruned(states: dict[State, float] | None, beam: float, most: int) -> dict[State, float]:
    """Keep the likely states."""
    if not states:
        return {}
    least = max(states.values()) * beam
    kept = {s: p for s, p in states.items() if p >= least and p > 0}
    if len(kept) > most:
        kept = dict(sorted(kept.items(), key=lambda item: -item[1])[:most])
    return kept


@dataclass(slots=True)
class _Reading:
    stretch: _Stretch
    ahead: dict[int, dict[State, float]]
    scale: dict[int, float]
    taken: dict[int, list[Move]]

    @property
    def end(self) -> dict[State, float]:
        """The states after the last fragment; empty where no reading fits."""
        return _pruned(self.ahead.get(self.stretch.size), _WIDE_BEAM, _WIDE_STATES)

    def posteriors(self) -> Iterator[tuple[int, Move, float]]:
        """Yield each move from each node with its probability, the last node first."""
        size = self.stretch.size
        behind: dict[int, dict[State, float]] = {size: dict.fromkeys(self.ahead[size], 1.0)}
        back = {size: 0.0}
        for node in range(size - 1, -1, -1):
            own: dict[State, float] = {}
            reference: float | None = None
            for move in self.taken.get(node, ()):
                p = behind.get(move[2], {}).get(move[1], 0.0)
                if p:
                    reference = back[move[2]] if reference is None else reference
                    factor = math.exp(max(-700.0, min(700.0, back[move[2]] - reference)))
                    own[move[0]] = own.get(move[0], 0.0) + p * move[7] * factor
            if own and reference is not None:
                best = max(own.values())
                behind[node] = {s: p / best for s, p in own.items()}
                back[node] = reference + math.log(best)
        if 0 not in behind:
            return
        whole = sum(p * behind[0].get(s, 0.0) for s, p in self.ahead[0].items())
        total = back[0] + self.scale[0] + math.log(whole) if whole else math.inf
        for node, moves in self.taken.items():
            for move in moves:
                p = behind.get(move[2], {}).get(move[1], 0.0)
                if p and node in behind:
                    exponent = self.scale[node] + back[move[2]] - total
                    yield node, move, self.ahead[node].get(move[0], 0.0) * move[7] * p * math.exp(min(exponent, 50.0))


def _learn_weights(model: _Model, stretches: Sequence[_Stretch]) -> None:
    """Learn who writes next after whom, by what the fragments themselves make likely (Baum-Welch)."""
    for _ in range(_ROUNDS):
        seen: dict[tuple[int, int, int], float] = defaultdict(float)
        for stretch in stretches:
            reading = model.read(stretch, {model.start(): 1.0})
            if not reading.end:
                continue
            for _node, move, p in reading.posteriors():
                if move[8] is not None:
                    seen[move[8]] += p
        totals: dict[tuple[int, int], float] = defaultdict(float)
        for (before, kind, _), count in seen.items():
            totals[before, kind] += count
        learned: dict[tuple[int, int, int], float] = defaultdict(lambda: 1e-4)
        learned.update({k: (c + 0.05) / (totals[k[0], k[1]] + 0.3) for k, c in seen.items()})
        model.weights = learned


def rebuild(lines: pl.DataFrame) -> Recovered | None:
    """Rebuild all records of a torn stream; None if too few of its records are intact to learn from.

    Args:
        lines: line UInt32, text String: all physical lines in order, other programs' and empty ones included.
    """
    intact = [m.groups() for t in lines["text"].to_list() if (m := _INTACT.fullmatch(t.rstrip()))]
    if len(intact) < _ENOUGH or not is_torn(lines):
        return None
    log = _Log.learn([(d, k, v) for d, k, v in intact])
    model = _Model(log)
    sample, size = [], 0
    for stretch in _stretches(lines, log):
        if stretch.torn:
            sample.append(stretch)
            size += stretch.size
        if size > _LEARN_FRAGMENTS:
            break
    _learn_weights(model, sample)
    values: list[_Value] = []
    rejects: list[tuple[int, str, str]] = []
    opened = 0
    state = {model.start(): 1.0}
    for stretch in _stretches(lines, log):
        opened += stretch.opened
        state = _take(model, stretch, state, values, rejects)
    return _rebuilt(values, rejects, opened)


def _take(
    model: _Model,
    stretch: _Stretch,
    state: dict[State, float],
    values: list[_Value],
    rejects: list[tuple[int, str, str]],
) -> dict[State, float]:
    """Read one stretch; return the states after it."""
    intact = {node: e[0][3] for node, e in stretch.edges.items() if isinstance(e[0][3], _Intact)}
    for node, record in intact.items():
        assert isinstance(record, _Intact)
        kernel = model.log.kernels[record.kernel]
        values.append(_Value(stretch.lines[node], record.text, record.device, kernel, recovered=False))
    if not stretch.torn:
        return {model.start(): 1.0}
    reading = model.read(stretch, state)
    if not reading.end:
        state = {model.start(): 1.0}
        reading = model.read(stretch, state)
    if not reading.end:
        rejects.append((stretch.lines[0], "torn so that no order of writes explains it", ""))
        return {model.start(): 1.0}
    votes: dict[tuple[int, int, str], Votes] = defaultdict(lambda: defaultdict(float))
    for node, move, p in reading.posteriors():
        if move[3] == _VALUE:
            votes[node, move[2], str(move[4])][move[5], move[6]] += p
    for (node, _, text), count in sorted(votes.items()):
        _decide(model.log, stretch.lines[node], text, count, values, rejects)
    return _quiet(reading.end)


def _quiet(states: dict[State, float]) -> dict[State, float]:
    """Carry on from states in which no record is open."""
    kept = {s: p for s, p in states.items() if all(stage == 0 for _, stage, _ in s[0])}
    total = sum(kept.values())
    return {s: p / total for s, p in kept.items()} if total else dict(states)


def _decide(
    log: _Log,
    line: int,
    text: str,
    count: Votes,
    values: list[_Value],
    rejects: list[tuple[int, str, str]],
) -> None:
    sure = sum(count.values())
    if sure < SURE:
        if sure > 0.5:
            rejects.append((line, "a value that can be read in several ways", text))
        return
    devices: dict[str, float] = defaultdict(float)
    kernels: dict[int, float] = defaultdict(float)
    for (device, kernel), p in count.items():
        devices[device] += p
        kernels[kernel] += p
    device, of_device = max(devices.items(), key=lambda item: item[1])
    kernel, of_kernel = max(kernels.items(), key=lambda item: item[1])
    told = device if of_device >= SURE_OF_OWNER * sure else None
    name = log.kernels[kernel] if kernel >= 0 and of_kernel >= SURE_OF_OWNER * sure else None
    values.append(_Value(line, text, told, name, recovered=True))


def _rebuilt(values: Sequence[_Value], rejects: Sequence[tuple[int, str, str]], opened: int) -> Recovered:
    events = pl.DataFrame(
        {
            "line": [v.line for v in values],
            "device": [None if v.device is None else int(v.device) for v in values],
            "kernel": [v.kernel for v in values],
            "dur_ns": [round(float(v.text) * 1e6) for v in values],
            "recovered": [v.recovered for v in values],
        },
        schema={
            "line": pl.UInt32,
            "device": pl.Int16,
            "kernel": pl.String,
            "dur_ns": pl.Int64,
            "recovered": pl.Boolean,
        },
    )
    refused = pl.DataFrame(
        {"line": [r[0] for r in rejects], "reason": [r[1] for r in rejects], "text": [r[2] for r in rejects]},
        schema={"line": pl.UInt32, "reason": pl.String, "text": pl.String},
    )
    return Recovered(events, refused, opened)
