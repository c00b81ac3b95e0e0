"""What `tracekit inspect` shows a person. Nothing here prints: text is returned."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from tracekit.binary.hooks import declared, is_read
from tracekit.binary.images import DeviceImage
from tracekit.binary.kernels import Kernel
from tracekit.binary.report import BinaryReport, matching, safe

_COLUMNS = {
    "simd": "simd",
    "registers": "registers",
    "spill_bytes": "spill",
    "scratch_bytes": "scratch",
    "private_bytes": "private",
    "slm_bytes": "slm",
}

#: What the columns mean, in the order of the table.
_NOTE = (
    "simd: compiled width (zebin), or the width that the source requires (SPIR-V). spill, scratch and private are "
    "bytes per thread, slm bytes per work-group. Empty: the file does not say."
)


def report_text(report: BinaryReport, pattern: str | None = None, limit: int | None = None) -> str:
    """Return a report as lines of text, with a table of the kernels that match `pattern` where one is given."""
    head = f"{report.path}: {report.kind}"
    head += f", {report.machine}" if report.machine else ""
    lines = [f"{safe(head)}, {size(report.size)}"]
    lines += [f"  {label:<10}{safe(text)}" for label, text in _facts(report)]
    lines += [f"  {line}" for line in _device_lines(report)]
    lines += [f"  fault     {safe(fault)}" for fault in report.faults]
    if pattern is not None:
        lines += ["", *_kernel_lines(matching(report, pattern), pattern, limit)]
    return "\n".join(lines) + "\n"


def size(number: int) -> str:
    """Return a number of bytes for people: 57.5 MB.

    >>> size(57476473), size(88)
    ('57.5 MB', '88 bytes')
    """
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= step:
            return f"{number / step:.1f} {unit}"
    return f"{number} bytes"


def _facts(report: BinaryReport) -> Iterable[tuple[str, str]]:
    if report.build_id:
        yield "build-id", report.build_id
    elif report.sha256:
        yield "sha256", report.sha256 + (" (no build-id)" if report.elf else "")
    for line in report.compilers:
        yield "compiler", line
    if report.needed:
        yield "needed", ", ".join(report.needed)
    for label, paths in (("rpath", report.rpath), ("runpath", report.runpath)):
        if paths:
            yield label, ":".join(paths)
    if report.kind not in ("zebin", "core"):
        yield from _hook_facts(report)


def _hook_facts(report: BinaryReport) -> Iterable[tuple[str, str]]:
    libraries = " (its libraries may have some)" if report.needed else ""
    if not report.hooks:
        yield "hooks", f"none of the {len(declared())} known timing hooks" + libraries
    for hook in report.hooks:
        markers = [m if is_read(m) else f"{m} (not read by tracekit)" for m in hook.markers]
        yield "hook", f"{hook.variable} prints {' and '.join(markers) or 'no known marker'}"


def _device_lines(report: BinaryReport) -> list[str]:
    """Return a summary of the device code: a table of images by section and format, and what spills."""
    if not report.images:
        return []
    groups: dict[tuple[str, str, str], list[DeviceImage]] = {}
    for image in report.images:
        form = image.format + (", zstd" if image.compressed else "")
        groups.setdefault((image.section, form, image.device or ""), []).append(image)
    rows = [
        [
            safe(section) or "(the file)",
            form,
            safe(device),
            len(images),
            _kernels(images),
            size(sum(i.size for i in images)),
        ]
        for (section, form, device), images in groups.items()
    ]
    headers = ["section", "format", "device", "modules", "kernels", "bytes"]
    if not any(device for _, _, device in groups):
        headers.remove("device")
        rows = [[*row[:2], *row[3:]] for row in rows]
    kernels = [k for i in report.images for k in i.kernels]
    partly = " at least" if report.faults else ""
    names = len({k.name for k in kernels})
    lines = [
        f"device    {len(report.images):,} modules,{partly} {len(kernels):,} kernels ({names:,} different names)",
        *(f"  {line}" for line in _table(rows, headers)),
    ]
    return lines + list(_resource_lines(kernels))


def _kernels(images: Iterable[DeviceImage]) -> int:
    return sum(len(i.kernels) for i in images)


def _resource_lines(kernels: Sequence[Kernel]) -> Iterable[str]:
    compiled = [k for k in kernels if k.registers is not None]
    if not compiled:
        return
    registers = Counter(k.registers for k in compiled)
    yield "registers " + ", ".join(f"{n:,} kernels with {r}" for r, n in sorted(registers.items(), key=str))
    spilling = [k for k in compiled if k.spill_bytes]
    unknown = sum(k.spill_bytes is None for k in compiled)
    if spilling:
        worst = max(spilling, key=lambda k: k.spill_bytes or 0)
        yield f"spill     {len(spilling):,} kernels, most {worst.spill_bytes:,} bytes per thread: {safe(worst.name)}"
    if unknown:
        yield f"spill     {unknown:,} kernels do not say: their scratch memory may hold spilled registers"
    if not spilling and not unknown:
        yield "spill     none"


def _kernel_lines(found: Sequence[tuple[DeviceImage, Kernel]], pattern: str, limit: int | None) -> list[str]:
    if not found:
        return [f"no kernel matches {pattern!r}"]
    shown = found if limit is None else found[:limit]
    fields = [f for f in _COLUMNS if any(getattr(k, f) is not None for _, k in found)]
    rows = [[image.format, *(getattr(kernel, f) for f in fields), safe(kernel.name)] for image, kernel in shown]
    lines = _table(rows, ["format", *(_COLUMNS[f] for f in fields), "kernel"])
    if len(shown) < len(found):
        lines.append(f"... {len(found) - len(shown):,} more kernels: --limit 0 shows all")
    return [*lines, *([_NOTE] if fields else [])]


def _table(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> list[str]:
    return tabulate(rows, headers, intfmt=",", missingval="").splitlines()


def files_text(reports: Iterable[BinaryReport], pattern: str | None, limit: int | None) -> str:
    """Return the reports of several files, apart by an empty line."""
    return "\n".join(report_text(r, pattern, limit) for r in reports)
