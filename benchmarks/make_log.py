"""Writes a log of `[SYCL_OP_TIMING]` lines like that of a long decode run: ``make_log.py FILE LINES``.

A MoE model of 62 layers, 16 operations a layer: 993 distinct heads; durations scatter by a tenth around each one's own.
"""

import random
import sys
from pathlib import Path

#: Operation and tensor of one layer; {0} is the layer, {1} a node number.
LAYER = [
    ("RMS_NORM", "norm-{0}", "3072x1x1x1"),
    ("MUL", "attn_norm-{0}", "3072x1x1x1"),
    ("MUL_MAT", "Qcur-{0}", "6144x1x1x1"),
    ("ROPE", "Qcur-{0}", "128x48x1x1"),
    ("MUL_MAT", "Kcur-{0}", "1024x1x1x1"),
    ("ROPE", "Kcur-{0}", "128x8x1x1"),
    ("MUL_MAT", "Vcur-{0}", "1024x1x1x1"),
    ("CPY", "cache_k_l{0} (view) (copy of Kcur-{0} (view))", "1024x1x1x1"),
    ("MUL_MAT", "node_{1}", "256x1x48x1"),
    ("SOFT_MAX", "node_{1}", "256x1x48x1"),
    ("MUL_MAT", "kqv_out-{0}", "3072x1x1x1"),
    ("ADD", "ffn_inp-{0}", "3072x1x1x1"),
    ("MUL_MAT", "ffn_moe_logits-{0}", "256x1x1x1"),
    ("MOE_FUSED_UP_GATE", "ffn_moe_gate_par-{0}", "1536x8x1x1"),
    ("MUL_MAT_ID", "ffn_moe_down-{0}", "3072x8x1x1"),
    ("MULTI_ADD", "l_out-{0}", "3072x1x1x1"),
]
LAYERS = 62


def heads() -> list[bytes]:
    """Return the lines of one pass up to their durations."""
    lines = []
    for layer in range(LAYERS):
        for at, (op, name, shape) in enumerate(LAYER):
            text = name.format(layer, layer * len(LAYER) + at)
            lines.append(f"[SYCL_OP_TIMING] dev=0 op={op} name={text} ne={shape} us=".encode())
    lines.append(b"[SYCL_OP_TIMING] dev=0 op=MUL_MAT name=result_output ne=200064x1x1x1 us=")
    return lines


def write(path: Path, lines: int, seed: int = 1) -> None:
    """Write at least so many lines, whole passes."""
    chance = random.Random(seed)
    own = [(head, chance.randint(5, 300)) for head in heads()]
    # A thousand drawn factors are enough: what is measured is reading, not chance.
    factors = [max(0.1, chance.gauss(1, 0.1)) for _ in range(1009)]
    done = 0
    with path.open("wb") as file:
        while done < lines:
            at = chance.randrange(len(factors))
            file.write(
                b"".join(
                    head + b"%d\n" % round(us * factors[(at + n) % len(factors)]) for n, (head, us) in enumerate(own)
                )
            )
            done += len(own)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
