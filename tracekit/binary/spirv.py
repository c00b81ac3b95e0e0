"""Kernel names from SPIR-V modules, read from the instructions that stand before the first function.

Format: the SPIR-V specification, section 2.3 (physical layout) and 2.4 (logical layout: capabilities, extensions,
imports, memory model, entry points, execution modes, then everything else).
"""

import struct

from tracekit.binary.elf import DamagedError, Source
from tracekit.binary.kernels import Kernel

MAGIC = b"\x03\x02\x23\x07"

_HEADER = 20
_OP_ENTRY_POINT = 15
_OP_EXECUTION_MODE = 16
_SUBGROUP_SIZE = 35

#: Instructions that may stand before or among the entry points: OpExtension, OpExtInstImport, OpMemoryModel,
#: OpEntryPoint, OpExecutionMode, OpCapability, OpExecutionModeId.
_PREAMBLE = (10, 11, 14, _OP_ENTRY_POINT, _OP_EXECUTION_MODE, 17, 331)

#: First read of a module; more is read while its preamble is not over.
_WINDOW = 64 << 10
#: Longer than the preamble of fifty thousand kernels.
LONGEST = 16 << 20
#: Every instruction of the preamble has an operand.
_SHORTEST = 8


def is_module(head: bytes) -> bool:
    """Return whether bytes open a SPIR-V module (little-endian, as device compilers write it)."""
    if len(head) < _HEADER or not head.startswith(MAGIC):
        return False
    _, version, _, _, reserved = struct.unpack_from("<5I", head)
    return bool(reserved == 0 and version >> 16 == 1 and version & 0xFF == 0)


def kernels(source: Source) -> tuple[tuple[Kernel, ...], int]:
    """Return the entry points of a module in their order, with the sub-group size that the source requires.

    The second value is how many bytes were gone through for it.

    Raises:
        DamagedError: the module ends or breaks before its entry points are over.
    """
    window = _WINDOW
    while True:
        data = source.read(0, min(source.size, window))
        found = _preamble(data, source.name)
        if found is not None:
            return found, len(data)
        if len(data) == LONGEST:
            raise DamagedError(f"{source.name}: the entry points of the SPIR-V module do not end")
        if len(data) == source.size:
            raise DamagedError(f"{source.name}: the SPIR-V module ends before its entry points are over")
        window = min(window * 8, LONGEST)


def _preamble(data: bytes, name: str) -> tuple[Kernel, ...] | None:
    """Return the entry points; None where the data end before the preamble does."""
    order: list[tuple[int, str]] = []
    widths: dict[int, int] = {}
    at = _HEADER
    while at + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, at)
        operation, size = word & 0xFFFF, (word >> 16) * 4
        if operation not in _PREAMBLE:
            break
        if size < _SHORTEST:
            raise DamagedError(f"{name}: the SPIR-V module is damaged: an instruction of {size} bytes at {at:#x}")
        if at + size > len(data):
            return None
        if operation == _OP_ENTRY_POINT and size >= 16:
            end = data.find(b"\0", at + 12, at + size)
            if end < 0:
                raise DamagedError(f"{name}: the SPIR-V module is damaged: an entry point without a name at {at:#x}")
            (target,) = struct.unpack_from("<I", data, at + 8)
            order.append((target, data[at + 12 : end].decode("utf-8", "replace")))
        elif operation == _OP_EXECUTION_MODE and size >= 16:
            target, mode, value = struct.unpack_from("<3I", data, at + 4)
            if mode == _SUBGROUP_SIZE:
                widths[target] = value
        at += size
    else:
        return None
    return tuple(Kernel(name, simd=widths.get(target)) for target, name in order)
