"""Who wrote which piece of a torn stream: a hidden Markov model of the processes that share it.

Its state is each process's device, stage within its record and last kernel, processes in the order of their last
writes. A process is drawn to write next; what it writes follows from its stage. Learned by expectation and maximisation
(Baum-Welch) are how likely each process is next, given which have a record open and from which places in this order the
last two writers came (who runs, who rests); and which kernel follows which. Forward and backward probabilities of all
readings give each value the probability of belonging to each device and kernel.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tracekit.parsers.torn_pieces import END, PREFIX, VALUE, WHOLE, Known, Piece, Segment

#: A process: device's number, stage (the kind it writes next), its last or present kernel (-1: unknown).
Process = tuple[int, int, int]
#: Processes, the one that wrote last first; the places in this order from which the last writers came, likewise.
State = tuple[tuple[Process, ...], tuple[int, ...]]
#: What decides who is next: the places from which the last writers came, which processes have a record open. The stage
#: within a record does not: all its writes are alike, and with fewer contexts each is learned better.
Context = tuple[tuple[int, ...], tuple[int, ...]]
#: The state's number after a piece is written, weight, device, kernel; what the weight is made of: the context's
#: number, the writer's place, how many share it, the kernels before and now (None: not known, or none is written).
Move = tuple[int, float, int, int, int, int, int, tuple[int, int] | None]
What = tuple[int, int, int]
States = dict[int, float]
#: The probability of a value being that of a device and a kernel, numbers both.
Votes = dict[tuple[int, int], float]


#: How much is believed of a coarser context when a finer one is learned: one of these, in counts.
_BELIEFS = tuple(10.0 * 10 ** (n / 4) for n in range(17))
#: Up to so many processes, the order of their last writes is kept whole; of more, only those in a record, so many.
FEW = 4
_PLACES = 3
#: The place from which a writer came is told apart up to this.
_CAME = 3
#: So many of these places are remembered. What more would tell is less than what a log can teach of it.
_BACK = 2


class Writers:
    """The model, with all states seen so far numbered and their moves kept."""

    def __init__(self, known: Known) -> None:
        self.known = known
        processes = len(known.devices) * known.writers
        self._few = processes <= FEW
        #: How many places are told apart.
        self.width = processes if self._few else _PLACES + 3
        self._states: list[State] = []
        self._numbers: dict[State, int] = {}
        self._contexts: dict[Context, int] = {}
        self._context_of: list[int] = []
        self._chances: list[list[float]] = []
        self._moves: dict[What, dict[int, list[Move]]] = defaultdict(dict)
        kernels = range(len(known.kernels))
        self._follow = _shares({(a, b): float(known.follows.get((a, b), 0)) for a in kernels for b in kernels}, 0.5)
        #: How often each place was next, by context; and each kernel after each other.
        self.counted: dict[int, list[float]] = {}
        self.followed: dict[tuple[int, int], float] = defaultdict(float)

    def start(self) -> States:
        """Return the state in which nothing is known."""
        idle = [(d, 0, -1) for d in range(len(self.known.devices)) for _ in range(self.known.writers)]
        return {self._number(self._state(idle, ())): 1.0}

    def _state(self, processes: Sequence[Process], came: tuple[int, ...]) -> State:
        """Return a state of processes, the one that wrote last first; the last writers came from these places."""
        if self._few:
            return tuple(processes), came
        busy = [p for p in processes if p[1]]
        first = 0 if processes[0][1] else 1
        idle = [p for p in processes[first:] if not p[1]]
        idle.sort()
        if len(busy) > _PLACES + 1:
            busy[_PLACES:] = sorted(busy[_PLACES:])
        return (*processes[:first], *busy, *idle), came

    def _number(self, state: State) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._states)
            self._states.append(state)
            processes, came = state
            busy = tuple([int(stage > 0) for _, stage, _ in processes])
            context = (came, busy if self._few else (busy[0], sum(busy)))
            if context not in self._contexts:
                self._contexts[context] = len(self._contexts)
                self._chances.append(self._guess(context))
            self._context_of.append(self._contexts[context])
        return number

    def _guess(self, context: Context) -> list[float]:
        """Before anything is learned: who is in a record goes on with it; otherwise all are alike."""
        row = [1.0] * self.width
        if context[1][0]:
            row[0 if self._few else 1] = 4.0
        return [x / sum(row) for x in row]

    def moves(self, what: What) -> dict[int, list[Move]]:
        """Return who can write a piece, by state, as far as it was looked for."""
        return self._moves[what]

    def find(self, number: int, what: What) -> list[Move]:
        """Look for who can write a piece in a state, and keep it."""
        kind, named, kernel_named = what
        processes, came = self._states[number]
        context = self._context_of[number]
        wants = PREFIX if kind == WHOLE else kind
        found = self._moves[what][number] = []
        for at, (device, stage, kernel) in enumerate(processes):
            if stage != wants or (named >= 0 and device != named):
                continue
            place, alike = (at, 1) if self._few else self._place(processes, at)
            follow = (kernel, kernel_named) if kernel_named >= 0 and kernel >= 0 else None
            own = kernel_named if kernel_named >= 0 else kernel
            after = (device, 0 if kind in (END, WHOLE) else stage + 1, own)
            rest = (after, *processes[:at], *processes[at + 1 :])
            now = () if kind == WHOLE else (min(place, _CAME), *came)[:_BACK]
            target = self._number(self._state(rest, now))
            found.append(
                (target, self._weight(context, place, alike, follow), device, own, context, place, alike, follow)
            )
        return found

    @staticmethod
    def _place(processes: Sequence[Process], at: int) -> tuple[int, int]:
        """Return a process's place, and how many share it, where only the last in a record are told apart."""
        stages = [stage for _, stage, _ in processes]
        first = 0 if stages[0] else 1
        idle = stages.count(0) - first
        if at < first:
            return 0, 1
        if not stages[at]:
            return 2 + _PLACES, idle
        return (1 + at - first, 1) if at - first < _PLACES else (1 + _PLACES, len(stages) - first - idle - _PLACES)

    def _weight(self, context: int, place: int, alike: int, follow: tuple[int, int] | None) -> float:
        weight = self._chances[context][place] / alike
        return weight if follow is None else weight * self._follow[follow]

    def learn(self) -> None:
        """Take what was counted as the new chances, and forget it."""
        sums: dict[Context, list[float]] = {}
        for (came, busy), at in self._contexts.items():
            if count := self.counted.get(at):
                for key in _coarser(came, busy):
                    sums[key] = [a + b for a, b in zip(sums.get(key, [0.0] * self.width), count, strict=True)]
        likely = believed(sums, self.width)
        for context, at in self._contexts.items():
            self._chances[at] = next(likely[key] for key in (*_coarser(*context), None) if key in likely)
        self._follow = _shares(self.followed, 0.01, self._follow)
        for by_state in self._moves.values():
            for number, moves in by_state.items():
                by_state[number] = [(m[0], self._weight(*m[4:]), *m[2:]) for m in moves]
        self.counted, self.followed = {}, defaultdict(float)


def _coarser(came: tuple[int, ...], busy: tuple[int, ...]) -> list[Context]:
    """Return a context and those that know less, the finest first."""
    return [(came[:known], busy) for known in range(len(came), -1, -1)]


def believed(sums: dict[Context, list[float]], width: int) -> dict[Context | None, list[float]]:
    """Return the chances in each context: what was counted, and what a coarser context says, as far as that is fit.

    A hierarchy of Dirichlet priors; how much is believed of the coarser level is what makes the counts of the finer
    most likely (MacKay and Peto, A Hierarchical Dirichlet Language Model, 1995).
    """
    found: dict[Context | None, list[float]] = {None: [1 / width] * width}
    for known in range(_BACK + 1):
        level = [key for key in sums if len(key[0]) == known]
        above = {key: found[(key[0][:-1], key[1]) if known else None] for key in level}
        fit = [sum(_evidence(sums[key], above[key], belief) for key in level) for belief in _BELIEFS]
        belief = _BELIEFS[fit.index(max(fit))]
        for key in level:
            total = sum(sums[key]) + belief
            found[key] = [(c + belief * p) / total for c, p in zip(sums[key], above[key], strict=True)]
    return found


def _evidence(count: Sequence[float], prior: Sequence[float], belief: float) -> float:
    """Return the logarithm of how likely the counts are, if the chances are drawn around `prior`."""
    drawn = sum(math.lgamma(belief * p + c) - math.lgamma(belief * p) for c, p in zip(count, prior, strict=True))
    return drawn + math.lgamma(belief) - math.lgamma(belief + sum(count))


def _shares(
    count: dict[tuple[int, int], float], least: float, also: dict[tuple[int, int], float] | None = None
) -> dict[tuple[int, int], float]:
    """Return the part of each second among those of its first."""
    keys = count if also is None else also
    totals: dict[int, float] = defaultdict(float)
    for first, second in keys:
        totals[first] += count.get((first, second), 0.0) + least
    return {(a, b): (count.get((a, b), 0.0) + least) / totals[a] for a, b in keys}


def pruned(states: States, beam: float, most: int) -> States:
    """Keep the likely states, the best at 1."""
    if not states:
        return states
    best = max(states.values())
    if best <= 0:
        return {}
    least = best * beam
    kept = {s: p / best for s, p in states.items() if p > least}
    if len(kept) > most:
        kept = dict(sorted(kept.items(), key=lambda item: -item[1])[:most])
    return kept


class Reading:
    """Forward probabilities of a row of segments, grown segment by segment, and what follows from them."""

    def __init__(self, writers: Writers, start: States, beam: float, most: int) -> None:
        self._writers = writers
        self._beam, self._most = beam, most
        self.segments: list[Segment] = []
        self.ahead: list[States] = [start]

    @property
    def now(self) -> States:
        """The states after the last segment; empty where no order of writes explains it."""
        return self.ahead[-1]

    def add(self, segment: Segment) -> None:
        """Read one more segment."""
        self.segments.append(segment)
        local = self._inside(segment, self.ahead[-1])
        self.ahead.append(pruned(local.get(segment.size, {}), self._beam, self._most))

    def _inside(self, segment: Segment, start: States) -> dict[int, States]:
        """Return the states at each position of a segment."""
        local: dict[int, States] = {0: start}
        for piece in segment.pieces:
            before = local.get(piece.start)
            if not before:
                continue
            after = local.setdefault(piece.end, {})
            get = after.get
            kept, likely = self._writers.moves(piece.what), piece.likely
            for state, p in before.items():
                moves = kept.get(state)
                if moves is None:
                    moves = self._writers.find(state, piece.what)
                for move in moves:
                    target = move[0]
                    after[target] = get(target, 0.0) + (p * move[1] * likely[move[3]] if likely else p * move[1])
        return local

    def cut(self, size: int) -> None:
        """Forget all but so many segments."""
        del self.segments[size:], self.ahead[size + 1 :]

    def votes(self, *, count: bool = False) -> Iterator[tuple[int, Piece, Votes]]:
        """Yield each value's number of segment, piece and probabilities, the last first; `count` what is learned."""
        behind: States = dict.fromkeys(self.ahead[-1], 1.0)
        for number in range(len(self.segments) - 1, -1, -1):
            segment, start = self.segments[number], self.ahead[number]
            local = {0: start} if len(segment.pieces) == 1 else self._inside(segment, start)
            back: dict[int, States] = {segment.size: behind}
            found: list[tuple[Piece, list[tuple[Move, float]]]] = []
            for piece in reversed(segment.pieces):
                before, after = local.get(piece.start), back.get(piece.end)
                if before and after:
                    own = back.setdefault(piece.start, {})
                    if count or piece.what[0] in (VALUE, WHOLE):
                        found.append((piece, self._moved(piece, before, after, own)))
                    else:
                        self._back(piece, before, after, own)
            own = back.get(0, {})
            whole = sum(p * own.get(s, 0.0) for s, p in start.items()) if found else 1.0
            for piece, moved in found:
                if count:
                    self._count(moved, whole)
                if moved and piece.what[0] in (VALUE, WHOLE):
                    yield number, piece, _votes(moved, whole)
            best = max(own.values())
            behind = {s: p / best for s, p in own.items()}

    def _back(self, piece: Piece, before: States, after: States, own: States) -> None:
        """Add a piece that is no value to the backward probabilities at its start."""
        kept = self._writers.moves(piece.what)
        get = after.get
        for state in before:
            total = 0.0
            for move in kept[state]:
                total += move[1] * get(move[0], 0.0)
            if total:
                own[state] = own.get(state, 0.0) + total

    def _moved(self, piece: Piece, before: States, after: States, own: States) -> list[tuple[Move, float]]:
        """Add a piece to the backward probabilities at its start; return its moves and their unscaled probabilities."""
        moved: list[tuple[Move, float]] = []
        kept, likely = self._writers.moves(piece.what), piece.likely
        for state, p in before.items():
            for move in kept[state]:
                b = after.get(move[0])
                if b:
                    b *= move[1] * likely[move[3]] if likely else move[1]
                    own[state] = own.get(state, 0.0) + b
                    moved.append((move, p * b))
        return moved

    def _count(self, moved: list[tuple[Move, float]], whole: float) -> None:
        writers = self._writers
        for move, p in moved:
            row = writers.counted.get(move[4])
            if row is None:
                row = writers.counted[move[4]] = [0.0] * writers.width
            row[move[5]] += p / whole
            if move[7] is not None:
                writers.followed[move[7]] += p / whole


def _votes(moved: list[tuple[Move, float]], whole: float) -> Votes:
    votes: Votes = defaultdict(float)
    for move, p in moved:
        votes[move[2], move[3]] += p / whole
    return votes
