/* shards.h - the parameters and gradients of a model, in buckets, over the ranks that share its state. The only file
 * that knows the ZeRO stage (Rajbhandari et al., "ZeRO", arXiv:1910.02054).
 *
 * A bucket travels between ranks as a whole: the embeddings, a block, or the final norm (core/layout.h). Its life in
 * a step:
 *   need      forward, backward: the weights, once they have come from all ranks
 *   prefetch  stage 3: the weights start on their way, while the block before them is computed
 *   begin     gradients hold nothing: matrices are fresh, so that the first product sets them, and the rest is zero
 *   grads     backward: where gradients are set, or added
 *   done      backward has added all of them: their sum over the ranks starts on its way, in the step's last micro-batch
 *             or, for the blocks of stages 2 and 3, in each
 *   finish    every sum is there: piece `rank` of each bucket (stage 0: all of the bucket)
 *   publish   the weights that were updated start on their way to all ranks; the next need of each waits for it
 *
 *   stage   masters and states   gradients                      weights
 *   0       all                  all                            all
 *   1       this rank's pieces   all                            all
 *   2       pieces               pieces, and slots for blocks   all
 *   3       pieces               pieces, and slots for blocks   pieces, and slots for blocks
 *
 * With several copies of the state (parallel.replicas) a rank sums its piece over its copy's ranks, then over the
 * copies: the hierarchical all-reduce, and hybrid sharding (HSDP). Blocks take turns in SHARDS_SLOTS slots; the first
 * and the last bucket, which are small or used throughout, stay. Where one rank is alone stages 2 and 3 are stage 1. In
 * fp32 the piece of stage 3 is the master.
 *
 * With tensor ranks (parallel.tensor) a bucket holds this one's part of every row that is cut. The others, norms and
 * biases of a sum, all of them hold whole: each has the gradient of its own rows of the residual stream, and finish adds
 * them up.
 *
 * With a pipeline a rank holds its stage's buckets (core/layout.h: BucketHold). The last stage has a twin of the first
 * bucket, for the head: its gradient goes to the first stage, which adds it to its own, updates, and sends the weights
 * back.
 *
 * With expert ranks (parallel.expert) a block's experts are a bucket of their own, which travels with the block's but among
 * fewer ranks: those that hold the same experts. It stays, as in stage 1: these ranks have divided the experts already.
 */
#ifndef TRAIN_GPT_MODEL_SHARDS_H
#define TRAIN_GPT_MODEL_SHARDS_H

#include "comm/comm.h"
#include "model/block.h"
#include "model/grad_order.h"
#include "model/step_sums.h"

enum { SHARDS_SLOTS = 2 };

typedef struct {
    ModelShape shape;
    Comm      *comm;               /* borrowed; NULL: one rank alone, or a plan                                */
    int        ranks, rank;        /* of comm; or of the ranks that a plan is for                              */
    Comm      *across;             /* borrowed; ranks with the same piece of other copies of the state; NULL: there are none */
    int        replicas, replica;  /* copies, 0 counts as 1; this rank's                                       */
    Comm      *twin_up, *twin_down; /* borrowed; messages of the tied embedding: its gradient to the first stage, its weights back */
    Comm      *matrices;           /* borrowed; all ranks that hold a part of one matrix (model/matrices.h); NULL: one alone, or no need */
    Comm      *tensor;             /* borrowed; ranks that divide every matrix; NULL: there is one             */
    int        tensor_ranks, tensor_rank; /* of it, 0 counts as 1; or of those that a plan is for              */
    Comm      *expert_state;       /* borrowed; ranks that share the state of the same experts                 */
    int        expert_ranks;       /* ranks that divide the experts, 0 counts as 1; neighbours in comm         */
    int        zero_stage;         /* 0 to 3, as above                                                         */
    int64_t    micro_batches;      /* parallel.deterministic: of a step, on each rank; 0: not in that mode     */
    DType      act;                /* of the working copy                                                      */
    GptUse     use;                /* GPT_INFERENCE has no gradients                                           */
} ShardsSpec;

typedef struct {
    ShardsSpec    spec;
    Layout        layout;          /* owned                                                                    */
    int           stage;           /* in effect                                                                */
    Tensor        params, grads;   /* act, the working copy; f32: [memory_elems], or the buckets that stay and the slots */
    Tensor        param_pieces, grad_pieces; /* this rank's, of the blocks; where these have slots               */
    Tensor        twin_grads;      /* f32: the twin's piece, where it arrives; of the first stage                    */
    Tensor        whole_grads;     /* f32: of this rank's pieces, the rows that no tensor rank cuts; on their way */
    void        **weight_view, **grad_view; /* owned [buckets]: structs of Tensors (model/params.h)            */
    Span         *span;            /* owned [spans]: this rank's to update, all buckets                        */
    int           spans;
    StepSums      sums;
    GradOrder     order;
    Event         computed;        /* shards_await's, from its first use                                       */
    int64_t      *gather;          /* owned [buckets]: number of the collective that brings the weights; -1: they are there */
    int           due, due_since, due_size; /* buckets from `due` on have their gathers still to start; the last ones started at once */
    int           wanted;          /* the highest bucket that was waited for since                             */
    int          *adds;            /* owned [buckets]: the next products add to its matrices; 0: they set them         */
    Tensor       *rest;            /* owned [params + buckets]: room for a list of what is zeroed                     */
    int64_t      *sums_of;         /* owned [buckets]: stages 2, 3: micro-batches of the step in a block's grad piece */
    int           weights_in[SHARDS_SLOTS], grads_in[SHARDS_SLOTS]; /* the bucket in each slot; its sum is on its way; 0: none */
    int64_t       sum_number[SHARDS_SLOTS];  /* of that sum                                                    */
    int           sum_is_last[SHARDS_SLOTS]; /* of the step                                                    */
    int           is_offline;      /* nothing travels: shards_set_offline                                      */
    int           hashes_own;      /* done adds the hash of this rank's gradients, before their sum: HASH_OWN_GRADS */
} Shards;

/* Carves the working copy and, for training, the gradients of this layout (model_layout), which it owns from now on.
 * NULL data in a dry run. */
Shards *shards_create(ShardsSpec spec, Layout layout, StepSums sums, Arena *params, Arena *grads);
void    shards_destroy(Shards *z);

const void *shards_need(Shards *z, Stream *s, int bucket);
void        shards_prefetch(Shards *z, Stream *s, int bucket); /* any number: nothing where there is no such block */
/* Waits for all weights. Call it before work of some ranks alone, or before memory is taken away. */
void        shards_need_all(Shards *z);

void        shards_begin(Shards *z, Stream *s);  /* a step: nothing is in the gradients */
void        shards_empty(Shards *z, Stream *s);  /* the same for work that is no step's */
const void *shards_grads(Shards *z, Stream *s, int bucket);
int         shards_adds(const Shards *z, int bucket); /* products that come now add to its matrices; 0: they set them, which are fresh */
typedef enum { MICRO_EARLIER, MICRO_LAST } MicroBatch;
/* With several ranks or ordered sums, also adds the squares of the last row of bucket 0 to SUM_RANK_CHECK, before the
 * sum over ranks. NaN or Inf anywhere in this rank's backward shows up there, so it names the faulty rank. */
void        shards_done(Shards *z, Stream *s, int bucket, MicroBatch which);
void        shards_finish(Shards *z, Stream *s);
void        shards_poll(Shards *z); /* lets what travels go on, of all groups */
/* Waits until the stream has done everything it was given; a lost peer or link is seen meanwhile. */
void        shards_await(Shards *z, Stream *s);

void        shards_publish(Shards *z, Stream *s);

/* After forwards beside the steps: the first blocks come back into the slots of stage 3. */
void        shards_rewind(Shards *z, Stream *s);
/* A forward gathers weights (stage 3), or brings rows to experts, so that all ranks run equally many. */
int         shards_gathers(const Shards *z);
/* While is_offline nothing travels, for a rank that computes without the others, to time it: its slots hold other
 * weights. */
void        shards_set_offline(Shards *z, int is_offline);

/* --- for the optimizer -------------------------------------------------------------------------------------------- */

int64_t shards_state_elems(const Shards *z);              /* of masters and each of its states                                */
int64_t shards_state_at(const Shards *z, Span span);      /* the place of its first element among them                        */
Tensor  shards_state_view(const Shards *z, Tensor state, Span span);
/* Of elements in matrices, in whole packs of 64 of each span: those that every rank has at least. */
int64_t shards_matrix_elems(const Shards *z);
int     shards_spans_to_save(const Shards *z, int bucket, Span *spans); /* of this rank's piece; none where another copy saves it */
Tensor  shards_weight(const Shards *z, Span span);        /* of the working copy, as this rank updates it                     */
Tensor  shards_grad(const Shards *z, Span span);          /* after shards_finish                                              */
int     shards_is_own(const Shards *z, Span span);        /* this rank answers for it in sums over the ranks; stage 0: it holds others, too */
int     shards_state_is_shared(const Shards *z);          /* all ranks hold the same masters and states                       */
void    shards_hash_weights(const Shards *z, Stream *s, Tensor hash); /* of those that all ranks hold; stage 3: not the blocks' */
void    shards_hash_whole(const Shards *z, Stream *s, Tensor hash);   /* the same, of rows that no tensor rank cuts */
void    shards_hash_pieces(const Shards *z, Stream *s, Tensor hash);  /* stage 3: of the blocks' weights, this rank's    */
void    shards_hash_grads(const Shards *z, Stream *s, Tensor hash); /* of the sums that this rank updates with; hash [1] i64 out(+=) */

#endif
