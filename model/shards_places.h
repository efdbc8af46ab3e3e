/* shards_places.h - which buckets of a model a rank holds, and their places in memory. For shards.c and shards_state.c.
 */
#ifndef TRAIN_GPT_MODEL_SHARDS_PLACES_H
#define TRAIN_GPT_MODEL_SHARDS_PLACES_H

#include "model/shards.h"

/* --- which buckets ------------------------------------------------------------------------------------------------ */

/* Returns the bucket of the final norm. The buckets of experts come after it. */
static inline int last_bucket(const Shards *z) {
    int b = z->layout.buckets - 1;
    while (layout_is_of_experts(&z->layout, b)) b--;
    return b;
}
static inline int is_block(const Shards *z, int b) { return b > 0 && b < last_bucket(z); }
static inline int has_experts(const Shards *z, int b) { return z->layout.expert_ranks > 1 && is_block(z, b); }
static inline int experts_of(const Shards *z, int b) { return last_bucket(z) + b; }
static inline int is_here(const Shards *z, int b) { return z->layout.bucket[b].hold != BUCKET_ELSEWHERE; }
static inline int is_twin(const Shards *z, int b) { return z->layout.bucket[b].hold == BUCKET_TWIN; }
static inline int has_twin(const Shards *z, int b) { return b == 0 && z->spec.twin_up && !is_twin(z, 0); }
/* Returns the bucket whose backward ends a micro-batch on this rank. */
static inline int first_own(const Shards *z) {
    int b = 0;
    while (z->layout.bucket[b].hold != BUCKET_OWN) b++;
    return b;
}
static inline int last_here(const Shards *z) {
    int b = last_bucket(z);
    while (!is_here(z, b)) b--;
    return b;
}
/* Returns the bucket of the i-th block of this rank. Adjacent blocks have different slots. */
static inline int block_here(const Shards *z, int i) {
    for (int b = 1; b < last_bucket(z); b++)
        if (is_here(z, b) && i-- == 0) return b;
    return 0;
}
static inline int blocks_before(const Shards *z, int b) {
    int before = 0;
    for (int k = 1; k < b; k++) before += is_here(z, k);
    return before;
}
static inline int slot_of(const Shards *z, int b) { return blocks_before(z, b) % SHARDS_SLOTS; }

/* --- where buckets lie -------------------------------------------------------------------------------------------- */

static inline int has_grad_slots(const Shards *z) { return z->stage >= 2; }
static inline int has_param_slots(const Shards *z) { return z->stage == 3; }
static inline int is_in_slot(const Shards *z, int b) { return has_grad_slots(z) && is_block(z, b); }

/* With slots the order in memory is: first bucket, last bucket, slots, experts. All blocks have the same size. */
static inline int64_t end_of_slots(const Shards *z) {
    const Bucket *bucket = z->layout.bucket;
    return bucket[0].elems + bucket[last_bucket(z)].elems + SHARDS_SLOTS * bucket[block_here(z, 0)].elems;
}
static inline int64_t place_of(const Shards *z, int slots, int b) {
    const Bucket *bucket = z->layout.bucket;
    int           last = last_bucket(z);
    if (!slots) return bucket[b].memory;
    if (b == 0) return 0;
    if (b > last) return end_of_slots(z) + bucket[b].memory - bucket[last + 1].memory;
    return bucket[0].elems + (is_block(z, b) ? bucket[last].elems + slot_of(z, b) * bucket[b].elems : 0);
}
static inline int64_t room_of(const Shards *z, int slots) {
    const Bucket *last = &z->layout.bucket[last_bucket(z)];
    return slots ? end_of_slots(z) + z->layout.memory_elems - (last->memory + last->elems) : z->layout.memory_elems;
}
static inline Tensor weights_of(const Shards *z, int b) {
    return tensor_slice(z->params, place_of(z, has_param_slots(z), b), z->layout.bucket[b].elems);
}
static inline Tensor grads_of(const Shards *z, int b) {
    return tensor_slice(z->grads, place_of(z, has_grad_slots(z), b), z->layout.bucket[b].elems);
}

/* comm_of returns the ranks that share a bucket. piece_number returns the number of a rank's piece of it. */
static inline Comm *comm_of(const Shards *z, int b) { return layout_is_of_experts(&z->layout, b) ? z->spec.expert_state : z->spec.comm; }
static inline int   piece_number(const Shards *z, int b, int rank) { return rank / (z->layout.ranks / z->layout.bucket[b].ranks); }

/* Return this rank's piece. piece_of: inside a bucket. piece_among: of block b in `pieces`, the pieces of all
 * blocks. */
static inline Tensor piece_of(const Shards *z, Tensor bucket, int b) {
    int64_t q = z->layout.bucket[b].piece_elems;
    return tensor_slice(bucket, piece_number(z, b, z->spec.rank) * q, q);
}
static inline Tensor piece_among(const Shards *z, Tensor pieces, int b) {
    return tensor_slice(pieces, z->layout.bucket[b].shard - z->layout.bucket[1].shard, z->layout.bucket[b].piece_elems);
}
/* Returns the elements of this rank's pieces of all blocks, which are adjacent. */
static inline int64_t pieces_elems(const Shards *z) { return z->layout.bucket[last_bucket(z)].shard - z->layout.bucket[1].shard; }

#endif
