/* A stand-in for ggml, of our own: the few functions that the shim uses. -DSHIFTED moves the fields of a tensor. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ggml_tensor {
    int type;
    void *buffer;
#ifdef SHIFTED
    int64_t moved;
#endif
    int64_t ne[4];
    size_t nb[4];
    int op;
    char name[64];
};
