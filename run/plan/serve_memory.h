/* serve_memory.h - the memory of a server of islands, computed from the tables that it allocates from. `serve`
 * allocates it; `plan` counts it.
 */
#ifndef TRAIN_GPT_RUN_PLAN_SERVE_MEMORY_H
#define TRAIN_GPT_RUN_PLAN_SERVE_MEMORY_H

#include "model/optimizer.h"
#include "run/config/config.h"

/* x and its states (run/outer/rule.h). The server that leads has the whole model in an optimizer of one rank
 * in host memory. Another server has its part in one block of memory. */
typedef struct {
    Arena     params, grads, state, sums;
    Shards   *shards;    /* owned; without memory if the server has a part */
    Optimizer optimizer; /* owned; without memory if the server has a part */
    float    *part;      /* [WEIGHTS_TENSORS, elements of the part] x, m and v, zeros; owned. NULL if the server
                          * leads */
} ServeWeights;

/* Allocates the weights of server `part` of outer.server, from 0, which leads. Ends the program with 71 if the memory
 * of serve_bytes cannot be allocated. */
ServeWeights serve_weights_create(const Config *config, int part);
void         serve_weights_destroy(ServeWeights *w);

/* Bytes of a server. Each connection needs CHANNEL_BYTES more. */
typedef struct {
    size_t weights;      /* the weights, and what an update of x needs */
    size_t copy;         /* the copy that checkpoints are written from, on the server that leads */
    size_t changes;      /* outer.compress: the change of a round and what rounding lost; wait=none: what each of
                          * outer.least_islands islands holds (run/outer/rule.h) */
    size_t deltas;       /* deltas of the server's part, one for each of outer.least_islands islands */
    size_t all;          /* sum of the bytes above */
} ServeBytes;
ServeBytes serve_bytes(const Config *config, int part);

#endif
