/* optimizer.h - ZeRO-1 AdamW (Rajbhandari et al., arXiv:1910.02054): each rank keeps masters and moments of its own pieces only.
 *
 * State lives in shard order: piece `rank` of bucket 0, then of bucket 1, ... (Span.shard). With zero_stage 0 every rank keeps all
 * pieces: then state lives at the memory index itself. In fp32 the working copy is its own master.
 */
#ifndef TRAIN_GPT_LAYERS_OPTIMIZER_H
#define TRAIN_GPT_LAYERS_OPTIMIZER_H

#include "core/layout.h"
#include "layers/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const Layout *layout;    /* borrowed */
    int    rank, zero_stage;
    Tensor params;           /* [memory_elems] act, borrowed working copy                     */
    Tensor grads;            /* [memory_elems] f32, borrowed                                  */
    Tensor m, v;             /* [shard_elems] f32, or [memory_elems] with zero_stage 0         */
    Tensor master;           /* like m; data NULL when params is F32                          */
    Span  *spans;            /* owned: the runs this rank updates, all buckets                */
    int    span_count, *bucket_first_span;  /* spans of bucket b: [first[b], first[b+1])      */
    AdamWPiece *pieces;      /* owned: room for the spans as an update takes them              */
} Optimizer;

Optimizer optimizer_create(const Layout *layout, int rank, int zero_stage, Tensor params, Tensor grads, Arena *arena);
void      optimizer_destroy(Optimizer *o);

/* fp32 views of one span's master, m and v: what a checkpoint writes and reads. */
Tensor optimizer_master(const Optimizer *o, Span span);
Tensor optimizer_m(const Optimizer *o, Span span);
Tensor optimizer_v(const Optimizer *o, Span span);

/* Writes the working copy of every span from its master (after init or resume). */
void optimizer_publish(const Optimizer *o, Stream *s);

/* Sum of squares of the reduced gradients this rank answers for (its own pieces, whatever the stage). sum: an Exact, out(+=) */
void optimizer_norm_squared(const Optimizer *o, Stream *s, Tensor sum);

/* Adds the bits (hash_words) of what no other rank may have otherwise: the working copy and, with zero_stage 0, masters, m and v; and of the
 * reduced gradients that this rank updates with. hash: [1] i64, out(+=) */
void optimizer_hash_replicas(const Optimizer *o, Stream *s, Tensor hash);
void optimizer_hash_grads(const Optimizer *o, Stream *s, Tensor hash);

/* One step over this rank's spans; grad_scale multiplies the gradient (clipping). */
void optimizer_update(Optimizer *o, Stream *s, AdamW h, float grad_scale);

#ifdef __cplusplus
}
#endif
#endif
