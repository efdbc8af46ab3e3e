/* serve_memory.h - the memory of a server of islands, from the tables that it allocates from. `serve` takes it; `plan`
 * counts it.
 */
#ifndef TRAIN_GPT_RUN_PLAN_SERVE_MEMORY_H
#define TRAIN_GPT_RUN_PLAN_SERVE_MEMORY_H

#include "model/optimizer.h"
#include "run/config/config.h"

/* x and its states (run/outer/server_weights.h): of the server that leads, the whole model's in an optimizer of one rank
 * in host memory; of another, its part's in memory of its own. */
typedef struct {
    Arena     params, grads, state, sums;
    Shards   *shards;    /* owned; of a part: without memory */
    Optimizer optimizer; /* owned, the same */
    float    *part;      /* owned; x, m and v of a part, zeros; NULL: the server leads */
} ServeWeights;

/* part: of outer.server, from 0, which leads. Ends the program with 71 where the memory of serve_bytes is not to be
 * had. */
ServeWeights serve_weights_create(const Config *config, int part);
void         serve_weights_destroy(ServeWeights *w);

/* Bytes. A connection takes CHANNEL_BYTES more. */
typedef struct {
    size_t weights;      /* and what an update of x needs */
    size_t copy;         /* from which checkpoints are written: the one that leads writes them */
    size_t changes;      /* outer.compress: what islands fetch, and what rounding took from it (round_change.h);
                          * wait=none: what each island of outer.least_islands holds (held_weights.h) */
    size_t deltas;       /* of its part: one an island, of outer.least_islands */
    size_t moments;      /* outer.moments=peer: of one island, on their way to others */
    size_t all;
} ServeBytes;
ServeBytes serve_bytes(const Config *config, int part);

#endif
