/* optimizer.h - the optimizer's memory for the weights that this rank updates (model/shards.h): masters, the fp32
 * copies of the weights, and states, such as moments. Also the kinds of optimizers.
 *
 * If the working copy, the weights that the model computes with, is fp32, the master is the working copy itself. The
 * states of a kind are a list. Memory, checkpoints, the plan and the estimate of disk space loop over it.
 */
#ifndef TRAIN_GPT_MODEL_OPTIMIZER_H
#define TRAIN_GPT_MODEL_OPTIMIZER_H

#include "layers/layers.h"
#include "model/matrices.h"

/* ADAMW_STATES: number of AdamW's states, m and v. Islands (jobs that train one model together) exchange these states
 * with their server. */
enum { ADAMW_STATES = 2, OPTIMIZER_MOST_STATES = 4 };
typedef struct Optimizer Optimizer;

/* --- kinds -------------------------------------------------------------------------------------------------------- */

/* A state of an optimizer: a number for each element that this rank updates, such as AdamW's m. */
typedef struct {
    const char *name;                    /* name of the state in optimizer.safetensors: "m", "v"; "momentum", "v" */
    /* fault point where a test flips a bit of the state (core/injection.h): "guard.m" */
    const char *flip;
    int         no_matrices;             /* 1: the state is not kept for matrices; in files it is zero for them */
} OptimizerState;

/* Settings that only some kinds of optimizer read, the same in all steps. Settings of a single step are in
 * OptimizerStep (layers.h). */
typedef struct { double momentum; NewtonKind newton; } OptimizerSettings;

/* A kind of optimizer. Rules of the config follow from its fields: what the kind cannot do is refused. grad_scale
 * multiplies the gradients (clipping, loss scale). */
typedef struct OptimizerKind OptimizerKind;
struct OptimizerKind {
    const char *name;                    /* name of the kind of optimizer in optimizer.name: "adamw", "muon" */
    int         states;
    OptimizerState state[OPTIMIZER_MOST_STATES];
    OptimizerSettings settings;          /* default settings of this kind of optimizer */
    /* Updates spans (parts of parameters), each element on its own (layers.h): all weights of this rank, or those that
     * update_matrices leaves. NULL: this kind of optimizer updates nothing. */
    void      (*update)(Stream *s, const OptimizerSpan *span, int spans, OptimizerStep h, float grad_scale);
    /* Updates a part of a parameter in host memory as `update` does. NULL: this kind of optimizer cannot be used with
     * memory.offload = "optimizer". */
    void      (*update_on_host)(OptimizerSpan span, OptimizerStep h, float grad_scale);
    /* Updates the matrices of blocks, which are gathered whole over the group ShardsSpec.matrices. NULL: `update`
     * updates matrices, too. */
    void      (*update_matrices)(Optimizer *o, Stream *s, OptimizerStep h, float grad_scale);
    int         server_can_update;       /* 1: a server of islands can update the weights (outer.send = "gradients") */
    /* the kind of optimizer with optimizer.normuon = true; NULL: this kind has no such form */
    const OptimizerKind *normuon;
};
extern const OptimizerKind OPTIMIZER_ADAMW;
/* The kind of optimizer for a job whose weights a server updates (outer.send=gradients). It keeps no states and updates
 * nothing; its checkpoints have the same files as AdamW's. */
extern const OptimizerKind OPTIMIZER_IDLE;
/* Muon for the matrices of blocks, AdamW for all other parameters. `momentum` is Muon's momentum and AdamW's m. With
 * Muon matrices have no v. With NorMuon each element of v is the second moment of the element's neuron. */
extern const OptimizerKind OPTIMIZER_MUON, OPTIMIZER_NORMUON;
/* Returns the kind of optimizer by optimizer.name and optimizer.normuon, NULL if there is none. name may be NULL. */
const OptimizerKind *optimizer_kind(const char *name, int is_normuon);

/* --- an optimizer ------------------------------------------------------------------------------------------------- */

struct Optimizer {
    const OptimizerKind *kind;
    OptimizerSettings settings;
    /* number of states in memory: those of the kind of optimizer, or 0 if it updates nothing */
    int        states;
    /* owned: which rank updates which whole matrix; used if kind->update_matrices */
    Matrices   matrices, expert_matrices;
    Shards    *shards;                   /* borrowed                                                    */
    Tensor     state[OPTIMIZER_MOST_STATES]; /* [shards_state_elems] f32; fewer by shards_matrix_elems if no_matrices */
    /* owned [spans + 1]: number of matrix elements before each span (part of a parameter); states with no_matrices omit
     * them */
    int64_t   *left_out;
    Tensor     master;                   /* [shards_state_elems] f32; data NULL if the working copy is F32 */
    OptimizerSpan *spans;                /* owned [spans]: arguments of `update`, one for each part of a parameter */
    /* owned [spans]: the gradients of each part of a parameter, whose norm is computed */
    Tensor    *own_grad;
    int        on_host;                  /* 1: master and states are in host memory and updated there   */
    /* if on_host: buffers for gradients (f32), and for weights in the working copy's type */
    Tensor     grad_page[2], page[2];
    /* if on_host: events when gradients have arrived in grad_page; created at the first update */
    Event      grads_in[2];
};

/* Where the masters and states are. MEMORY_HOST: `arena` is pinned host memory, and the host updates the weights.
 * Gradients are copied to it and weights are copied back in pages. While one page is updated, the next is copied. */
typedef enum { MEMORY_DEVICE, MEMORY_HOST } OptimizerMemory;
Optimizer optimizer_create(const OptimizerKind *kind, Shards *shards, OptimizerMemory memory, Arena *arena);
void      optimizer_destroy(Optimizer *o);

/* Return fp32 views of one span (part of a parameter), for checkpoints. optimizer_tensor: 0 is the master, 1 + k is
 * state k, whose data is NULL if the state is not kept for the span. */
Tensor optimizer_master(const Optimizer *o, Span span);
static inline int optimizer_tensors(const OptimizerKind *kind) { return 1 + kind->states; }
Tensor optimizer_tensor(const Optimizer *o, int which, Span span);
/* optimizer_put copies host values into a slice of a view that optimizer_master or optimizer_tensor returned.
 * optimizer_get_queued copies a view to host memory; the copy may be queued (device.h). For a state that is not kept,
 * put does nothing and get gives zeros. */
void   optimizer_put(const Optimizer *o, Stream *s, Tensor part, const float *values);
void   optimizer_get_queued(const Optimizer *o, Stream *s, float *to, Tensor part);

/* Writes the working copy of all weights of this rank from their masters. Call it after the first weights are set, and
 * after a resume. */
void optimizer_publish(Optimizer *o, Stream *s);
void optimizer_zero_states(const Optimizer *o, Stream *s);

/* Add hashes (hash_words) of memory that several ranks hold with equal bits to hash, [1] i64.
 * optimizer_hash_replicas: the working copy of the weights, and masters and states if all ranks hold them
 * (shards_state_is_shared). If ranks divide matrices or experts, only the rows of the working copy that are not
 * divided.
 * optimizer_hash_parts: for tensor ranks, the memory that is equal on ranks with the same slice of the divided rows. */
void optimizer_hash_replicas(const Optimizer *o, Stream *s, Tensor hash);
void optimizer_hash_parts(const Optimizer *o, Stream *s, Tensor hash);
/* Adds the hash of this rank's piece of masters and states. The ranks with the same piece in other replicas of the
 * state hold equal bits. Does nothing for an optimizer in host memory. */
void optimizer_hash_pieces(const Optimizer *o, Stream *s, Tensor hash);

/* After shards_finish: adds to the step's sums the squares of the gradients that this rank counts (shards_is_own). The
 * flags in `hashes` also add hashes (model/shards.h): NUMBERS_REPLICAS adds HASH_REPLICAS, NUMBERS_GRADS adds
 * HASH_GRADS. */
enum { NUMBERS_REPLICAS = 1, NUMBERS_GRADS = 2 };
void optimizer_numbers(const Optimizer *o, Stream *s, int hashes);

void optimizer_update(Optimizer *o, Stream *s, OptimizerStep h, float grad_scale);

/* Gives experts equal shares of the tokens, by a bias that is added when experts are chosen. After each step the bias
 * falls by balance_rate for an expert with more than its share of the step's assignments, and rises by balance_rate for
 * one with less. Wang et al., arXiv:2408.15664. The bias is a row of the parameters; its gradient is always zero, so
 * the update does not change it. Call it after optimizer_update and before the weights are published.
 * counts [n_layer * E]: assignments of the step, summed over all ranks; NULL in a dry run. Does nothing in models
 * without such a bias. */
void experts_balance(Optimizer *o, Stream *s, const int64_t *counts);

#endif
