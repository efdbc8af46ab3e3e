/* shards.h - the parameters and gradients of a model, in buckets, over the ranks that share its state. The only file
 * that knows the ZeRO stage (Rajbhandari et al., "ZeRO", arXiv:1910.02054).
 *
 * A bucket travels between ranks as a whole: the embeddings, a block, or the final norm (core/layout.h). Its life in
 * a step:
 *   need      forward, backward: the weights, once they have come from all ranks
 *   grads     backward: where gradients are added
 *   done      backward has added all of them: in the step's last micro-batch their sum over the ranks starts on its way
 *   finish    every sum is there: piece `rank` of each bucket holds it (stage 0: all of the bucket)
 *   publish   the weights that were updated start on their way to all ranks; the next need of each waits for it
 */
#ifndef TRAIN_GPT_MODEL_SHARDS_H
#define TRAIN_GPT_MODEL_SHARDS_H

#include "comm/comm.h"
#include "model/block.h"
#include "model/grad_order.h"
#include "model/step_sums.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    ModelShape shape;
    Comm      *comm;               /* borrowed; NULL: one rank alone, or a plan                                */
    int        ranks, rank;        /* of comm; or of the ranks that a plan is for                              */
    int        zero_stage;         /* 0: every rank updates everything; 1: each its pieces                     */
    int64_t    micro_batches;      /* parallel.deterministic: of a step, on each rank; 0: not in that mode     */
    DType      act;                /* of the working copy                                                      */
    GptUse     use;                /* GPT_INFERENCE has no gradients                                           */
} ShardsSpec;

typedef struct {
    ShardsSpec    spec;
    Layout        layout;          /* owned                                                                    */
    Tensor        params, grads;   /* [memory_elems] act, the working copy; [memory_elems] f32                 */
    void        **weight_view, **grad_view; /* owned [buckets]: structs of Tensors (model/params.h)            */
    Span         *span;            /* owned [spans]: this rank's to update, all buckets                        */
    int           spans;
    StepSums      sums;
    GradOrder     order;
    Event         computed;        /* shards_await's, from its first use                                       */
    int           gathers;         /* weights are on their way                                                 */
    int64_t       first_gather;    /* number of the collective that gathers bucket 0                           */
    int           hashes_own;      /* done adds the hash of this rank's gradients, before their sum: HASH_OWN_GRADS */
} Shards;

/* Carves the working copy and, for training, the gradients of this layout (model_layout), which it owns from now on.
 * NULL data in a dry run. */
Shards *shards_create(ShardsSpec spec, Layout layout, StepSums sums, Arena *params, Arena *grads);
void    shards_destroy(Shards *z);

const void *shards_need(Shards *z, int bucket);
/* Waits for all weights. Call it before work of some ranks alone, or before memory is taken away. */
void        shards_need_all(Shards *z);

void        shards_begin(Shards *z, Stream *s);  /* a step: zero gradients */
const void *shards_grads(Shards *z, int bucket);
typedef enum { MICRO_EARLIER, MICRO_LAST } MicroBatch;
/* With several ranks or ordered sums, also adds the squares of the last row of bucket 0 to SUM_RANK_CHECK, before the
 * sum over ranks. NaN or Inf anywhere in this rank's backward shows up there, so it names the faulty rank. */
void        shards_done(Shards *z, Stream *s, int bucket, MicroBatch which);
void        shards_finish(Shards *z, Stream *s);
/* Waits until the stream has done everything it was given; a lost peer or link is seen meanwhile. */
void        shards_await(Shards *z, Stream *s);

void        shards_publish(Shards *z);

/* --- for the optimizer -------------------------------------------------------------------------------------------- */

int64_t shards_state_elems(const Shards *z);              /* of masters and each of its states                                */
Tensor  shards_state_view(const Shards *z, Tensor state, Span span);
int     shards_is_own(const Shards *z, Span span);        /* this rank answers for it in sums over the ranks; stage 0: it holds others, too */
int     shards_state_is_shared(const Shards *z);          /* all ranks hold the same masters and states                       */
void    shards_hash_grads(const Shards *z, Stream *s, Tensor hash); /* of the sums that this rank updates with; hash [1] i64 out(+=) */

#ifdef __cplusplus
}
#endif
#endif
