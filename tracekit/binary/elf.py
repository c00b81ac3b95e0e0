"""Reading ELF files with bounds: headers by pyelftools, contents by reads that never leave the file.

Files are read with ``pread``, not mapped: a library that is rebuilt while it is read would otherwise kill the
reader. Whatever a header claims, no more is read than the file holds and no more is kept than `MAX_READ`.
"""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from tracekit.errors import TracekitError, UsageError

#: e_machine of code for Intel graphics (EM_INTELGT).
EM_INTELGT = 205

#: Most that one read keeps in memory: larger sections are read in blocks.
MAX_READ = 64 << 20

#: More section or program headers than any linker writes: a damaged count.
MAX_HEADERS = 1 << 16

#: Longest name of a section, library or symbol that is read.
MAX_NAME = 1 << 14

#: Longest section of names, notes or tags that is read.
MAX_TABLE = 16 << 20

#: Block of a scan.
BLOCK = 4 << 20

#: Sections and segments whose bytes are not in the file.
_NO_BYTES = ("SHT_NOBITS", "SHT_NULL")


class DamagedError(TracekitError):
    """A file that opens like an ELF file and then contradicts itself or ends early (exit code 1)."""


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes at random offsets: a file (by descriptor) or a buffer, `size` bytes of it from `start`."""

    name: str
    size: int
    buffer: bytes | None = None
    descriptor: int = -1
    start: int = 0

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes at `offset`.

        Raises:
            DamagedError: the range leaves the file, or is larger than `MAX_READ`.
        """
        if size > MAX_READ:
            raise DamagedError(f"{self.name}: {size:,} bytes at {offset:#x} are too many to read at once")
        if offset < 0 or size < 0 or offset + size > self.size:
            raise DamagedError(f"{self.name}: cut off or damaged: {size:,} bytes at {offset:#x} are outside the file")
        begin = self.start + offset
        if self.buffer is not None:
            return self.buffer[begin : begin + size]
        data = os.pread(self.descriptor, size, begin)
        if len(data) != size:
            raise DamagedError(f"{self.name}: became shorter while it was read; try again")
        return data

    def part(self, offset: int, size: int, name: str = "") -> "Source":
        """Return the bytes from `offset` as a source of their own (clipped to what there is)."""
        offset = min(max(offset, 0), self.size)
        size = min(max(size, 0), self.size - offset)
        return Source(name or self.name, size, self.buffer, self.descriptor, self.start + offset)

    def blocks(self, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) over the whole; each block repeats the last `overlap` bytes of the one before."""
        offset = 0
        while offset < self.size:
            begin = max(0, offset - overlap)
            end = min(self.size, offset + BLOCK)
            yield begin, self.read(begin, end - begin)
            offset = end


@contextmanager
def opened(path: str | Path) -> Iterator[Source]:
    """Open a regular file as a `Source`.

    Raises:
        UsageError: there is no such file, it may not be read, or it is no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise UsageError(f"{path}: is {kind}; name the program or library itself")
        yield Source(str(path), status.st_size, descriptor=descriptor)
    except OSError as error:
        raise TracekitError(f"{path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Section:
    """One section header. `kind` is its type as pyelftools names it (SHT_PROGBITS), or the number as text."""

    name: str
    kind: str
    flags: int
    address: int
    offset: int
    size: int
    link: int

    @property
    def in_file(self) -> int:
        """How many bytes of it stand in the file."""
        return 0 if self.kind in _NO_BYTES else self.size


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header. `kind` is its type as pyelftools names it (PT_LOAD), or the number as text."""

    kind: str
    flags: int
    offset: int
    address: int
    size: int
    align: int


def is_elf(source: Source) -> bool:
    """Return whether the file opens with the ELF magic."""
    return source.size >= 4 and source.read(0, 4) == b"\x7fELF"


class Elf:
    """The headers of one ELF file, and reads by section.

    Raises:
        DamagedError: the header is cut off or makes no sense.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        try:
            # pyelftools sees the header alone: everything behind it is read through `Source`.
            file = ELFFile(io.BytesIO(source.read(0, min(source.size, 64))))
        except (ELFError, ConstructError) as error:
            raise self._damaged(f"its header cannot be read ({error})") from error
        self._structs: Any = file.structs
        self.header: Any = file.header
        self.bits: int = file.elfclass
        self.order: Literal["little", "big"] = "little" if file.little_endian else "big"
        self.machine = int.from_bytes(source.read(18, 2), self.order)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Every section header, with its name; empty where the file has none."""
        offset = self.header.e_shoff
        if not offset:
            return ()
        # Counts that do not fit the header stand in the first section header.
        first = self._struct("Elf_Shdr", offset)
        count = self.header.e_shnum or first.sh_size
        names = self.header.e_shstrndx
        headers = self._table("Elf_Shdr", offset, count, self.header.e_shentsize, "section")
        names = first.sh_link if names == 0xFFFF else names
        text = b""
        if 0 < names < len(headers):
            table = headers[names]
            text = self.source.read(table.sh_offset, min(table.sh_size, MAX_TABLE))
        return tuple(
            Section(
                name=_string(text, h.sh_name),
                kind=str(h.sh_type),
                flags=h.sh_flags,
                address=h.sh_addr,
                offset=h.sh_offset,
                size=h.sh_size,
                link=h.sh_link,
            )
            for h in headers
        )

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Every program header; empty where the file has none."""
        offset, count = self.header.e_phoff, self.header.e_phnum
        if not offset or not count:
            return ()
        if count == 0xFFFF and self.header.e_shoff:
            count = self._struct("Elf_Shdr", self.header.e_shoff).sh_info
        headers = self._table("Elf_Phdr", offset, count, self.header.e_phentsize, "program")
        return tuple(
            Segment(
                kind=str(h.p_type),
                flags=h.p_flags,
                offset=h.p_offset,
                address=h.p_vaddr,
                size=h.p_filesz,
                align=h.p_align,
            )
            for h in headers
        )

    def section(self, name: str) -> Section | None:
        """Return the first section of this name."""
        return next((s for s in self.sections if s.name == name), None)

    def content(self, section: Section) -> Source:
        """Return a section's bytes.

        Raises:
            DamagedError: they are outside the file.
        """
        if section.offset + section.in_file > self.source.size:
            raise self._damaged(f"section {section.name or '?'} is outside the file")
        return self.source.part(section.offset, section.in_file)

    def at(self, address: int, size: int) -> int | None:
        """Return the file offset of `size` bytes that are loaded at `address`; None where nothing is."""
        for s in self.segments:
            if s.kind == "PT_LOAD" and s.address <= address and address + size <= s.address + s.size:
                return s.offset + address - s.address
        return None

    @cached_property
    def dynamic(self) -> tuple[tuple[str, int], ...]:
        """The dynamic section's (tag, value) pairs, up to its end mark."""
        places = [(s.offset, s.size) for s in self.segments if s.kind == "PT_DYNAMIC"]
        places += [(s.offset, s.in_file) for s in self.sections if s.kind == "SHT_DYNAMIC"]
        if not places:
            return ()
        offset, size = places[0]
        step = self._structs.Elf_Dyn.sizeof()
        tags = []
        for _ in range(min(size, MAX_TABLE) // step):
            entry = self._struct("Elf_Dyn", offset)
            if entry.d_tag == "DT_NULL":
                break
            tags.append((str(entry.d_tag), int(entry.d_val)))
            offset += step
        return tuple(tags)

    def dynamic_strings(self, tag: str) -> tuple[str, ...]:
        """Return the strings that the dynamic section names under `tag` (DT_NEEDED, DT_RUNPATH, ...)."""
        wanted = [value for name, value in self.dynamic if name == tag]
        if not wanted:
            return ()
        table = self._dynamic_text
        return tuple(_string(table, value) for value in wanted)

    @cached_property
    def _dynamic_text(self) -> bytes:
        values = dict(self.dynamic)
        size = min(values.get("DT_STRSZ", 0), MAX_TABLE)
        offset = self.at(values.get("DT_STRTAB", 0), size)
        if offset is None:
            section = next((s for s in self.sections if s.kind == "SHT_DYNAMIC"), None)
            if section is None or not 0 < section.link < len(self.sections):
                raise self._damaged("the names of its libraries are outside the file")
            text = self.sections[section.link]
            offset, size = text.offset, min(text.size, MAX_TABLE)
        return self.source.read(offset, size)

    @cached_property
    def notes(self) -> tuple[tuple[str, int, bytes], ...]:
        """Every note as (owner, type, content). Notes of core files are not read: they hold memory."""
        if self.header.e_type == "ET_CORE":
            return ()
        places = {(s.offset, s.in_file, 4) for s in self.sections if s.kind == "SHT_NOTE"}
        places |= {(s.offset, s.size, 4) for s in self.segments if s.kind == "PT_NOTE" and s.align != 8}
        found = []
        for offset, size, align in sorted(places):
            found += self._notes_at(offset, size, align)
        return tuple(found)

    def _notes_at(self, offset: int, size: int, align: int) -> list[tuple[str, int, bytes]]:
        data = self.source.read(offset, min(size, MAX_TABLE))
        found, at = [], 0
        while at + 12 <= len(data):
            name_size, size, kind = (int.from_bytes(data[at + 4 * i : at + 4 * i + 4], self.order) for i in range(3))
            start = at + 12 + -(-name_size // align) * align
            if start + size > len(data):
                break
            owner = data[at + 12 : at + 12 + name_size].rstrip(b"\0").decode("ascii", "replace")
            found.append((owner, kind, data[start : start + size]))
            at = start + -(-size // align) * align
        return found

    def _table(self, struct: str, offset: int, count: int, step: int, what: str) -> list[Any]:
        if count > MAX_HEADERS:
            raise self._damaged(f"it claims {count:,} {what} headers")
        if step < getattr(self._structs, struct).sizeof():
            raise self._damaged(f"its {what} headers are {step} bytes long")
        return [self._struct(struct, offset + i * step) for i in range(count)]

    def _struct(self, struct: str, offset: int) -> Any:
        parser = getattr(self._structs, struct)
        data = self.source.read(offset, parser.sizeof())
        try:
            return parser.parse(data)
        except (ELFError, ConstructError) as error:
            raise self._damaged(f"a header at {offset:#x} cannot be read ({error})") from error

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(f"{self.source.name}: cut off or damaged: {what}")


def _string(table: bytes, offset: int) -> str:
    """Return the C string at an offset of a string table; empty where there is none."""
    end = table.find(b"\0", offset, offset + MAX_NAME)
    return table[offset : end if end >= 0 else offset + MAX_NAME].decode("utf-8", "replace")
