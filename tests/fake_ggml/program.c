/* A program that computes a graph of four nodes: program ENTRY BACKEND, as an RPC worker or through a scheduler. */
#include "ggml.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ggml_tensor tensor;
typedef struct { int n; tensor **nodes; char rest[64]; } cgraph;
typedef struct { const char *name; } backend;
typedef bool (*callback)(tensor *, bool, void *);
typedef struct { backend *where; callback f; void *data; } sched;

tensor *ggml_new_tensor_4d(void *, int, int64_t, int64_t, int64_t, int64_t);
int ggml_backend_graph_compute(backend *, cgraph *);
int ggml_backend_graph_compute_async(backend *, cgraph *);
void ggml_backend_sched_set_eval_callback(sched *, callback, void *);
int ggml_backend_sched_graph_compute(sched *, cgraph *);

static int own_calls;
static bool own(tensor *t, bool ask, void *data) { (void)t, (void)ask, (void)data; return own_calls++, true; }

static tensor *node(int op, const char *name, int64_t rows) {
    tensor *t = ggml_new_tensor_4d(NULL, 0, 8, rows, 1, 1);
    t->op = op;
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

int main(int argc, char **argv) {
    const char *entry = argc > 1 ? argv[1] : "worker";
    backend b = {argc > 2 ? argv[2] : "CPU"};
    sched s = {&b, NULL, NULL};
    const char *name = getenv("FAKE_NAME") ? getenv("FAKE_NAME") : "Qcur-0";
    tensor *nodes[] = {node(3, name, 2), node(4, "Qcur-0 (view)", 2), node(2, "l out\n-1", 2), node(4, "x (view)", 2)};
    if (!strcmp(entry, "broken")) strcpy(nodes[2]->name, "broken");
    cgraph g = {4, nodes, {0}}, earlier = {1, nodes, {0}};
    int status = 0;
    for (int pass = 0; pass < 2; pass++) {
        ggml_backend_graph_compute_async(&b, &earlier); /* work in the queue, as copies of inputs are */
        if (!strcmp(entry, "own")) ggml_backend_sched_set_eval_callback(&s, own, NULL);
        if (!strcmp(entry, "sched")) ggml_backend_sched_set_eval_callback(&s, NULL, NULL);
        if (!strcmp(entry, "worker") || !strcmp(entry, "broken")) status |= ggml_backend_graph_compute(&b, &g);
        else status |= ggml_backend_sched_graph_compute(&s, &g);
    }
    printf("status=%d own_calls=%d\n", status, own_calls);
    return 0;
}
