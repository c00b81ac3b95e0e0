"""What of an environment and of command lines goes into a manifest: an allow-list, and never a secret."""

import re
from collections.abc import Mapping, Sequence

#: Variables whose values are kept: those of the engines and runtimes that explain a run.
ALLOWED = (
    "GGML_", "LLAMA_", "SYCL_", "ONEAPI_", "ZE_", "UR_", "CCL_", "VLLM_", "LLM_SCALER_", "OMP_", "KMP_", "MKL_",
    "IGC_", "OCL_", "NEO", "TORCH", "PYTORCH_", "TRITON_", "FI_", "I_MPI_", "NUMEXPR_",
)  # fmt: skip
ALLOWED_NAMES = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED", "PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE")

WITHHELD = "(withheld)"

#: Words that make a name a secret's. TOKENS is a number of tokens, not one.
_NAME = re.compile(
    r"(?:^|[^a-z])(?:[a-z]*keys?|token|auth|authorization|bearer|[a-z]*secrets?|[a-z]*passwords?|passwd|passphrase|"
    r"pwd|pat|credentials?|private|cookie|session|signature)(?:$|[^a-z])",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|AIza|ya29\.)[A-Za-z0-9_\-]{8,}"
    r"|\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|\b(?:Bearer|Basic)\s+\S{8,}"
    r"|[a-z][a-z0-9+.\-]*://[^/\s@]*:[^/\s@]+@",
    re.IGNORECASE,
)
#: A long run of letters and digits mixed, of no meaning: a token of a kind not known. Paths and words have breaks.
_RANDOM = re.compile(r"[A-Za-z0-9+]{32,}={0,2}")


def looks_secret(name: str, value: str) -> bool:
    """Return whether a value must not be written down, going by its name and by itself.

    >>> looks_secret("VLLM_API_KEY", "x"), looks_secret("VLLM_MAX_NUM_BATCHED_TOKENS", "8192")
    (True, False)
    >>> looks_secret("VLLM_X", "hf_abcdefghijklmnop"), looks_secret("GGML_X", "https://me:word@host/")
    (True, True)
    """
    if _NAME.search(name.replace("-", "_").replace("_", " ")) or _VALUE.search(value):
        return True
    return any(_is_random(run) for run in _RANDOM.findall(value))


def _is_random(text: str) -> bool:
    kinds = (any(c.islower() for c in text), any(c.isupper() for c in text), any(c.isdigit() for c in text))
    digits = sum(c.isdigit() for c in text)
    hexadecimal = re.fullmatch(r"[0-9a-fA-F]{32,}", text) is not None
    return hexadecimal or (sum(kinds) == 3 and digits >= 4)


def kept_environment(env: Mapping[str, str], also: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables to write down, sorted; secrets by name only.

    Args:
        env: a program's environment.
        also: names that are kept besides the allow-list (what the user set for this run).
    """
    kept = {}
    for name in sorted(env):
        if name.startswith(ALLOWED) or name in ALLOWED_NAMES or name in also:
            kept[name] = WITHHELD if looks_secret(name, env[name]) else env[name]
    return kept


def kept_arguments(argv: Sequence[str]) -> list[str]:
    """Return a command line to write down: values of ``--api-key X``, ``--token=X``, ``NAME_KEY=X`` withheld.

    >>> kept_arguments(["serve", "--api-key", "abc", "--hf-token=x", "-e", "HF_TOKEN=y"])
    ['serve', '--api-key', '(withheld)', '--hf-token=(withheld)', '-e', 'HF_TOKEN=(withheld)']
    >>> kept_arguments(["--max-num-batched-tokens", "64"])
    ['--max-num-batched-tokens', '64']
    """
    kept = []
    secret_next = False
    for word in argv:
        name, equals, value = word.partition("=")
        is_option = name.startswith("-")
        if secret_next and not is_option:
            kept.append(WITHHELD)
        elif equals and looks_secret(name, value):
            kept.append(f"{name}={WITHHELD}")
        elif not equals and not is_option and looks_secret("", word):
            kept.append(WITHHELD)
        else:
            kept.append(word)
        secret_next = is_option and not equals and looks_secret(name, "")
    return kept
