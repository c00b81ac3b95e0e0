"""Generate a few tokens with ik_llama.cpp's Python wheel: an engine to capture. Run by the engine tests, not by pytest.

Usage: engine_ik.py MODEL TOKENS. Needs ik-llama-cpp-python; the program times nothing itself.
"""

import ctypes
import sys

import ik_llama_cpp._ctypes_api as api
import numpy as np

PROMPT = b"The quick brown fox jumps over the lazy dog. Once upon a time,"


def main() -> None:
    path, count = sys.argv[1].encode(), int(sys.argv[2])
    api.llama_backend_init()
    model = api.llama_model_load_from_file(path, api.llama_model_default_params())
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = 512, 2, 2
    context = api.llama_init_from_model(model, settings)
    words = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    buffer = (ctypes.c_int32 * 512)()
    # ik takes the model here, where llama.cpp takes the vocabulary.
    length = api.llama_tokenize(model, PROMPT, len(PROMPT), buffer, 512, True, True)
    tokens, position = list(buffer[:length]), 0
    batch = api.llama_batch_init(512, 0, 1)
    for _ in range(count + 1):
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position + index, 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = index == len(tokens) - 1
        if api.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        position += len(tokens)
        scores = np.ctypeslib.as_array(api.llama_get_logits_ith(context, len(tokens) - 1), shape=(words,))
        tokens = [int(scores.argmax())]
        sys.stdout.write(f"{tokens[0]}\n")
    api.llama_free(context)
    api.llama_free_model(model)


if __name__ == "__main__":
    main()
