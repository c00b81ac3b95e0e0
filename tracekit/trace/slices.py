"""From placed rows to slices as they are written: numbered texts for names and categories, arguments by columns."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tracekit.trace.placement import LAYER, OPERATION, STEP, Placed
from tracekit.trace.source import Ints, column, known
from tracekit.trace.survey import Survey
from tracekit.trace.trees import brackets

#: What an operation's slice tells besides its name and category. Text unless it stands in `_NUMBERS`.
ARGUMENTS = ("name", "shape", "tokens", "line", "call", "stream", "clock", "device")
_NUMBERS = ("tokens", "line", "call", "device")

#: Arguments that are left out where all events of a worker's log agree: its track and its steps tell them once.
_OF_TRACK = ("stream", "clock", "device")


#: Every name that an argument of a slice may have.
ARGUMENT_NAMES = (*ARGUMENTS, "step", "run", "shifted_ns", "calls", "mean_ns", "min_ns", "max_ns", "total_ns", "basis")


@dataclass(slots=True)
class Numbering:
    """Numbers texts from 1 in the order in which they are met; 0 is none."""

    known: list[str] = field(default_factory=lambda: [""])
    _numbers: dict[str, int] = field(default_factory=dict)
    _by_code: Ints = field(default_factory=lambda: np.full(1024, -1, np.int64))

    def number(self, text: str) -> int:
        """Return the number of a text."""
        found = self._numbers.setdefault(text, len(self.known))
        if found == len(self.known):
            self.known.append(text)
        return found

    def numbers(self, column: pl.Series) -> Ints:
        """Return the number of each value of a Categorical; 0 for null. Each distinct value is looked up once ever."""
        there = column.is_not_null().to_numpy() if column.null_count() else None
        codes = known(column, otherwise=0)
        top = int(codes.max(initial=0))
        if top >= len(self._by_code):
            grown = np.full(2 * top, -1, np.int64)
            grown[: len(self._by_code)] = self._by_code
            self._by_code = grown
        numbers = self._by_code[codes]
        if (numbers < 0).any():
            for text in column.filter(pl.Series(numbers < 0)).unique().drop_nulls():
                code = int(pl.Series([text], dtype=pl.Categorical()).to_physical()[0])
                self._by_code[code] = self.number(text)
            numbers = self._by_code[codes]
        return numbers if there is None else np.where(there, numbers, 0)


@dataclass(slots=True)
class Texts:
    """The texts of a trace, numbered by kind, so that the few names of operations keep small numbers."""

    names: Numbering = field(default_factory=Numbering)
    categories: Numbering = field(default_factory=Numbering)
    values: Numbering = field(default_factory=Numbering)


@dataclass(slots=True)
class Argument:
    """An argument of some slices: the rows that have it, and a value each (of a text: its number)."""

    name: str
    rows: Ints
    values: Ints
    is_text: bool


@dataclass(slots=True)
class Slices:
    """Slices ordered by track, then time, children before their parents.

    Attributes:
        track, start_ns, dur_ns, depth: per slice.
        name, category: numbers of texts, per slice.
        arguments: by name.
        opens, closes: where each slice's two ends stand among all of them.
        flows_out, flows_in: rows and ids of arrows that leave and reach a slice.
    """

    track: Ints
    start_ns: Ints
    dur_ns: Ints
    depth: Ints
    name: Ints
    category: Ints
    arguments: Sequence[Argument]
    flows_out: tuple[Ints, Ints]
    flows_in: tuple[Ints, Ints]
    opens: Ints = field(init=False)
    closes: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.opens, self.closes = brackets(self.depth)


def step_keys(placed: Placed, steps: Ints) -> list[tuple[int, int, int]]:
    """Return strand, run and step of slices that are steps."""
    rows = placed.row[steps]
    run, step = (column(placed.frame, c)[rows].tolist() for c in ("run", "step"))
    return list(zip(placed.strand[rows].tolist(), run, step, strict=True))


@dataclass(slots=True)
class Describer:
    """Gives placed rows their names, categories and arguments."""

    survey: Survey
    texts: Texts
    wanted: Sequence[str]
    flows: dict[tuple[int, int, int], tuple[int, int]]

    def describe(self, placed: Placed) -> Slices:
        """Return the slices of one piece."""
        operations = np.flatnonzero(placed.kind == OPERATION)
        steps = np.flatnonzero(placed.kind == STEP)
        layers = np.flatnonzero(placed.kind == LAYER)
        name = np.empty(len(placed.kind), np.int64)
        category = np.empty(len(placed.kind), np.int64)
        rows = placed.row[operations]
        name[operations] = self._known(self.texts.names, placed.frame["op"], "unnamed")[rows]
        category[operations] = self._known(self.texts.categories, placed.frame["category"], "other")[rows]
        self._name_layers(placed, layers, name, category)
        keys = step_keys(placed, steps)
        self._name_steps(placed, steps, name, category)
        arguments = [self._argument(placed, operations, one) for one in self.wanted]
        arguments += self._arguments_of_steps(placed, steps, keys)
        if placed.shift_ns is not None:
            moved = np.flatnonzero(placed.shift_ns)
            arguments.append(Argument("shifted_ns", moved, placed.shift_ns[moved], is_text=False))
        return Slices(
            placed.track,
            placed.start_ns,
            placed.dur_ns,
            placed.depth,
            name,
            category,
            [a for a in arguments if len(a.rows)],
            *self._arrows(steps, keys),
        )

    @staticmethod
    def _known(numbering: Numbering, column: pl.Series, otherwise: str) -> Ints:
        """Return the numbers of a column's texts, of another text where there is none."""
        numbers = numbering.numbers(column)
        return np.where(numbers > 0, numbers, numbering.number(otherwise)) if column.null_count() else numbers

    def _name_layers(self, placed: Placed, layers: Ints, name: Ints, category: Ints) -> None:
        number = column(placed.frame, "layer")[placed.row[layers]]
        known, back = np.unique(number, return_inverse=True)
        name[layers] = np.array([self.texts.names.number(f"layer {n}") for n in known], np.int64)[back]
        category[layers] = self.texts.categories.number("layer")

    def _name_steps(self, placed: Placed, steps: Ints, name: Ints, category: Ints) -> None:
        """Name steps by phase and number, so that prefill and decode differ in colour."""
        rows = placed.row[steps]
        phases = (
            placed.frame["phase"].gather(pl.Series(rows, dtype=pl.UInt32)).cast(pl.String).fill_null("step").to_list()
        )
        step = column(placed.frame, "step")[rows].tolist()
        name[steps] = [self.texts.names.number(f"{p} {s}") for p, s in zip(phases, step, strict=True)]
        category[steps] = [self.texts.categories.number(p) for p in phases]

    def _argument(self, placed: Placed, operations: Ints, name: str) -> Argument:
        """Return one argument of the operations, where it is known and says something."""
        series = placed.frame[name]
        rows = placed.row[operations]
        if name in _OF_TRACK and all(self._agrees(s, name) for s in np.unique(placed.strand)):
            return Argument(name, rows[:0], rows[:0], is_text=name not in _NUMBERS)
        if name in _NUMBERS:
            has = series.is_not_null().to_numpy()
            values = known(series, otherwise=0)
        else:
            values = self.texts.values.numbers(series)
            has = values > 0
            if name == "name":
                has &= (series != placed.frame["op"]).fill_null(value=True).to_numpy()
        if has.all():
            return Argument(name, operations, values[rows], is_text=name not in _NUMBERS)
        there = has[rows]
        return Argument(name, operations[there], values[rows[there]], is_text=name not in _NUMBERS)

    def _agrees(self, strand: int, name: str) -> bool:
        """Whether the argument is one and the same on the whole strand: a strand has one stream and clock."""
        return name != "device" or len(self.survey.facts[strand].devices) <= 1

    def _arguments_of_steps(self, placed: Placed, steps: Ints, keys: Sequence[tuple[int, int, int]]) -> list[Argument]:
        if not len(steps):
            return []
        strands = [self.survey.strands.known[k[0]] for k in keys]
        devices = [self.survey.facts[k[0]].devices for k in keys]
        tokens = placed.frame["tokens"].gather(pl.Series(placed.row[steps], dtype=pl.UInt32))
        given = np.flatnonzero(tokens.is_not_null().to_numpy())
        single = np.flatnonzero([len(d) == 1 for d in devices])
        text = {
            "stream": [self.texts.values.number(s.stream) for s in strands],
            "clock": [self.texts.values.number(s.clock) for s in strands],
        }
        return [
            Argument("step", steps, np.array([k[2] for k in keys], np.int64), is_text=False),
            Argument("run", steps, np.array([k[1] for k in keys], np.int64), is_text=False),
            Argument("tokens", steps[given], tokens.drop_nulls().cast(pl.Int64).to_numpy(), is_text=False),
            *(Argument(n, steps, np.array(v, np.int64), is_text=True) for n, v in text.items()),
            Argument(
                "device", steps[single], np.array([next(iter(devices[i])) for i in single], np.int64), is_text=False
            ),
        ]

    def _arrows(self, steps: Ints, keys: Sequence[tuple[int, int, int]]) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
        """Return the arrows between the parts of a step: where each leaves and where it arrives."""
        ends = np.array([self.flows.get(k, (0, 0)) for k in keys], np.int64).reshape(-1, 2)
        out, into = np.flatnonzero(ends[:, 0]), np.flatnonzero(ends[:, 1])
        return (steps[out], ends[out, 0]), (steps[into], ends[into, 1])
