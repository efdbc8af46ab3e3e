/* optimizer.h - the optimizer's memory for the weights that this rank updates (model/shards.h), and the kinds of
 * optimizers. This memory has masters, the fp32 copies of the weights, and states, such as moments.
 *
 * The working copy is the weights that the model computes with. If it is fp32, it is the master, too. The states of a
 * kind of optimizer are a list. Memory, checkpoints, the plan and the estimate of disk space loop over it. */
#ifndef TRAIN_GPT_MODEL_OPTIMIZER_H
#define TRAIN_GPT_MODEL_OPTIMIZER_H

#include "layers/layers.h"
#include "model/matrices.h"

/* ADAMW_STATES: number of AdamW's states, m and v. Islands (jobs that train one model together over a server) exchange
 * these states with their server. */
enum { ADAMW_STATES = 2, OPTIMIZER_MOST_STATES = 4 };
typedef struct Optimizer Optimizer;

/* --- kinds -------------------------------------------------------------------------------------------------------- */

/* A state of an optimizer: a number for each element that this rank updates, such as AdamW's m. */
typedef struct {
    const char *name;                    /* name of the state in optimizer.safetensors: "m", "v"; "momentum", "v" */
    /* point at which a test flips a bit of the state (core/injection.h): "guard.m" */
    const char *flip;
    int         no_matrices;             /* 1: the state is not kept for matrices; in files it is zero for these */
} OptimizerState;

/* Settings that only some kinds of optimizer read, equal in all steps. OptimizerStep (layers.h) has those that differ
 * between steps. */
typedef struct { double momentum; NewtonKind newton; } OptimizerSettings;

/* A kind of optimizer. Rules of the config follow from its fields: what the kind cannot do is refused. In its functions
 * grad_scale multiplies the gradients, for clipping and the loss scale. */
typedef struct OptimizerKind OptimizerKind;
struct OptimizerKind {
    const char *name;                    /* name of the kind of optimizer in optimizer.name: "adamw", "muon" */
    int         states;
    OptimizerState state[OPTIMIZER_MOST_STATES];
    OptimizerSettings settings;          /* default settings of this kind of optimizer */
    /* Updates spans (parts of parameters), each element on its own (layers.h): all weights of this rank, or those that
     * update_matrices leaves. NULL: this kind of optimizer updates nothing. */
    void      (*update)(Stream *s, const OptimizerSpan *span, int spans, OptimizerStep h, float grad_scale);
    /* Updates a span (part of a parameter) in host memory as `update` does on the device. NULL: this kind of optimizer
     * cannot be used with memory.offload = "optimizer". */
    void      (*update_on_host)(OptimizerSpan span, OptimizerStep h, float grad_scale);
    /* Updates the matrices of blocks. Each is gathered whole on one rank of the group ShardsSpec.matrices. NULL:
     * `update` updates matrices, too. */
    void      (*update_matrices)(Optimizer *o, Stream *s, OptimizerStep h, float grad_scale);
    /* 1: a server that trains with several jobs can update the weights by this kind of optimizer (outer.send =
     * "gradients") */
    int         server_can_update;
    /* kind of optimizer that replaces this one if optimizer.normuon = true; NULL: none */
    const OptimizerKind *normuon;
};
extern const OptimizerKind OPTIMIZER_ADAMW;
/* Kind of optimizer for a job whose weights a server updates (outer.send=gradients). It keeps no states and updates
 * nothing. Its checkpoints have the same files as AdamW's. */
extern const OptimizerKind OPTIMIZER_IDLE;
/* Muon for the matrices of blocks, AdamW for all other parameters. `momentum` is Muon's momentum and AdamW's m. With
 * Muon matrices have no v. With NorMuon each element of v is the second moment of the element's neuron. */
extern const OptimizerKind OPTIMIZER_MUON, OPTIMIZER_NORMUON;
/* Returns the kind of optimizer for the values of optimizer.name and optimizer.normuon, NULL if there is none. name may
 * be NULL. */
const OptimizerKind *optimizer_kind(const char *name, int is_normuon);

/* --- an optimizer ------------------------------------------------------------------------------------------------- */

struct Optimizer {
    const OptimizerKind *kind;
    OptimizerSettings settings;
    /* number of states in memory: those of the kind of optimizer, or 0 if it updates nothing */
    int        states;
    /* owned: assignments of whole matrices to the ranks that update them; used if kind->update_matrices */
    Matrices   matrices, expert_matrices;
    Shards    *shards;                   /* borrowed: parameters and gradients of this rank */
    Tensor     state[OPTIMIZER_MOST_STATES]; /* the states, such as moments: [shards_state_elems] f32 each; those with
                                              * no_matrices have shards_matrix_elems fewer */
    /* owned [spans + 1]: number of matrix elements before each span (part of a parameter), which states with
     * no_matrices omit */
    int64_t   *left_out;
    /* [shards_state_elems] f32: the masters; data NULL if the working copy is F32, because it is then the master,
     * too */
    Tensor     master;
    OptimizerSpan *spans;                /* owned [spans]: arguments of `update`, one for each part of a parameter */
    /* owned [spans]: list of the gradients of this rank, to compute their norm */
    Tensor    *own_grad;
    int        on_host;                  /* 1: master and states are in host memory and updated there   */
    /* if on_host: buffers for gradients (f32), and for weights in the working copy's type */
    Tensor     grad_page[2], page[2];
    /* if on_host: events that are past when gradients have arrived in grad_page; created at the first update */
    Event      grads_in[2];
};

/* Place of masters and states. MEMORY_HOST: `arena` is pinned host memory, and the host updates the weights. Gradients
 * are copied to it, and weights are copied back, in pages of limited size. While one page is updated, the next is
 * copied. */
typedef enum { MEMORY_DEVICE, MEMORY_HOST } OptimizerMemory;
Optimizer optimizer_create(const OptimizerKind *kind, Shards *shards, OptimizerMemory memory, Arena *arena);
void      optimizer_destroy(Optimizer *o);

/* Return the fp32 numbers of a span (part of a parameter), for checkpoints. optimizer_master returns its masters.
 * optimizer_tensor returns masters if `which` is 0, or state number k if it is 1 + k. Its data is NULL if the state is
 * not kept for the span. */
Tensor optimizer_master(const Optimizer *o, Span span);
static inline int optimizer_tensors(const OptimizerKind *kind) { return 1 + kind->states; }
Tensor optimizer_tensor(const Optimizer *o, int which, Span span);
/* Copy between the host and a tensor that optimizer_master or optimizer_tensor returned, or a slice of it.
 * optimizer_put copies values from the host. optimizer_get_queued copies to the host; the copy may be queued
 * (device.h). For a state that is not kept, put does nothing and get gives zeros. */
void   optimizer_put(const Optimizer *o, Stream *s, Tensor part, const float *values);
void   optimizer_get_queued(const Optimizer *o, Stream *s, float *to, Tensor part);

/* Writes the working copy of this rank's weights from their masters. Call it after the first weights are set, and after
 * a resume. */
void optimizer_publish(Optimizer *o, Stream *s);
void optimizer_zero_states(const Optimizer *o, Stream *s);

/* Add hashes (hash_words) of memory that several ranks hold with equal bits to hash, [1] i64.
 * optimizer_hash_replicas: the working copy of the weights; also masters and states if all ranks hold them
 * (shards_state_is_shared). If ranks divide matrices or experts, only the rows of the working copy that are not
 * divided.
 * optimizer_hash_parts: for tensor ranks, the memory that is equal on ranks with the same slice of the divided rows. */
void optimizer_hash_replicas(const Optimizer *o, Stream *s, Tensor hash);
void optimizer_hash_parts(const Optimizer *o, Stream *s, Tensor hash);
/* Adds the hash of this rank's piece (ZeRO shard) of masters and states. Ranks with the same piece in other replicas of
 * the state hold equal bits. Does nothing for an optimizer in host memory. */
void optimizer_hash_pieces(const Optimizer *o, Stream *s, Tensor hash);

/* Adds to the step's sums the squares of the gradients that this rank counts (shards_is_own). Call it after
 * shards_finish. The flags in `hashes` also add hashes (model/shards.h): NUMBERS_REPLICAS adds HASH_REPLICAS,
 * NUMBERS_GRADS adds HASH_GRADS. */
enum { NUMBERS_REPLICAS = 1, NUMBERS_GRADS = 2 };
void optimizer_numbers(const Optimizer *o, Stream *s, int hashes);

void optimizer_update(Optimizer *o, Stream *s, OptimizerStep h, float grad_scale);

/* Gives experts equal shares of the tokens, by a bias that is added to the router's scores when experts are chosen.
 * After each step the bias falls by balance_rate for an expert with more than its share of the assignments. It rises by
 * balance_rate for one with less. Wang et al., arXiv:2408.15664. The bias is one of the parameters. Its gradient is
 * always zero, so the update does not change it. Call it after optimizer_update and before the weights are published.
 * counts [n_layer * E]: assignments of the step, summed over all ranks; NULL in a dry run, which only counts costs.
 * Does nothing in models without such a bias. */
void experts_balance(Optimizer *o, Stream *s, const int64_t *counts);

#endif
