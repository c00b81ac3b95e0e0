"""The libraries that a program loads, found by the rules of the dynamic loader.

Rules: ld.so(8): RPATH (unless there is a RUNPATH), LD_LIBRARY_PATH, RUNPATH, the cache, the standard directories.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tracekit.binary.elf import DamagedError, Elf, is_elf, opened
from tracekit.errors import TracekitError

_STANDARD = ("lib64", "usr/lib64", "lib", "usr/lib", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
_CACHE = "etc/ld.so.cache"

#: A program that needs more libraries than this is damaged.
_MAX_LIBRARIES = 4096


@dataclass(frozen=True, slots=True)
class Library:
    """A library that is needed: its name, and the file that the loader would take (None: there is none)."""

    name: str
    path: Path | None


def libraries(
    program: str | Path, environment: Mapping[str, str] | None = None, root: Path = Path("/")
) -> tuple[Library, ...]:
    """Return all libraries that `program` needs, directly or not, each once, in the loader's order (breadth first).

    Args:
        program: an ELF file.
        environment: where LD_LIBRARY_PATH is looked up; the process's own by default.
        root: where the cache and the standard directories stand.

    Raises:
        UsageError: there is no such file.
        TracekitError: the program is damaged or no ELF file. A damaged library is taken as one that needs nothing.
    """
    extra = _split((os.environ if environment is None else environment).get("LD_LIBRARY_PATH", ""))
    waiting: list[tuple[Path, tuple[Path, ...]]] = [(Path(program), ())]
    found: dict[str, Library] = {}
    first = True
    while waiting:
        path, inherited = waiting.pop(0)
        try:
            needed, rpath, runpath = _needs(path)
        except TracekitError:
            if first:
                raise
            continue
        first = False
        rpath = () if runpath else (*rpath, *inherited)
        for name in needed:
            if name in found:
                continue
            if len(found) == _MAX_LIBRARIES:
                raise DamagedError(f"{program}: needs more than {_MAX_LIBRARIES:,} libraries")
            place = _find(name, (*rpath, *extra, *runpath), root)
            found[name] = Library(name, place)
            if place is not None:
                waiting.append((place, rpath))
    return tuple(found.values())


def find_library(name: str, environment: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """Return the file that loading `name` (``libze_loader.so.1``) at run time would take; None if there is none."""
    return _find(name, _split(environment.get("LD_LIBRARY_PATH", "")), root)


def _needs(path: Path) -> tuple[tuple[str, ...], tuple[Path, ...], tuple[Path, ...]]:
    """Return NEEDED, RPATH and RUNPATH of a file."""
    with opened(path) as source:
        if not is_elf(source):
            raise TracekitError(f"{path}: is no ELF file")
        elf = Elf(source)
        origin = path.resolve().parent
        paths = [
            tuple(p for text in elf.dynamic_strings(tag) for p in _split(text, origin))
            for tag in ("DT_RPATH", "DT_RUNPATH")
        ]
        return elf.dynamic_strings("DT_NEEDED"), paths[0], paths[1]


def _split(text: str, origin: Path | None = None) -> tuple[Path, ...]:
    if origin is not None:
        text = text.replace("${ORIGIN}", str(origin)).replace("$ORIGIN", str(origin))
    return tuple(Path(part) for part in text.split(":") if part)


def _find(name: str, first: tuple[Path, ...], root: Path) -> Path | None:
    return next((path for path in _candidates(name, first, root) if _is_file(path)), None)


def _candidates(name: str, first: tuple[Path, ...], root: Path) -> Iterator[Path]:
    if "/" in name:
        yield Path(name)
        return
    for directory in first:
        yield directory / name
    yield from _cached(name, root)
    for standard in _STANDARD:
        yield root / standard / name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def _cached(name: str, root: Path) -> Iterator[Path]:
    """Yield the paths of the loader's cache that end in `name`: they stand in it as C strings."""
    try:
        data = (root / _CACHE).read_bytes()
    except OSError:
        return
    wanted = f"/{name}\0".encode()
    at = data.find(wanted)
    while at >= 0:
        begin = data.rfind(b"\0", 0, at) + 1
        text = data[begin : at + len(wanted) - 1].decode("utf-8", "replace")
        if text.startswith("/"):
            yield root / text.lstrip("/")
        at = data.find(wanted, at + 1)
