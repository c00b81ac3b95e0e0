"""What is to be run: processes, their environment, order and readiness; from one command line or from a SPEC.toml.

The file's format is told in ``docs/capture.md``; the shipped ones are ``tracekit/rules/topology-*.toml``.
"""

import os
import re
import shlex
import shutil
import signal
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracekit import rules
from tracekit.errors import UsageError
from tracekit.topology import TOPOLOGIES, Topology

#: The shipped topologies, by name.
SHIPPED = ("ggml-rpc", "vllm-tp")

READY_TIMEOUT_S = 300.0
_LAST_PORT = 65535
_STOPS = ("TERM", "INT", "QUIT", "HUP")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_PLACE = re.compile(r"\{([a-z_.]+)\}")
_WORDS = re.compile(r"\{words\.([a-z_]+)\}")
_TOP_KEYS = frozenset(("name", "summary", "topology", "preset", "end", "values", "process"))
_PROCESS_KEYS = frozenset(
    "name group each timed command instead port ready env unset cwd after stop grace_s".split()  # noqa: SIM905
)
_READY_KEYS = frozenset(("port", "line", "after_s", "connect", "timeout_s"))


@dataclass(frozen=True, slots=True)
class Ready:
    """When a process counts as ready: exactly one of the first four is set.

    `port`: one of its processes listens on this TCP port (read from procfs: no connection is made).
    `connect`: HOST:PORT accepts a connection (one is made; for ports that another machine or container holds).
    `line`: a line of either output matches this regular expression. `after_s`: so long after its start.
    """

    port: int | None = None
    connect: str | None = None
    line: str | None = None
    after_s: float | None = None
    timeout_s: float = READY_TIMEOUT_S

    @property
    def awaited(self) -> str:
        """What had not come, when it is waited for in vain.

        >>> Ready(port=50052).awaited
        'it does not listen on port 50052'
        """
        if self.port is not None:
            return f"it does not listen on port {self.port}"
        if self.connect is not None:
            return f"{self.connect} accepts no connection"
        return f"it printed no line that matches {self.line!r}" if self.line else "it is to run longer than that"


@dataclass(frozen=True, slots=True)
class Process:
    """One program of a run. `env` and `unset` change the inherited environment; `timed` ones get the preset's."""

    name: str
    argv: tuple[str, ...]
    instead: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    cwd: str | None = None
    timed: bool = True
    ready: Ready | None = None
    after: tuple[str, ...] = ()
    stop: signal.Signals = signal.SIGTERM
    grace_s: float | None = None
    #: The TCP port that it will open, if that is known: it must be free.
    host: str = "127.0.0.1"
    port: int | None = None
    #: Which of several equal workers it is.
    index: int | None = None

    @property
    def program(self) -> str:
        """The first word of the command."""
        return self.argv[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """All processes of a run, in the order of their start; `end` is the one whose end ends the run."""

    processes: tuple[Process, ...]
    end: str
    topology: Topology | None = None
    presets: tuple[str, ...] = ()
    name: str = ""


def single(argv: Sequence[str], name: str | None = None, *, cwd: str | None = None) -> Plan:
    """Return the plan for one program.

    Raises:
        UsageError: the name cannot be a file's name.

    >>> single(["/opt/llama/llama-bench", "-m", "x.gguf"]).end
    'llama-bench'
    """
    if name is None:
        name = re.sub(r"[^A-Za-z0-9._+-]", "_", Path(argv[0]).name).lstrip("._+-")[:100] or "program"
    _check_name(name, "--name")
    return Plan((Process(name, tuple(argv), cwd=cwd),), name)


def shipped(name: str) -> Path:
    """Return the file of a shipped topology (or the one that TRACEKIT_RULES has instead)."""
    return rules.path(f"topology-{name}.toml")


def read_spec(path: Path, given: Sequence[str] = (), values: Mapping[str, str] | None = None) -> Plan:
    """Read a SPEC.toml and fill in its values.

    Args:
        path: the file.
        given: the words after ``--``: they take the place of ``{given}``.
        values: overrides of the file's ``[values]``.

    Raises:
        UsageError: the file cannot be read or says something impossible; the message says where and what.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    return _Spec(path, content, tuple(given), dict(values or {})).plan()


@dataclass(slots=True)
class _Spec:
    """One file being read: every complaint says where."""

    path: Path
    content: dict[str, Any]
    given: tuple[str, ...]
    overrides: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)

    def plan(self) -> Plan:
        content = self.content
        self._keys("the file", content, _TOP_KEYS)
        self.values = {k: str(v) for k, v in self._table("values", content.get("values", {})).items()}
        if unknown := set(self.overrides) - set(self.values):
            has = ", ".join(self.values) or "none"
            raise self._bad(f"has no value {', '.join(sorted(unknown))} to set (its values: {has})")
        self.values |= self.overrides
        rows = content.get("process")
        if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
            raise self._bad("needs at least one [[process]]")
        expanded = [item for row in rows for item in self._each(row)]
        for row, index in expanded:
            self._register(row, index)
        processes = tuple(self._process(row, index) for row, index in expanded)
        if self.given and not any("{given}" in str(row.get("command")) for row, _ in expanded):
            raise self._bad(f"has no place for the words after -- ({' '.join(self.given)}): use {{given}} in a command")
        return self._checked(processes)

    def _checked(self, processes: tuple[Process, ...]) -> Plan:
        names = [p.name for p in processes]
        if len(set(names)) < len(names):
            raise self._bad("two processes have one name")
        end = str(self.content.get("end", names[-1]))
        if end not in names:
            raise self._bad(f"end = {end!r} names no process ({', '.join(names)})")
        topology = self.content.get("topology")
        if topology is not None and topology not in TOPOLOGIES:
            raise self._bad(f"topology = {topology!r}: choose from {', '.join(TOPOLOGIES)}")
        given = self.content.get("preset", [])
        presets = (given,) if isinstance(given, str) else tuple(self._words(given, "preset"))
        return Plan(self._ordered(processes), end, topology, presets, str(self.content.get("name", self.path.stem)))

    def _ordered(self, processes: tuple[Process, ...]) -> tuple[Process, ...]:
        """Put processes behind those they wait for, else in the order of the file."""
        known = {*self.groups, *(p.name for p in processes)}
        waits = {}
        for process in processes:
            if unknown := set(process.after) - known:
                raise self._bad(f"process {process.name}: after names unknown {', '.join(sorted(unknown))}")
            waits[process.name] = {n for a in process.after for n in self.groups.get(a, [a])}
        ordered: list[Process] = []
        rest = list(processes)
        while rest:
            placed = {p.name for p in ordered}
            ready = [p for p in rest if waits[p.name] <= placed]
            if not ready:
                raise self._bad(f"{', '.join(p.name for p in rest)} wait for one another")
            ordered += ready
            rest = [p for p in rest if p not in ready]
        return tuple(replace(p, after=tuple(sorted(waits[p.name]))) for p in ordered)

    def _each(self, row: dict[str, Any]) -> Iterator[tuple[dict[str, Any], int | None]]:
        where = f"process {row.get('name', '?')}"
        self._keys(where, row, _PROCESS_KEYS)
        if not isinstance(row.get("name"), str) or not row.get("command"):
            raise self._bad(f"{where}: needs a name and a command")
        if "each" not in row:
            yield row, None
            return
        count = self._number(str(row["each"]), where)
        if not 1 <= count <= 1024:
            raise self._bad(f"{where}: {row['each']} = {count}: give 1 to 1024")
        for index in range(count):
            yield row, index

    def _register(self, row: Mapping[str, Any], index: int | None) -> None:
        """Note the name in its group and, for a port, its endpoint."""
        name = self._text(row["name"], self._names(row, index))
        group = str(row.get("group", name))
        self.groups.setdefault(group, []).append(name)
        if "port" in row:
            key = f"endpoints.{group}"
            own = self._names(row, index)
            endpoint = f"{own.get('host', '127.0.0.1')}:{own['port']}"
            self.values[key] = f"{self.values[key]},{endpoint}" if key in self.values else endpoint

    def _names(self, row: Mapping[str, Any], index: int | None) -> dict[str, str]:
        """Return what ``{…}`` stands for in one process."""
        names = dict(self.values)
        if index is not None:
            names["i"] = str(index)
        if "port" in row:
            where = f"process {row['name']}"
            names["port"] = str(self._port(self._number(str(row["port"]), where) + (index or 0), where))
        return names

    def _process(self, row: Mapping[str, Any], index: int | None) -> Process:
        names = self._names(row, index)
        name = self._text(row["name"], names)
        where = f"process {name}"
        try:
            _check_name(name, where)
        except UsageError as error:
            raise self._bad(str(error)) from error
        stop = str(row.get("stop", "TERM")).removeprefix("SIG")
        if stop not in _STOPS:
            raise self._bad(f"{where}: stop = {stop!r}: choose from {', '.join(_STOPS)}")
        env = self._table(f"{where}: env", row.get("env", {}))
        return Process(
            name=name,
            argv=tuple(self._argv(row["command"], names, where)),
            instead=tuple(self._text(w, names) for w in self._words(row.get("instead", []), f"{where}: instead")),
            env={k: self._text(str(v), names) for k, v in env.items()},
            unset=tuple(self._words(row.get("unset", []), f"{where}: unset")),
            cwd=self._text(str(row["cwd"]), names) if "cwd" in row else None,
            timed=bool(row.get("timed", False)),
            ready=self._ready(row, names, where),
            after=tuple(self._words(row.get("after", []), f"{where}: after")),
            stop=signal.Signals[f"SIG{stop}"],
            grace_s=self._seconds(row["grace_s"], f"{where}: grace_s") if "grace_s" in row else None,
            host=names.get("host", "127.0.0.1"),
            port=int(names["port"]) if "port" in row else None,
            index=index,
        )

    def _argv(self, command: Any, names: Mapping[str, str], where: str) -> Iterator[str]:
        """Yield the words of a command; a list inside it is left out when a value in it is empty."""
        if not isinstance(command, list):
            raise self._bad(f'{where}: command must be a list of words, ["program", "argument"]')
        for word in command:
            if isinstance(word, list):
                words = self._words(word, f"{where}: command")
                if all(names.get(key, "?") for w in words for key in _PLACE.findall(w)):
                    yield from (self._text(w, names) for w in words)
            elif word == "{given}":
                if not self.given:
                    raise self._bad(f"{where}: the program to run is missing; give it after --")
                yield from self.given
            elif isinstance(word, str) and (several := _WORDS.fullmatch(word)):
                yield from self._split(self._text(f"{{{several[1]}}}", names), where)
            elif isinstance(word, str):
                for key in _PLACE.findall(word):
                    if names.get(key) == "":
                        raise self._bad(f"{where}: the value {key} is empty; set it (--{key} or --set {key}=…)")
                yield self._text(word, names)
            else:
                raise self._bad(f"{where}: command: {word!r} is no text")

    def _split(self, text: str, where: str) -> list[str]:
        try:
            return shlex.split(text)
        except ValueError as error:
            raise self._bad(f"{where}: {text!r}: {error}") from error

    def _ready(self, row: Mapping[str, Any], names: Mapping[str, str], where: str) -> Ready | None:
        if "ready" not in row:
            return None
        table = self._table(f"{where}: ready", row["ready"])
        self._keys(f"{where}: ready", table, _READY_KEYS)
        kinds = [k for k in ("port", "line", "after_s", "connect") if k in table]
        if len(kinds) != 1:
            raise self._bad(f"{where}: ready needs exactly one of port, line, after_s, connect")
        timeout_s = self._seconds(table.get("timeout_s", READY_TIMEOUT_S), f"{where}: timeout_s")
        (kind,) = kinds
        value = table[kind]
        if kind == "port":
            port = self._port(self._number(self._text(str(value), names), where), where)
            return Ready(port=port, timeout_s=timeout_s)
        if kind == "after_s":
            return Ready(after_s=self._seconds(value, f"{where}: after_s"), timeout_s=timeout_s)
        if kind == "connect":
            address = self._text(str(value), names)
            if not re.fullmatch(r".+:\d+", address):
                raise self._bad(f"{where}: connect = {address!r}: give HOST:PORT")
            self._port(int(address.rpartition(":")[2]), where)
            return Ready(connect=address, timeout_s=timeout_s)
        try:
            re.compile(str(value).encode())
        except re.error as error:
            raise self._bad(f"{where}: line: {error}") from error
        return Ready(line=str(value), timeout_s=timeout_s)

    def _text(self, text: str, names: Mapping[str, str]) -> str:
        """Fill in ``{name}``; other braces stay as they are."""

        def fill(match: re.Match[str]) -> str:
            if match[1] not in names:
                raise self._bad(f"{{{match[1]}}} in {text!r} is not known (known: {', '.join(sorted(names))})")
            return names[match[1]]

        return _PLACE.sub(fill, text)

    def _number(self, text: str, where: str) -> int:
        """Return a whole number, or the one that the value of this name holds."""
        text = self.values.get(text, text)
        if not re.fullmatch(r"\d{1,6}", text):
            raise self._bad(f"{where}: {text!r} is no whole number")
        return int(text)

    def _port(self, number: int, where: str) -> int:
        if not 1 <= number <= _LAST_PORT:
            raise self._bad(f"{where}: there is no port {number}: give 1 to {_LAST_PORT}")
        return number

    def _seconds(self, value: object, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise self._bad(f"{where}: {value!r} is no number of seconds")
        return float(value)

    def _words(self, value: object, where: str) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(w, str) for w in value):
            raise self._bad(f"{where}: must be a list of texts")
        return value

    def _table(self, where: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._bad(f"{where}: must be a table of keys and values")
        return value

    def _keys(self, where: str, table: Mapping[str, Any], allowed: frozenset[str]) -> None:
        if unknown := set(table) - allowed:
            raise self._bad(f"{where}: unknown {', '.join(sorted(unknown))} (known: {', '.join(sorted(allowed))})")

    def _bad(self, what: str) -> UsageError:
        return UsageError(f"{self.path}: {what}")


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: {name!r} cannot name a log file; use letters, digits and . _ + - (a letter or digit first)"
        )


def executable(process: Process, env: Mapping[str, str], beside: str | None = None) -> str | None:
    """Return the file that a process's command means, or None.

    Args:
        process: `Process.instead` names other programs, tried in turn.
        env: the environment whose PATH is searched.
        beside: a directory that is searched first (programs of one build lie together).
    """
    for name in (process.program, *process.instead):
        if "/" in name:
            place = os.path.join(process.cwd or ".", name)  # noqa: PTH118 -- keeps an absolute name as it is
            if found := shutil.which(place):
                return str(Path(found).absolute())
            continue
        search = env.get("PATH", os.defpath)
        if beside and process.instead:
            search = f"{beside}{os.pathsep}{search}"
        if found := shutil.which(name, path=search):
            return str(Path(found).absolute())
    return None
