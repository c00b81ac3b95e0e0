"""Timing hooks in binaries: which variables a program could be switched on by, told before it is run."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from tracekit import rules
from tracekit.binary.elf import DamagedError, Elf, Source, is_elf, opened
from tracekit.binary.images import is_device_section
from tracekit.binary.libraries import libraries
from tracekit.errors import TracekitError, UsageError

Language = Literal["binary", "python"]

_RULES = "hooks.toml"

#: Longest variable or marker of the rules.
_MAX_LITERAL = 128

#: Flags of sections (SHF_ALLOC, SHF_EXECINSTR): literals stand in what is loaded and not run.
_ALLOC, _EXECUTE = 2, 4
#: Sections that are loaded, hold no literals and may be large.
_NO_LITERALS = re.compile(r"\.(eh_frame|gcc_except_table|rela?\.|dyn|gnu\.|hash|init_|fini_|got|plt|tgt)")

#: Backends that ggml loads at run time from beside the program, unseen in NEEDED.
_BACKENDS = "libggml-*.so*"


@dataclass(frozen=True, slots=True)
class Hook:
    """A timing hook as ``rules/hooks.toml`` declares it."""

    variable: str
    markers: tuple[str, ...]
    instrument: str
    language: Language
    meaning: str
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundHook:
    """A hook whose variable stands in a file, and which of its markers stand there too."""

    variable: str
    markers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HookSearch:
    """Where a hook was looked for, and where it is.

    `found` gives for each file with the variable the markers in it; `missing` are libraries that the loader would
    not find either.
    """

    variable: str
    searched: tuple[Path, ...]
    found: tuple[tuple[Path, tuple[str, ...]], ...]
    missing: tuple[str, ...]


@cache
def declared() -> tuple[Hook, ...]:
    """Return the hooks of ``rules/hooks.toml``.

    Raises:
        UsageError: the file is damaged or a hook is not declared right.
    """
    found = rules.load(Hook, _RULES, "hook")
    for hook in found:
        if wrong := _wrong(hook):
            raise UsageError(f"{rules.path(_RULES)}: hook {hook.variable!r}: {wrong}")
    return found


def _wrong(hook: Hook) -> str:
    """Return what is wrong with a hook, nothing if it is declared right."""
    if type(hook.markers) is not tuple or not all(hook.markers):
        return "markers must be a list of texts"
    if not re.fullmatch(r"[A-Z][A-Z0-9_]+", hook.variable):
        return "a variable is capital letters, digits and _"
    if hook.language not in get_args(Language):
        return f"language is {hook.language!r}, expected binary or python"
    for text in (hook.variable, *hook.markers):
        if len(text.encode()) > _MAX_LITERAL:
            return f"{text[:40]!r}... is longer than {_MAX_LITERAL} bytes"
    return ""


def is_read(marker: str) -> bool:
    """Return whether a dialect reads the lines that open with a marker."""
    from tracekit.parsers import catalogue  # heavy, and only asked once a hook is there

    return any(marker == dialect.marker.rstrip(":") for dialect in catalogue())


def hook(variable: str) -> Hook:
    """Return the hook that a variable switches on.

    Raises:
        UsageError: no hook of the rules has this variable.
    """
    found = next((h for h in declared() if h.variable == variable), None)
    if found is None:
        known = ", ".join(h.variable for h in declared())
        raise UsageError(f"no timing hook is known for {variable}; known are {known}")
    return found


def hooks_in(source: Source) -> tuple[FoundHook, ...]:
    """Return the hooks of which the variable stands in a file, in the order of the rules.

    In ELF files only loaded data is searched (literals stand there), without device code; other files whole.
    """
    wanted = {literal: pattern for h in declared() for literal, pattern in _literals(h)}
    present = _present(_places(source), wanted)
    return tuple(FoundHook(h.variable, _markers(h, present)) for h in declared() if h.variable in present)


def find_hook(program: str | Path, variable: str, environment: Mapping[str, str] | None = None) -> HookSearch:
    """Look for a hook in a program and what it loads: libraries, LD_PRELOAD, ggml's backends beside them.

    Raises:
        UsageError: there is no such file, or no hook is known for the variable.
        TracekitError: the program is no ELF file or is damaged.
    """
    wanted = hook(variable)
    needed = libraries(program, environment)
    files = [Path(program), *(library.path for library in needed if library.path is not None)]
    return search_files(
        wanted, (*files, *_loaded(files, environment)), tuple(library.name for library in needed if not library.path)
    )


def search_files(wanted: Hook, files: Iterable[Path], missing: tuple[str, ...] = ()) -> HookSearch:
    """Look for a hook in files of any kind; what cannot be read is passed over."""
    searched: list[Path] = []
    found: list[tuple[Path, tuple[str, ...]]] = []
    for path in dict.fromkeys(files):
        try:
            with opened(path) as source:
                present = _present(_places(source), dict(_literals(wanted)))
        except TracekitError:
            continue
        searched.append(path)
        if wanted.variable in present:
            found.append((path, _markers(wanted, present)))
    return HookSearch(wanted.variable, tuple(searched), tuple(found), missing)


def missing_hook(program: str | Path, variable: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return why setting `variable` for `program` would time nothing, as one sentence; None where nothing says so.

    None also for scripts and for hooks that live in Python modules: what they load is not known before they run.

    Raises:
        UsageError: there is no such file, or no hook is known for the variable.
    """
    wanted = hook(variable)
    with opened(program) as source:
        if not is_elf(source) or wanted.language != "binary" or _is_interpreter(Path(program)):
            return None
    found = find_hook(program, variable, environment)
    return why_missing(found, Path(program).name)


def why_missing(found: HookSearch, name: str) -> str | None:
    """Return one sentence on what a search did not find in the program `name`; None where it found the hook."""
    markers = [marker for _, present in found.found for marker in present]
    if any(is_read(marker) for marker in markers):
        return None
    if found.found:
        lines = (
            f"prints {' and '.join(markers)} lines, which tracekit does not read" if markers else "prints no known line"
        )
        return f"{name} has {found.variable} (in {found.found[0][0].name}) but {lines}"
    where = f"it or the {len(found.searched) - 1} libraries with it" if len(found.searched) > 1 else "it"
    lost = f"; {', '.join(found.missing[:3])} could not be found" if found.missing else ""
    return f"this {name} has no {found.variable} in {where}{lost}; see `tracekit patch`"


def _is_interpreter(program: Path) -> bool:
    return re.fullmatch(r"(python|pypy|bash|dash|sh|env|node|perl)[\d.]*", program.resolve().name) is not None


def _loaded(files: Iterable[Path], environment: Mapping[str, str] | None) -> Iterator[Path]:
    """Yield what the environment loads into a program, and ggml's backends beside it or its ggml libraries."""
    environment = os.environ if environment is None else environment
    for named in (environment.get("GGML_BACKEND_PATH", ""), *re.split("[ :]", environment.get("LD_PRELOAD", ""))):
        if "/" in named:
            yield Path(named)
    files = list(files)
    folders = [files[0].resolve().parent, *(f.resolve().parent for f in files[1:] if f.name.startswith("libggml"))]
    for folder in dict.fromkeys(folders):
        with suppress(OSError):
            yield from sorted(folder.glob(_BACKENDS))


def _literals(wanted: Hook) -> list[tuple[str, re.Pattern[bytes]]]:
    # A longer variable that holds this one is another variable.
    variable = re.escape(wanted.variable.encode())
    patterns = [(wanted.variable, re.compile(b"(?<![A-Za-z0-9_])" + variable + b"(?![A-Za-z0-9_])"))]
    return patterns + [(m, re.compile(re.escape(m.encode()))) for m in wanted.markers]


def _markers(wanted: Hook, present: set[str]) -> tuple[str, ...]:
    return tuple(m for m in wanted.markers if m in present)


def _present(places: Iterable[Source], wanted: Mapping[str, re.Pattern[bytes]]) -> set[str]:
    """Return which literals stand in the places."""
    open_, present = dict(wanted), set[str]()
    for place in places:
        for _, block in place.blocks(overlap=_MAX_LITERAL + 1):
            for literal in [text for text, pattern in open_.items() if _stands(text, pattern, block)]:
                present.add(literal)
                del open_[literal]
            if not open_:
                return present
    return present


def _stands(text: str, pattern: re.Pattern[bytes], block: bytes) -> bool:
    # The plain search is many times faster than the pattern, and mostly says no.
    return text.encode() in block and pattern.search(block) is not None


def _places(source: Source) -> list[Source]:
    """Return the parts of a file where literals can stand."""
    if not is_elf(source):
        return [source]
    try:
        elf = Elf(source)
        if elf.header.e_type == "ET_CORE":
            return []
        places = [
            elf.content(s)
            for s in elf.sections
            if s.flags & _ALLOC
            and not s.flags & _EXECUTE
            and not is_device_section(s)
            and not _NO_LITERALS.match(s.name)
        ]
    except DamagedError:
        return [source]
    # Without section headers, or from an assembler that puts literals elsewhere: all of it.
    return places or [source]
