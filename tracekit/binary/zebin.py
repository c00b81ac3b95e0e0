"""Kernels of zebin images: ELF files for Intel graphics, compiled ahead of time, with a ``.ze_info`` section.

Format: the zebin specification of Intel's graphics compiler (``zeinfo.md``, ``elf.md``).
"""

import re
from collections.abc import Iterable

from tracekit.binary.elf import EM_INTELGT, MAX_READ, DamagedError, Elf
from tracekit.binary.kernels import Kernel
from tracekit.binary.zeinfo import Value, read

#: The type of .ze_info sections (SHT_ZEBIN_ZEINFO), as pyelftools leaves it.
_NOTE_OWNER = "IntelGT"
_PRODUCT_CONFIG = 6

#: From this version on execution_env gives spill_size and private_size; before, scratch buffers told both.
_SPILL_SINCE = (1, 39)


def is_zebin(elf: Elf) -> bool:
    """Return whether the machine is Intel graphics."""
    return elf.machine == EM_INTELGT


def device(elf: Elf) -> str | None:
    """Return the device's IP version as architecture.release.revision (20.1.4), where the image names one device."""
    for owner, kind, data in elf.notes:
        if owner == _NOTE_OWNER and kind == _PRODUCT_CONFIG and len(data) == 4:
            value = int.from_bytes(data, elf.order)
            return f"{value >> 22}.{value >> 14 & 0xFF}.{value & 0x3F}"
    return None


def kernels(elf: Elf) -> tuple[tuple[Kernel, ...], int]:
    """Return the kernels that ``.ze_info`` describes, in its order, and how many lines it has.

    Raises:
        DamagedError: there is no ``.ze_info``, or it cannot be read.
    """
    section = elf.section(".ze_info")
    if section is None:
        raise DamagedError("a zebin image without .ze_info")
    content = elf.content(section)
    if content.size > MAX_READ:
        raise DamagedError(f".ze_info is {content.size:,} bytes long")
    text = content.read(0, content.size).decode("utf-8", "replace")
    document = read(text)
    version = _version(document.get("version"))
    described = document.get("kernels", [])
    if not isinstance(described, list):
        raise DamagedError(".ze_info: `kernels` is no sequence")
    return tuple(_kernel(entry, version) for entry in described), text.count("\n")


def _kernel(entry: Value, version: tuple[int, ...]) -> Kernel:
    if not isinstance(entry, dict) or not isinstance(name := entry.get("name"), str):
        raise DamagedError(".ze_info: a kernel without a name")
    environment = entry.get("execution_env") or {}
    if not isinstance(environment, dict):
        raise DamagedError(f".ze_info: kernel {name[:80]}: `execution_env` is no mapping")
    buffers = entry.get("per_thread_memory_buffers") or []
    if not isinstance(buffers, list) or not all(isinstance(b, dict) for b in buffers):
        raise DamagedError(f".ze_info: kernel {name[:80]}: `per_thread_memory_buffers` is no sequence of mappings")
    scratch = [b for b in buffers if isinstance(b, dict) and b.get("type") == "scratch"]
    private = _number(environment, "private_size", name)
    return Kernel(
        name=name,
        simd=_number(environment, "simd_size", name),
        registers=_number(environment, "grf_count", name),
        slm_bytes=_number(environment, "slm_size", name) or 0,
        spill_bytes=_spill(_number(environment, "spill_size", name), private, scratch, version, name),
        scratch_bytes=_total(scratch, name),
        private_bytes=private,
    )


def _spill(
    given: int | None, private: int | None, scratch: list[dict[str, Value]], version: tuple[int, ...], name: str
) -> int | None:
    """Return the bytes spilled; None where a scratch buffer is there and nothing says what it is for.

    The compiler for ESIMD kernels never writes spill_size, and versions before 1.39 had none: what their kernels
    spill is in a scratch buffer that may hold private variables too.
    """
    if given is not None:
        return given
    if not scratch:
        return 0
    usages = {b.get("usage") for b in scratch}
    if "single_space" not in usages:
        return _total([b for b in scratch if b.get("usage") == "spill_fill_space"], name)
    return 0 if private is not None and version >= _SPILL_SINCE else None


def _total(buffers: Iterable[dict[str, Value]], name: str) -> int:
    return sum(_number(b, "size", name) or 0 for b in buffers)


def _number(mapping: dict[str, Value], key: str, name: str) -> int | None:
    value = mapping.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,18}", value):
        raise DamagedError(f".ze_info: kernel {name[:80]}: {key} is {str(value)[:40]!r}, not a number")
    return int(value)


def _version(value: Value | None) -> tuple[int, ...]:
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,6}\.\d{1,6}", value):
        raise DamagedError(f".ze_info: the version is {str(value)[:40]!r}, expected major.minor")
    return tuple(int(part) for part in value.split("."))
