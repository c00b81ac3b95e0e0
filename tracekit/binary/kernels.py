"""What is known of one device kernel. None means that the file does not say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a device image.

    `simd` is the width it was compiled for (zebin) or that its source requires (SPIR-V, where the compiler chooses
    otherwise). Sizes are in bytes: `spill_bytes`, `scratch_bytes` and `private_bytes` per hardware thread,
    `slm_bytes` (shared local memory) per work-group. `registers` is the number of registers of a thread.
    """

    name: str
    simd: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    scratch_bytes: int | None = None
    private_bytes: int | None = None
    slm_bytes: int | None = None
