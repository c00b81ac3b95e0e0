"""Which file this is: size, build-id, SHA-256, compiler."""

import hashlib
from pathlib import Path
from typing import TypedDict

from tracekit.binary.elf import BLOCK, DamagedError, Elf, Source, is_elf, opened

#: Note type of GNU's build-id (NT_GNU_BUILD_ID).
_BUILD_ID = 3


class Identity(TypedDict):
    """What names one file, for a manifest."""

    path: str
    size: int
    build_id: str | None
    sha256: str
    compiler: str | None


def identify(path: str | Path) -> Identity:
    """Return what tells this file from another build of it.

    `build_id` is GNU's note in hexadecimal (files linked by icx have none), `compiler` the line that the compiler
    left in ``.comment``. Both are None where the file has none, is no ELF file (a script), or is damaged; size and
    SHA-256 are of the whole file and always there.

    Raises:
        UsageError: there is no such file, or it is no regular file.
        TracekitError: it cannot be read.
    """
    with opened(path) as source:
        build, compiler = None, None
        if is_elf(source):
            try:
                elf = Elf(source)
                build, names = build_id(elf), compilers(elf)
                compiler = names[0] if names else None
            except DamagedError:
                pass  # still the file that ran: its digest says which
        return Identity(path=str(path), size=source.size, build_id=build, sha256=sha256(source), compiler=compiler)


def build_id(elf: Elf) -> str | None:
    """Return GNU's build-id in hexadecimal; None where the linker wrote none (icx by default)."""
    return next((data.hex() for owner, kind, data in elf.notes if owner == "GNU" and kind == _BUILD_ID), None)


def compilers(elf: Elf) -> tuple[str, ...]:
    """Return the lines of ``.comment``, each once: the compiler of the program first, that of its C runtime last.

    The C runtime's start files are built by GCC whatever built the program, so GCC's line stands behind others.
    """
    section = elf.section(".comment")
    if section is None:
        return ()
    content = elf.content(section)
    data = content.read(0, min(content.size, 1 << 16))
    lines = dict.fromkeys(line.decode("utf-8", "replace").strip() for line in data.split(b"\0"))
    return tuple(sorted((line for line in lines if line), key=lambda line: line.startswith("GCC:")))


def sha256(source: Source) -> str:
    """Return the SHA-256 of the whole file in hexadecimal."""
    digest = hashlib.sha256()
    for offset in range(0, source.size, BLOCK):
        digest.update(source.read(offset, min(BLOCK, source.size - offset)))
    return digest.hexdigest()
