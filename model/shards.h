/* shards.h - the parameters and gradients of a model, in buckets, over the ranks that share its state. Only this file
 * knows the ZeRO stage (Rajbhandari et al., "ZeRO", arXiv:1910.02054).
 *
 * A bucket is the unit of communication: the embeddings, a block, or the final norm (core/layout.h). The calls for a
 * bucket in a step:
 *   need      forward, backward: waits for the weights from all ranks and returns them
 *   prefetch  stage 3: starts the gather of the weights while the block before is computed
 *   begin     empties the gradients: matrices are marked fresh, so that the first product sets them; the rest is zeroed
 *   grads     backward: returns the gradients, which are set or added to
 *   done      after backward has added all gradients: starts their sum over the ranks, in the step's last micro-batch
 *             or, for the blocks of stages 2 and 3, in each micro-batch
 *   finish    waits for every sum: piece `rank` of each bucket (stage 0: all of the bucket)
 *   publish   starts sending the updated weights to all ranks; the next need of each bucket waits for them
 *
 *   stage   masters and states   gradients                      weights
 *   0       all                  all                            all
 *   1       this rank's pieces   all                            all
 *   2       pieces               pieces, and slots for blocks   all
 *   3       pieces               pieces, and slots for blocks   pieces, and slots for blocks
 *
 * With several copies of the state (parallel.replicas) a rank's piece is summed over the ranks of its copy, then over
 * the copies. This is the hierarchical all-reduce, and hybrid sharding (HSDP). Blocks share SHARDS_SLOTS slots. The
 * first and the last bucket, which are small or always in use, have no slot. With one rank, stages 2 and 3 become stage
 * 1. In fp32 the piece of stage 3 is the master.
 *
 * With tensor ranks (parallel.tensor) a bucket holds this rank's slice of every row that is cut. Norms and biases of a
 * sum are not cut; every tensor rank holds them whole. Each has the gradient from its own rows of the residual stream,
 * and finish sums these gradients.
 *
 * With a pipeline a rank holds the buckets of its stage (core/layout.h: BucketHold). For a tied head the last stage has
 * a twin of the first bucket. The twin's gradient is sent to the first stage, which adds it to its own, updates the
 * weights and sends them back.
 *
 * With expert ranks (parallel.expert) a block's experts are a bucket of their own. It is communicated together with the
 * block's bucket, but among fewer ranks: those that hold the same experts. It has no slot in any stage, because the
 * expert ranks have divided the experts already.
 */
#ifndef TRAIN_GPT_MODEL_SHARDS_H
#define TRAIN_GPT_MODEL_SHARDS_H

#include "comm/comm.h"
#include "core/exact.h"
#include "model/block.h"

/* --- the numbers of a step that the host reads -------------------------------------------------------------------- */

/* The numbers of a step, sums and hashes, are adjacent on the device and fetched in one copy. The sums are exact: any
 * order of addition gives the same bits. */

/* Sums of a step. SUM_LOSS: losses of the rows. SUM_GRAD_SQUARES: squares of the summed gradients that this rank counts
 * (shards_is_own). SUM_RANK_CHECK: squares of the gradients that backward completes last, which identify a faulty rank
 * (shards_done). */
enum { SUM_LOSS, SUM_GRAD_SQUARES, SUM_RANK_CHECK, SUMS };
/* Hashes of a step (hash_words). HASH_REPLICAS: memory that all ranks hold with equal bits. HASH_OWN_GRADS: a rank's
 * own gradients, before they are summed over the ranks. HASH_GRADS: the summed gradients that a rank updates with. */
enum { HASH_REPLICAS, HASH_OWN_GRADS, HASH_GRADS, HASHES };

/* Sums and counts of a step, on the device. cells: the sums and the hashes. experts: assignments of each expert of each
 * block; dims 0 in a model without experts. fp8_amax, fp8_counts: maxima and counts of Fp8 for every block, in runs
 * with fp8 (model/precision.h). */
typedef struct {
    /* [SUMS * EXACT_WORDS + HASHES] i64: the sums, then the hashes. [n_layer * E] i64: number of assignments of tokens
     * to each expert */
    Tensor cells, experts;
    /* [cells] i32: bits of the maximum of each tensor in fp8; [2 cells] i64: counts, two for each of these tensors */
    Tensor fp8_amax, fp8_counts;
} StepSums;

typedef struct { Exact sum[SUMS]; int64_t hash[HASHES]; } StepValues;

/* Allocates the sums and counts of a step. experts: length of StepSums.experts; fp8_cells: number of tensors in fp8; 0:
 * none. */
StepSums   step_sums_create(Arena *arena, int64_t experts, int64_t fp8_cells);
void       step_sums_zero(const StepSums *n, Stream *s);
Tensor     step_sum(const StepSums *n, int which);  /* returns one sum, an Exact: [EXACT_WORDS] i64 */
Tensor     step_hash(const StepSums *n, int which); /* returns one hash: [1] i64 */
/* Waits for the stream and returns the step's sums and hashes from the device. */
StepValues step_sums_fetch(const StepSums *n, Stream *s);

/* --- shards ------------------------------------------------------------------------------------------------------- */

/* With parallel.deterministic: adds a step's gradients in the order of a tree (comm/comm.h), which is the same for any
 * number of ranks. The gradients of each micro-batch are complete before they are added to anything. Partial sums that
 * wait for the other half of their node are kept in buffers apart from the model's gradients. The last micro-batch's
 * gradients stay in the model's gradients, and its buckets are exchanged between the ranks as backward completes
 * them. */
typedef struct {
    int64_t   leaves;              /* micro-batches of a step over all ranks; 0: parallel.deterministic is off */
    int64_t   leaf;                /* number, over all ranks, of the micro-batch whose gradients are computed next */
    /* nodes of the tree: sums of this rank's earlier micro-batches; buffer[i] holds node i */
    TreeNodes nodes;
    Tensor    grads;               /* [memory_elems] f32, borrowed: the model's gradients            */
    /* [memory_elems] f32 each: partial sums that wait for the sum of the other half of their node */
    Tensor    buffer[TREE_MOST];
    int       buffers;
} GradOrder;

enum { SHARDS_SLOTS = 2 };

typedef struct {
    ModelShape shape;
    /* borrowed; ranks that share one copy of masters and moments (the state); NULL: one rank, or a plan */
    Comm      *comm;
    /* number of ranks of comm, and index of this rank among them; in a plan, index of the planned rank */
    int        ranks, rank;
    /* borrowed; ranks with the same piece (ZeRO shard) in other copies of the state; NULL: one copy */
    Comm      *across;
    int        replicas, replica;  /* number of copies of the state, 0 counts as 1; index of the copy of this rank */
    /* borrowed; pairs of ranks for a tied embedding: gradient to the first stage, weights back to the last */
    Comm      *twin_up, *twin_down;
    /* borrowed; ranks that hold parts of the same matrices (model/matrices.h); NULL: one rank, or not used */
    Comm      *matrices;
    Comm      *tensor;             /* borrowed; ranks that divide every matrix; NULL: one rank                 */
    /* number of ranks of `tensor`, 0 counts as 1, and index of this rank among them; in a plan, index of the planned
     * rank */
    int        tensor_ranks, tensor_rank;
    /* borrowed; ranks that share masters and moments of the same experts; NULL: ranks do not divide the experts */
    Comm      *expert_state;
    int        expert_ranks;       /* ranks that divide the experts, adjacent in comm; 0 counts as 1           */
    int        zero_stage;         /* ZeRO stage, 0 to 3                                                       */
    int64_t    micro_batches;      /* with parallel.deterministic: micro-batches of a step on each rank; otherwise 0 */
    DType      act;                /* type of the working copy of the weights                                  */
    GptUse     use;                /* GPT_INFERENCE and GPT_SAMPLING have no gradients                         */
} ShardsSpec;

typedef struct {
    ShardsSpec    spec;
    Layout        layout;          /* owned: where each bucket and each parameter is in memory */
    int           stage;           /* ZeRO stage in effect: spec.zero_stage, but 1 instead of 2 and 3 on one rank */
    /* params: the working copy of the weights, of type spec.act. grads: the gradients, f32. Without slots (buffers that
     * blocks share) both have [memory_elems]. With slots they have the buckets that are not in slots, then the
     * slots. */
    Tensor        params, grads;
    /* memory of this rank's pieces (ZeRO shards) of the blocks, if blocks have slots (shared buffers) */
    Tensor        param_pieces, grad_pieces;
    /* f32, on the first stage: receives this rank's piece of the tied embedding's gradient from the last stage */
    Tensor        twin_grads;
    /* f32: gradients in this rank's pieces of rows that tensor ranks do not divide, to be summed over these ranks */
    Tensor        whole_grads;
    /* owned [wholes]: the parts of parameters whose gradients are in whole_grads, in this order */
    Span         *whole;
    int           wholes;
    /* owned [buckets]: for each bucket a struct of the Tensors of its parameters or gradients (model/params.h) */
    void        **weight_view, **grad_view;
    Span         *span;            /* owned [spans]: parts of parameters that this rank updates, in all buckets */
    int           spans;
    StepSums      sums;
    GradOrder     order;
    Event         computed;        /* event after the work queued so far, for shards_await; created at its first use */
    /* owned [buckets]: number of the collective that gathers the weights of each bucket; -1: it has ended */
    int64_t      *gather;
    /* due: first bucket whose gather of weights has not started; due_since, due_size: first bucket and size of the last
     * group of gathers that started */
    int           due, due_since, due_size;
    int           wanted;          /* highest bucket whose weights were waited for since shards_publish */
    /* owned [buckets]: 1 if the next products add to the gradients of the bucket's matrices; 0 if they overwrite
     * them */
    int          *adds;
    /* owned [params + buckets]: list of the ranges of gradient memory that are zeroed, because products do not set
     * them */
    Tensor       *rest;
    /* owned [buckets]: in ZeRO stages 2 and 3, number of the step's micro-batches in this rank's summed piece of each
     * block's gradients */
    int64_t      *sums_of;
    /* for each slot (a buffer that blocks share); weights_in: bucket whose weights it has; grads_in: bucket whose
     * gradients are being summed in it; 0: none */
    int           weights_in[SHARDS_SLOTS], grads_in[SHARDS_SLOTS];
    int64_t       sum_number[SHARDS_SLOTS];  /* number of the collective that sums the gradients in each slot  */
    int           sum_is_last[SHARDS_SLOTS]; /* 1 if the sum in the slot is the step's last for its bucket     */
    /* 1: this rank computes without communication (gpt_set_offline); its slots may hold the weights of other blocks */
    int           is_offline;
    /* 1: shards_done adds the hash of this rank's gradients, before they are summed, to HASH_OWN_GRADS */
    int           hashes_own;
} Shards;

/* Makes the shards: takes memory for the working copy of the weights and, for training, for the gradients from the
 * arenas. The shards own `layout` (model_layout) from now on. If the arenas only count bytes (a dry run), the tensors
 * have no memory (data NULL). */
Shards *shards_create(ShardsSpec spec, Layout layout, StepSums sums, Arena *params, Arena *grads);
void    shards_destroy(Shards *z);

const void *shards_need(Shards *z, Stream *s, int bucket);
/* starts the gather of a block's weights (ZeRO stage 3); does nothing if `bucket` is no block of this rank */
void        shards_prefetch(Shards *z, Stream *s, int bucket);
/* Waits for the weights of all buckets. Call it before work that only some ranks do, and before memory is freed. */
void        shards_need_all(Shards *z);

void        shards_begin(Shards *z, Stream *s);  /* begins a step with empty gradients */
void        shards_empty(Shards *z, Stream *s);  /* empties the gradients outside of a step */
const void *shards_grads(Shards *z, Stream *s, int bucket);
typedef enum { MICRO_EARLIER, MICRO_LAST } MicroBatch;
/* Tells the shards that backward has added all gradients of a bucket in a micro-batch. Starts the sum over the ranks if
 * it is due. With several ranks or ordered sums it also adds to SUM_RANK_CHECK the squares of the gradients that
 * backward completes last, before the sum over ranks. NaN or Inf anywhere in this rank's backward shows up there, so
 * that sum identifies the faulty rank. */
void        shards_done(Shards *z, Stream *s, int bucket, MicroBatch which);
void        shards_finish(Shards *z, Stream *s);
void        shards_poll(Shards *z); /* advances the communication of all groups of ranks */
/* Waits until the stream has done everything that is queued. Meanwhile it notices a lost rank or connection. */
void        shards_await(Shards *z, Stream *s);

void        shards_publish(Shards *z, Stream *s);

/* Gathers the first blocks into the slots (buffers that blocks share) of ZeRO stage 3 again. Call it after forwards
 * outside of a training step. */
void        shards_rewind(Shards *z, Stream *s);
/* Returns whether a forward communicates over the ranks that share these shards: it gathers weights (ZeRO stage 3), or
 * sends rows to experts. If so, all ranks must run equally many forwards. */
int         shards_gathers(const Shards *z);

/* --- for the optimizer -------------------------------------------------------------------------------------------- */

/* returns how many elements of masters this rank has; each state (moment) has at most as many */
int64_t shards_state_elems(const Shards *z);
/* returns the index of a span's first element among this rank's masters; a span is a part of a parameter */
int64_t shards_state_at(const Shards *z, Span span);
Tensor  shards_state_view(const Shards *z, Tensor state, Span span);
/* Returns the least number of matrix elements that any rank has. In each part of a parameter only whole packs of 64
 * elements count. */
int64_t shards_matrix_elems(const Shards *z);
/* Writes the spans (parts of parameters) of this rank's piece (ZeRO shard) of a bucket, for a checkpoint. Returns their
 * number: 0 if a rank of another copy of the state saves the piece. */
int     shards_spans_to_save(const Shards *z, int bucket, Span *spans);
/* returns the weights of a span (part of a parameter) that this rank updates, in the working copy */
Tensor  shards_weight(const Shards *z, Span span);
/* returns the summed gradients of a span (part of a parameter), after shards_finish */
Tensor  shards_grad(const Shards *z, Span span);
/* Returns whether this rank counts the span (part of a parameter) in sums over the ranks, in which each span counts
 * once. In ZeRO stage 0 a rank also updates spans that other ranks count. */
int     shards_is_own(const Shards *z, Span span);
/* returns whether all ranks hold the same masters and moments */
int     shards_state_is_shared(const Shards *z);
/* Add the hash of some memory of this rank to hash, [1] i64 out(+=).
 *   shards_hash_weights: weights that all ranks hold; in ZeRO stage 3 without the blocks
 *   shards_hash_whole: rows of these weights that tensor ranks do not divide
 *   shards_hash_pieces: in ZeRO stage 3 this rank's pieces (ZeRO shards) of the blocks' weights
 *   shards_hash_grads: summed gradients that this rank updates with */
void    shards_hash_weights(const Shards *z, Stream *s, Tensor hash);
void    shards_hash_whole(const Shards *z, Stream *s, Tensor hash);
void    shards_hash_pieces(const Shards *z, Stream *s, Tensor hash);
void    shards_hash_grads(const Shards *z, Stream *s, Tensor hash);

#endif
