/* serve_memory.h - the memory of a server of islands, from the tables that it allocates from. `serve` takes it; `plan`
 * counts it.
 */
#ifndef TRAIN_GPT_RUN_SERVE_MEMORY_H
#define TRAIN_GPT_RUN_SERVE_MEMORY_H

#include "model/optimizer.h"
#include "run/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x and its states, of one rank in host memory: run/outer/server_weights.h. */
typedef struct {
    Arena     params, grads, state, sums;
    Shards   *shards;    /* owned */
    Optimizer optimizer; /* owned */
} ServeWeights;

/* Ends the program with 71 where the memory of serve_bytes is not to be had. */
ServeWeights serve_weights_create(const Config *config);
void         serve_weights_destroy(ServeWeights *w);

/* Bytes. A connection takes CHANNEL_BYTES more. */
typedef struct {
    size_t weights;      /* and what an update of x needs */
    size_t copy;         /* from which checkpoints are written */
    size_t deltas;       /* one an island, of outer.least_islands */
    size_t moments;      /* outer.moments=peer: of one island, on their way to others */
    size_t all;
} ServeBytes;
ServeBytes serve_bytes(const Config *config);

#ifdef __cplusplus
}
#endif
#endif
