"""All that `tracekit inspect` tells of one file."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tracekit.binary import zebin
from tracekit.binary.elf import Elf, Source, is_elf, opened
from tracekit.binary.hooks import FoundHook, hooks_in
from tracekit.binary.identify import build_id, compilers, sha256
from tracekit.binary.images import DeviceImage, device_images, lone_image
from tracekit.binary.kernels import Kernel

#: Version of the JSON.
SCHEMA = 1

#: What files that are no ELF files open with, for people.
_OPENINGS = (
    (b"#!", "script"),
    (b"!<arch>\n", "archive"),
    (b"\x03\x02\x23\x07", "SPIR-V module"),
    (b"PK\x03\x04", "zip"),
    (b"GGUF", "GGUF model"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)

_DF_1_PIE = 0x08000000


@dataclass(frozen=True, slots=True)
class BinaryReport:
    """What a file is and holds.

    `kind` is executable, shared library, object, core, zebin, or what the file is instead of an ELF file (`elf` is
    False then). `sha256` is given where there is no build-id to name the file by. `faults` are the device images
    that could not be read, one sentence for each reason.
    """

    path: str
    size: int
    kind: str
    elf: bool
    machine: str | None = None
    build_id: str | None = None
    sha256: str | None = None
    compilers: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    hooks: tuple[FoundHook, ...] = ()
    images: tuple[DeviceImage, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def recognised(self) -> bool:
        """Whether there is anything to tell: an ELF file, device code or a hook."""
        return self.elf or bool(self.images) or bool(self.hooks)


def inspect_file(path: str | Path) -> BinaryReport:
    """Return what a file is and holds. Files that are no ELF files are reported as such.

    Raises:
        UsageError: there is no such file, or it is no regular file.
        TracekitError: it cannot be read; it is an ELF file and cut off or damaged.
    """
    with opened(path) as source:
        if not is_elf(source):
            images = lone_image(source)
            return BinaryReport(
                path=str(path),
                size=source.size,
                kind=_not_elf(source),
                elf=False,
                sha256=sha256(source),
                hooks=hooks_in(source),
                images=images,
                faults=_faults(images),
            )
        return _elf_report(str(path), source)


def _elf_report(path: str, source: Source) -> BinaryReport:
    elf = Elf(source)
    images = device_images(elf)
    build = build_id(elf)
    return BinaryReport(
        path=path,
        size=source.size,
        kind=_kind(elf),
        elf=True,
        machine="intelgt" if zebin.is_zebin(elf) else str(elf.header.e_machine).removeprefix("EM_").lower(),
        build_id=build,
        sha256=None if build else sha256(source),
        compilers=compilers(elf),
        needed=elf.dynamic_strings("DT_NEEDED"),
        rpath=elf.dynamic_strings("DT_RPATH"),
        runpath=elf.dynamic_strings("DT_RUNPATH"),
        hooks=() if zebin.is_zebin(elf) else hooks_in(source),
        images=images,
        faults=_faults(images),
    )


def _kind(elf: Elf) -> str:
    if zebin.is_zebin(elf):
        return "zebin"
    kind = elf.header.e_type
    if kind == "ET_DYN":
        # Position-independent programs are shared libraries by type. Some libraries can be run and name a loader.
        tags = dict(elf.dynamic)
        if tags.get("DT_FLAGS_1", 0) & _DF_1_PIE:
            return "executable"
        loader = any(s.kind == "PT_INTERP" for s in elf.segments)
        return "executable" if loader and "DT_SONAME" not in tags else "shared library"
    return {"ET_EXEC": "executable", "ET_REL": "object", "ET_CORE": "core"}.get(kind, f"ELF file of type {kind}")


def _not_elf(source: Source) -> str:
    head = source.read(0, min(source.size, 8))
    name = next((name for magic, name in _OPENINGS if head.startswith(magic)), None)
    return f"not ELF ({name})" if name else "not ELF"


def _faults(images: Iterable[DeviceImage]) -> tuple[str, ...]:
    """Return the faults of images, each once but for the place that it names."""
    found: dict[str, list[str]] = {}
    for image in images:
        if image.fault:
            found.setdefault(re.sub(r"0x[0-9a-f]+|\d[\d,]*", "#", image.fault), []).append(image.fault)
    return tuple(f[0] if len(f) == 1 else f"{f[0]} (and {len(f) - 1:,} more like it)" for f in found.values())


def matching(report: BinaryReport, pattern: str) -> list[tuple[DeviceImage, Kernel]]:
    """Return the kernels whose name matches: a glob where the pattern has ``*``, ``?`` or ``[``, else a part of it."""
    glob = pattern if re.search(r"[*?\[]", pattern) else f"*{pattern}*"
    return [(image, k) for image in report.images for k in image.kernels if fnmatchcase(k.name, glob)]


def report_json(report: BinaryReport, pattern: str | None = None) -> dict[str, Any]:
    """Return a report as JSON values: names as columns say, sizes in bytes, null for what is not known.

    Args:
        report: what `inspect_file` returned.
        pattern: which kernels are listed under their images; all of them by default.
    """
    chosen = matching(report, pattern or "*")
    kernels: dict[int, list[dict[str, Any]]] = {}
    for image, kernel in chosen:
        kernels.setdefault(id(image), []).append({f: getattr(kernel, f) for f in Kernel.__slots__})
    plain = [f for f in BinaryReport.__slots__ if f not in ("hooks", "images")]
    fields = [f for f in DeviceImage.__slots__ if f != "kernels"]
    return {
        **{f: getattr(report, f) for f in plain},
        "hooks": [{"variable": h.variable, "markers": h.markers} for h in report.hooks],
        "modules": len(report.images),
        "kernels": sum(len(i.kernels) for i in report.images),
        "images": [
            {**{f: getattr(i, f) for f in fields}, "kernel_count": len(i.kernels), "kernels": kernels.get(id(i), [])}
            for i in report.images
        ],
    }


def safe(text: str) -> str:
    """Return a name from a file as a terminal may show it: control characters written out."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
