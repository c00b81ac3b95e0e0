"""Device images inside host binaries: where they stand, what they are, which kernels they hold.

The linker's table ``.tgtimg`` (address and size of every image) says where images begin and end. Without it the
sections of device code are searched for what an image opens with.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, cast

import zstandard

from tracekit.binary import spirv, zebin
from tracekit.binary.elf import MAX_READ, DamagedError, Elf, Section, Source, is_elf
from tracekit.binary.kernels import Kernel
from tracekit.errors import TracekitError

#: Names of sections that hold device code, by compiler and its age.
DEVICE_SECTIONS = ("__CLANG_OFFLOAD_BUNDLE__", "OFFLOAD_DEVICE_CODE", ".llvm.offloading")

_TABLE = ".tgtimg"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ARCHIVE = b"!<arch>\n"
_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")

#: More than any library holds; what claims more is damaged or made to tire the reader.
_MAX_IMAGES = 1 << 17
_MAX_KERNELS = 1 << 20
#: Microseconds of reading for one file, and what its parts take: a section header, a line of .ze_info, a byte of
#: SPIR-V before the first function.
_MAX_WORK = 30e6
_HEADER_COST, _LINE_COST, _BYTE_COST = 20, 2, 0.04
#: All that is decompressed of one file: what is beyond is told, not read.
_MAX_EXPANDED = 2 << 30
#: First parts of a compressed image that are decompressed: kernel names of SPIR-V stand in front.
_FRONTS = (64 << 10, 1 << 20, spirv.LONGEST)
#: Most that is decompressed of one image.
_MAX_IMAGE = 256 << 20


@dataclass(frozen=True, slots=True)
class DeviceImage:
    """One device image.

    `format` is SPIR-V, zebin, LLVM bitcode, ELF (code for another processor) or unknown; `device` what it was
    compiled for, where it says so; `expanded_bytes` its size before compression, None where it is not compressed
    or the frame does not say. `fault` is why its kernels could not be read.
    """

    section: str
    format: str
    offset: int
    size: int
    compressed: bool = False
    expanded_bytes: int | None = None
    device: str | None = None
    kernels: tuple[Kernel, ...] = ()
    fault: str | None = None


@dataclass(slots=True)
class _Budget:
    """What may still be read of one file. Its images are many, small and compressed: each alone may be harmless."""

    name: str
    kernels: int = _MAX_KERNELS
    expanded: int = _MAX_EXPANDED
    microseconds: float = _MAX_WORK

    def spend(self, microseconds: float, kernels: int = 0) -> None:
        """Take off the work of one image (about what it takes on one core).

        Raises:
            TracekitError: it is more than any library needs.
        """
        self.microseconds -= microseconds
        self.kernels -= kernels
        if self.kernels < 0:
            raise TracekitError(f"{self.name}: more than {_MAX_KERNELS:,} device kernels: no library holds so many")
        if self.microseconds < 0:
            raise TracekitError(f"{self.name}: its device images take more work than those of any library: given up")


def is_device_section(section: Section) -> bool:
    """Return whether a section holds device code."""
    return section.name.startswith(DEVICE_SECTIONS) and not section.name.startswith("__CLANG_OFFLOAD_BUNDLE__host")


def device_images(elf: Elf) -> tuple[DeviceImage, ...]:
    """Return the device images of a host binary in the order of the file, or a zebin file itself as one.

    Raises:
        DamagedError: the table of images leaves the file or names images that overlap, or there are more images or
            kernels than any library holds. A single image that cannot be read is returned with its `fault`.
    """
    budget = _Budget(elf.source.name)
    if zebin.is_zebin(elf):
        return tuple(_images(elf.source, "", 0, budget))
    places = _listed(elf)
    if places is None:
        places = [place for s in elf.sections if is_device_section(s) for place in _searched(elf, s)]
    found: list[DeviceImage] = []
    for section, offset, size in places:
        found += _images(elf.source.part(offset, size, f"device image at {offset:#x}"), section, offset, budget)
        if len(found) > _MAX_IMAGES:
            raise DamagedError(f"{elf.source.name}: more than {_MAX_IMAGES:,} device images")
    return tuple(found)


def lone_image(source: Source) -> tuple[DeviceImage, ...]:
    """Return the images of a file that is no ELF file: a SPIR-V module or an archive of images; empty if neither."""
    head = source.read(0, min(source.size, 64))
    if spirv.is_module(head) or head.startswith(_ARCHIVE):
        return tuple(i for i in _images(source, "", 0, _Budget(source.name)) if i.format in ("SPIR-V", "zebin"))
    return ()


def _listed(elf: Elf) -> list[tuple[str, int, int]] | None:
    """Return (section, offset, size) of the images that .tgtimg lists; None where the linker left no table."""
    table = elf.section(_TABLE)
    if table is None or not table.in_file:
        return None
    entry = struct.Struct("<QQ" if elf.bits == 64 else "<II")
    content = elf.content(table)
    if content.size > _MAX_IMAGES * entry.size or content.size % entry.size:
        raise DamagedError(f"{elf.source.name}: the table of device images is {content.size:,} bytes long")
    pairs = list(entry.iter_unpack(content.read(0, content.size)))
    if any(address == 0 for address, _ in pairs):
        # Written by the loader: the addresses stand in the relocations.
        relocated = _relocated(elf, table)
        step = entry.size
        pairs = [(a or relocated.get(table.address + i * step, 0), size) for i, (a, size) in enumerate(pairs)]
    return _placed(elf, sorted({pair for pair in pairs if pair[1]}))


def _placed(elf: Elf, pairs: list[tuple[int, int]]) -> list[tuple[str, int, int]]:
    """Return (section, offset, size) of images given as (address, size), in order.

    The table gives a compressed image with the size that it has once expanded: its end is where its frame ends.
    """
    places: list[tuple[str, int, int]] = []
    last = 0
    for address, size in pairs:
        section = next((s for s in elf.sections if s.address <= address < s.address + s.in_file), None)
        offset = elf.at(address, 1)
        if offset is None or section is None or section.address == 0:
            raise DamagedError(f"{elf.source.name}: a device image at {address:#x} is outside the file")
        content = elf.source.part(offset, section.size - (address - section.address))
        if content.read(0, min(4, content.size)) == _ZSTD:
            size = _frame_size(content) or content.size
        if size > content.size:
            raise DamagedError(f"{elf.source.name}: a device image at {address:#x} leaves its section")
        if offset < last:
            raise DamagedError(f"{elf.source.name}: two device images overlap at {offset:#x}")
        last = offset + size
        places.append((section.name, offset, size))
    return places


def _frame_size(source: Source) -> int | None:
    """Return how many bytes a zstd frame takes; None where it is cut off.

    Format: RFC 8878, 3.1.1: header, blocks of which each tells its size and whether it is the last, checksum.
    """
    try:
        head = source.read(0, min(source.size, 18))
        at = int(zstandard.frame_header_size(head))
        checksum = 4 if zstandard.get_frame_parameters(head).has_checksum else 0
        while True:
            header = int.from_bytes(source.read(at, 3), "little")
            # A block of type 1 is one byte, repeated.
            at += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
            if header & 1:
                return at + checksum if at + checksum <= source.size else None
    except (zstandard.ZstdError, DamagedError):
        return None


def _relocated(elf: Elf, table: Section) -> dict[int, int]:
    """Return what relative relocations write into the table: address to value."""
    found = {}
    entry = struct.Struct("<QQq" if elf.bits == 64 else "<IIi")
    for section in elf.sections:
        if section.kind != "SHT_RELA" or section.size > MAX_READ:
            continue
        content = elf.content(section)
        usable = content.size - content.size % entry.size
        for address, _, addend in entry.iter_unpack(content.read(0, usable)):
            if table.address <= address < table.address + table.size:
                found[address] = addend
    return found


#: What an image can open with, for the search.
_MAGICS = (spirv.MAGIC, _ZSTD, b"\x7fELF", _ARCHIVE)


def _magics(block: bytes) -> list[int]:
    """Return where in a block an image may open, in order. Four plain searches are faster than one pattern."""
    found = []
    for magic in _MAGICS:
        at = block.find(magic)
        while at >= 0:
            found.append(at)
            at = block.find(magic, at + 1)
    return sorted(found)


def _searched(elf: Elf, section: Section) -> Iterator[tuple[str, int, int]]:
    """Yield (section, offset, size) of what opens like an image, up to its own end or the next."""
    content = elf.content(section)
    starts: list[int] = []
    ends: list[int | None] = []
    beyond = 0
    for begin, block in content.blocks(overlap=64):
        for place in _magics(block):
            at = begin + place
            if at < beyond or not _opens(content, at):
                continue
            length = _length(content.part(at, content.size - at))
            starts.append(at)
            ends.append(None if length is None else at + length)
            # A zebin may hold the SPIR-V that it was made from: that is no image of its own.
            beyond = at + (length or 1)
            if len(starts) > _MAX_IMAGES:
                raise DamagedError(f"{elf.source.name}: more than {_MAX_IMAGES:,} device images")
    if not starts:
        if content.size:
            yield section.name, section.offset, content.size
        return
    for at, end, following in zip(starts, ends, [*starts[1:], content.size], strict=True):
        yield section.name, section.offset + at, min(end or following, following) - at


def _opens(content: Source, at: int) -> bool:
    head = content.read(at, min(64, content.size - at))
    if head.startswith(spirv.MAGIC):
        return spirv.is_module(head)
    if head.startswith(_ZSTD):
        try:
            return zstandard.get_frame_parameters(head).window_size > 0
        except zstandard.ZstdError:
            return False
    return True


def _length(source: Source) -> int | None:
    """Return how long an ELF file, a zstd frame or an archive says it is; None for what does not say."""
    end = None
    try:
        if is_elf(source):
            elf = Elf(source)
            headers = elf.header.e_shoff + elf.header.e_shnum * elf.header.e_shentsize
            end = int(max(headers, *(s.offset + s.in_file for s in elf.sections), 1))
        elif source.read(0, min(source.size, 4)) == _ZSTD:
            end = _frame_size(source)
        elif source.read(0, min(source.size, 8)) == _ARCHIVE:
            for _, offset, part in _members(source):
                end = offset + part.size
    except DamagedError:
        pass  # behind an archive the next image stands: what was read so far is its length
    return end


def _images(source: Source, section: str, offset: int, budget: _Budget) -> Iterator[DeviceImage]:
    """Yield the image that a range holds; an archive (one compilation for several devices) holds several."""
    head = source.read(0, min(source.size, 64))
    if head.startswith(_ARCHIVE):
        try:
            for name, at, part in _members(source):
                if name != "pad":
                    yield replace(_image(part, section, offset + at, budget), device=name)
        except DamagedError as error:
            yield DeviceImage(section, "archive", offset, source.size, fault=str(error))
        return
    yield _image(source, section, offset, budget)


def _image(source: Source, section: str, offset: int, budget: _Budget) -> DeviceImage:
    image = DeviceImage(section, "unknown", offset, source.size)
    try:
        head = source.read(0, min(source.size, 64))
        if not head.startswith(_ZSTD):
            return _described(image, source, budget)
        image = replace(image, compressed=True, expanded_bytes=_expanded_size(head))
        return _compressed(image, source, budget)
    except DamagedError as error:
        return replace(image, fault=str(error))


def _described(image: DeviceImage, source: Source, budget: _Budget) -> DeviceImage:
    """Return the image with its format and its kernels, or with why they cannot be read."""
    head = source.read(0, min(source.size, 64))
    found: tuple[Kernel, ...] = ()
    cost = float(_HEADER_COST)
    try:
        if spirv.is_module(head):
            image = replace(image, format="SPIR-V")
            found, size = spirv.kernels(source)
            cost += size * _BYTE_COST
        elif head.startswith(_BITCODE):
            image = replace(image, format="LLVM bitcode")
        elif is_elf(source):
            image = replace(image, format="ELF")
            elf = Elf(source)
            if zebin.is_zebin(elf):
                image = replace(image, format="zebin")
                cost += len(elf.sections) * _HEADER_COST
                image = replace(image, device=zebin.device(elf))
                found, lines = zebin.kernels(elf)
                cost += lines * _LINE_COST
    except DamagedError as error:
        image = replace(image, fault=str(error))
        cost += min(source.size, spirv.LONGEST) * _BYTE_COST
    budget.spend(cost, len(found))
    return replace(image, kernels=found)


def _compressed(image: DeviceImage, source: Source, budget: _Budget) -> DeviceImage:
    """Decompress the front of an image; more of it, up to `_MAX_IMAGE`, where its kernels are not told there."""
    for wanted in (*_FRONTS, _MAX_IMAGE):
        if budget.expanded < wanted:
            raise DamagedError(f"not read: more than {_MAX_EXPANDED >> 30} GiB would be decompressed")
        expanded, whole = _expand(source, wanted)
        budget.expanded -= len(expanded)
        described = _described(image, Source(source.name, len(expanded), expanded), budget)
        if described.fault is None or whole or (described.format == "SPIR-V" and wanted == spirv.LONGEST):
            return described
    return replace(described, fault=f"{described.fault} (in its first {_MAX_IMAGE >> 20} MiB)")


@dataclass(slots=True)
class _Stream:
    """A source as the decompressor reads it."""

    source: Source
    at: int = 0

    def read(self, size: int) -> bytes:
        data = self.source.read(self.at, min(size, self.source.size - self.at))
        self.at += len(data)
        return data


def _expand(source: Source, wanted: int) -> tuple[bytes, bool]:
    """Return the first `wanted` bytes of a frame, and whether that is all of it."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    try:
        with decompressor.stream_reader(cast(IO[bytes], _Stream(source))) as reader:
            expanded = reader.read(wanted)
            return expanded, len(expanded) < wanted or not reader.read(1)
    except (zstandard.ZstdError, MemoryError) as error:
        raise DamagedError(f"{source.name} cannot be decompressed ({error})") from error


def _expanded_size(head: bytes) -> int | None:
    try:
        size: int = zstandard.get_frame_parameters(head).content_size
    except zstandard.ZstdError:
        return None
    return size if size < 1 << 63 else None


def _members(source: Source) -> Iterator[tuple[str, int, Source]]:
    """Yield (name, offset, bytes) of the members of an ``ar`` archive.

    Format: ar(5): a header of 60 bytes before each member, which begin at even offsets.
    """
    at, count = len(_ARCHIVE), 0
    while at + 60 <= source.size:
        header = source.read(at, 60)
        if header[58:] != b"`\n" or not header[48:58].strip().isdigit():
            raise DamagedError(f"an archive of device images is damaged at {at:#x}")
        size = int(header[48:58])
        if at + 60 + size > source.size:
            raise DamagedError(f"an archive of device images is cut off at {at:#x}")
        name = header[:16].decode("ascii", "replace").rstrip().rstrip("/")
        yield name, at + 60, source.part(at + 60, size)
        at += 60 + size + size % 2
        count += 1
        if count > _MAX_IMAGES:
            raise DamagedError(f"an archive of more than {_MAX_IMAGES:,} device images")
