"""Writes small ELF files for tests: host binaries with device images, and zebin files."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

PROGBITS, STRTAB, RELA, NOTE = 1, 3, 4, 7
ZE_INFO = 0xFF000011
ALLOC = 2
BASE = 0x10000


@dataclass
class Part:
    """A section; `address` is filled in by `write`."""

    name: str
    data: bytes
    kind: int = PROGBITS
    flags: int = 0


def write(parts: Sequence[Part], kind: int = 3, machine: int = 62) -> bytes:
    """Return a 64-bit ELF file: header, one PT_LOAD over everything, the parts, names, section headers.

    A part at file offset o is loaded at BASE + o.
    """
    names = Part(".shstrtab", b"\0" + b"".join(p.name.encode() + b"\0" for p in parts) + b".shstrtab\0", STRTAB)
    body, offsets = b"", []
    for part in (*parts, names):
        body += b"\0" * (-(64 + 56 + len(body)) % 16)
        offsets.append(64 + 56 + len(body))
        body += part.data
    body += b"\0" * (-len(body) % 8)
    table = 64 + 56 + len(body)
    headers = bytes(64)
    for part, offset in zip((*parts, names), offsets, strict=True):
        name = names.data.index(b"\0" + part.name.encode() + b"\0") + 1
        address = BASE + offset if part.flags & ALLOC else 0
        headers += struct.pack("<IIQQQQIIQQ", name, part.kind, part.flags, address, offset, len(part.data), 0, 0, 16, 0)
    count = len(parts) + 2
    header = b"\x7fELF\2\1\1" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, table, 0, 64, 56, 1, 64, count, count - 1)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, BASE, BASE, table, table, 0x1000)
    return header + load + body + headers


def offset_of(data: bytes, content: bytes) -> int:
    """Return the address at which `content` is loaded in a file made by `write`."""
    return BASE + data.index(content)


def with_table(section: str, images: Sequence[bytes], sizes: Sequence[int] | None = None) -> bytes:
    """Return a shared library that holds device images, listed in .tgtimg (with other `sizes`, if given)."""
    code = Part(section, b"".join(i + b"\0" * (-len(i) % 16) for i in images), flags=ALLOC)

    def build(table: bytes) -> bytes:
        return write([Part(".rodata", b"host text\0", flags=ALLOC), code, Part(".tgtimg", table, flags=ALLOC)])

    plain = build(bytes(16 * len(images)))
    at, entries = offset_of(plain, code.data), b""
    for image, size in zip(images, sizes or [len(i) for i in images], strict=True):
        entries += struct.pack("<QQ", at, size)
        at += len(image) + -len(image) % 16
    return build(entries)


def spirv(names: Sequence[str], width: int | None = None) -> bytes:
    """Return a SPIR-V module with these entry points; `width` is the sub-group size that each requires."""
    words = [0x07230203, 0x00010400, 0x0006000E, 100, 0]
    words += [2 << 16 | 17, 6, 3 << 16 | 14, 2, 2]  # OpCapability Kernel, OpMemoryModel
    for number, name in enumerate(names, 10):
        text = name.encode() + b"\0"
        text += b"\0" * (-len(text) % 4)
        packed = struct.unpack(f"<{len(text) // 4}I", text)
        words += [(3 + len(packed)) << 16 | 15, 6, number, *packed]  # OpEntryPoint Kernel
    if width:
        for number in range(10, 10 + len(names)):
            words += [4 << 16 | 16, number, 35, width]  # OpExecutionMode SubgroupSize
    words += [3 << 16 | 3, 0, 0]  # OpSource: the preamble is over
    return struct.pack(f"<{len(words)}I", *words)


def zebin(info: str, config: int | None = None) -> bytes:
    """Return a zebin file with this .ze_info; `config` is the product configuration of its note."""
    parts = [Part(".text.k", b"\x01" * 32), Part(".ze_info", info.encode(), ZE_INFO)]
    if config is not None:
        note = struct.pack("<III", 8, 4, 6) + b"IntelGT\0" + struct.pack("<I", config)
        parts.append(Part(".note.intelgt.compat", note, NOTE))
    return write(parts, kind=0xFF12, machine=205)


def archive(members: Sequence[tuple[str, bytes]]) -> bytes:
    """Return an ar archive."""
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name + '/':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    return out
