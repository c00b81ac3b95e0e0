"""Leading passes that look like a benchmark's warm-up, by the batches alone."""

from collections.abc import Sequence

#: With fewer prompts of one width nothing tells a benchmark from a long prompt's parts.
_PROMPTS = 3


def bench_warm_up(widths: Sequence[int]) -> tuple[int, str] | None:
    """Return how many leading steps are llama-bench's warm-up, and why; None if the batches do not look like its.

    ``llama-bench -p P -n N -r R`` runs one unmarked pass before the R it times of each test: 1 + R passes of P tokens,
    then 1 + R x N passes of one.

    Args:
        widths: the batch of each step of a worker's run, in order.

    >>> bench_warm_up([32] * 3 + [1] * 33)[0]
    1
    """
    prompt = widths[0] if widths else 0
    prompts = next((at for at, w in enumerate(widths) if w != prompt), len(widths))
    decodes = next((at for at, w in enumerate(widths[prompts:]) if w != 1), len(widths) - prompts)
    repeats = prompts - 1
    if prompt < 2 or prompts < _PROMPTS or decodes < 2 or (decodes - 1) % repeats:
        return None
    tokens = (decodes - 1) // repeats
    if tokens < 2:
        return None
    why = (
        f"{prompts} steps of {prompt} tokens and {decodes} of one, as llama-bench -p {prompt} -n {tokens} -r {repeats} "
        f"leaves them: step 0 and step {prompts} are its warm-up; --skip-steps 1 leaves out the first"
    )
    return 1, why
