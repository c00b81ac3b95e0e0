"""What `tracekit doctor` shows a person. Nothing here prints: text is returned."""

from pathlib import Path

from tracekit.doctor import Examination, Verdict


def examination_text(found: Examination) -> str:
    """Return an examination as text for people: what there is, then what could be captured."""
    sections = [
        ("GPUs", _gpu_lines(found)),
        ("Drivers", _driver_lines(found)),
        ("Groups", [f"{g.name}: {'member' if g.member else 'not a member'}" for g in found.groups]),
        ("Runtime", _runtime_lines(found)),
        ("Engines", _engine_lines(found)),
        ("Set variables", [f"{name}={value}" for name, value in found.variables.items()]),
        ("Could be captured here", [line for verdict in found.verdicts for line in _verdict_lines(verdict)]),
    ]
    return "\n".join(f"{title}\n" + "".join(f"  {line}\n" for line in lines or ["none"]) for title, lines in sections)


def _gpu_lines(found: Examination) -> list[str]:
    lines = []
    for gpu in found.gpus:
        node = f"/dev/dri/{gpu.render}" if gpu.render else "no render node"
        access = "" if gpu.accessible or not gpu.render else " (this user may not open it)"
        numa = "" if gpu.numa_node is None else f", NUMA node {gpu.numa_node}"
        lines.append(
            f"{gpu.pci} {gpu.ids} {gpu.name or 'name unknown'}, {gpu.driver or 'no driver'}, {node}{access}{numa}"
        )
        if gpu.small_bar:
            lines.append(f"  only {(gpu.bar_bytes or 0) >> 20} MiB of its memory are visible: resizable BAR is off")
    return lines


def _driver_lines(found: Examination) -> list[str]:
    versions = [f"{d.module} {d.version or '(in the kernel)'}" for d in found.drivers]
    return [f"kernel {found.kernel or 'unknown'}", *versions]


def _runtime_lines(found: Examination) -> list[str]:
    lines = [f"{what}: {_real(path)}" for what, path in found.libraries.items()]
    lines.append(f"OpenCL drivers: {', '.join(found.opencl_drivers) or 'none'}")
    versions = ", ".join(found.compilers) or "no compiler"
    active = "active" if found.oneapi_active else "not active in this shell"
    lines.append(f"oneAPI: {found.oneapi} ({versions}; {active})" if found.oneapi else "oneAPI: none")
    return [*lines, *(f"{name}: {path or 'none'}" for name, path in found.tools.items())]


def _real(path: Path | None) -> str:
    """Return a library with the version that its real name bears."""
    if path is None:
        return "none"
    real = path.resolve()
    return str(path) if real.name == path.name else f"{path} ({real.name})"


def _engine_lines(found: Examination) -> list[str]:
    lines = []
    for engine in found.engines:
        state = f"has {engine.variable}" if engine.variable else engine.reason
        lines.append(f"{engine.path}" + (f": {state}" if state else ""))
    for env in found.environments:
        if env.packages:
            lines.append(f"{env.prefix}: {', '.join(f'{n} {v}' for n, v in env.packages.items())}")
    return lines


def _verdict_lines(verdict: Verdict) -> list[str]:
    if verdict.ready:
        more = f" and {len(verdict.where) - 1} more" if len(verdict.where) > 1 else ""
        return [f"{verdict.dialect}: yes, {verdict.variable} is in {verdict.where[0]}{more}"]
    return [f"{verdict.dialect}: no", *(f"  - {fault}" for fault in verdict.missing)]
