/* optimizer.h - masters and states of the spans that this rank updates (model/shards.h), by a kind of optimizer.
 *
 * The fp32 master is the parameter itself where the working copy is fp32. A kind's states are rows: memory,
 * checkpoints, plan and room on the disk loop over them.
 */
#ifndef TRAIN_GPT_MODEL_OPTIMIZER_H
#define TRAIN_GPT_MODEL_OPTIMIZER_H

#include "layers/layers.h"
#include "model/matrices.h"

enum { OPTIMIZER_STATES = 2 };
typedef struct Optimizer Optimizer;

typedef struct {
    const char *name;                    /* optimizer.name: "adamw", "muon"                             */
    int         states;
    const char *state[OPTIMIZER_STATES]; /* as in optimizer.safetensors: "m", "v"; "momentum", "v"      */
    int         no_matrices[OPTIMIZER_STATES]; /* of matrices this state is not kept; in files it is zero    */
    int         has_matrices;            /* it needs them whole: the shards have a group for that       */
    int         is_normuon;              /* "muon" with optimizer.normuon                               */
    int         is_idle;                 /* no state is kept of anything                                */
    /* One step over all spans; grad_scale multiplies the gradient (clipping, loss scale). */
    void      (*update)(Optimizer *o, Stream *s, AdamW h, float grad_scale);
} OptimizerKind;
extern const OptimizerKind OPTIMIZER_ADAMW;
/* Of weights that another updates (outer.send=gradients): AdamW's files, without its states and its update. */
extern const OptimizerKind OPTIMIZER_IDLE;
/* Muon for the matrices of blocks: momentum is theirs, and they have no v; NorMuon's v has in each element the second
 * moment of its neuron. AdamW for all else: momentum is its m. An optimizer in host memory is refused by the config's rules. */
extern const OptimizerKind OPTIMIZER_MUON, OPTIMIZER_NORMUON;
const OptimizerKind *optimizer_kind(const char *name, int is_normuon); /* of optimizer.name; NULL: there is none */

typedef struct { double momentum; NewtonKind newton; } MuonSettings;
#define MUON_DEFAULTS ((MuonSettings){0.95, NEWTON_QUINTIC})

struct Optimizer {
    const OptimizerKind *kind;
    MuonSettings muon;
    Matrices   matrices, expert_matrices; /* owned, of a kind that has_matrices                         */
    Shards    *shards;                   /* borrowed                                                    */
    Tensor     state[OPTIMIZER_STATES];  /* [shards_state_elems] f32; less shards_matrix_elems where matrices have none */
    int64_t   *left_out;                 /* owned [spans + 1]: of matrices before each span, elements that no_matrices saves */
    Tensor     master;                   /* the same; data NULL when the working copy is F32            */
    AdamWSpan *spans;                    /* owned [spans]: as the op takes them                         */
    Tensor    *own_grad;                 /* owned [spans]: room for the gradients whose norm is taken   */
    int        on_host;                  /* master and states are in host memory, and updated there     */
    Tensor     grad_page[2], page[2];    /* on_host: gradients, and weights of type act, on their way   */
    Event      grads_in[2];              /* made at the first update                                    */
};

/* MEMORY_HOST: `arena` is pinned host memory. Gradients come to it and weights go back in pages by turns, while the one
 * before is updated. */
typedef enum { MEMORY_DEVICE, MEMORY_HOST } OptimizerMemory;
Optimizer optimizer_create(const OptimizerKind *kind, Shards *shards, OptimizerMemory memory, Arena *arena);
void      optimizer_destroy(Optimizer *o);

/* fp32 views of one span, for checkpoints. Tensor 0 is the master, 1 + k is state k. */
Tensor optimizer_master(const Optimizer *o, Span span);
Tensor optimizer_state(const Optimizer *o, int k, Span span); /* data NULL: it is not kept                  */
static inline int optimizer_tensors(const OptimizerKind *kind) { return 1 + kind->states; }
Tensor optimizer_tensor(const Optimizer *o, int which, Span span);
/* Copies host values into a part of such a view, and a view to host memory; the second may be queued (device.h). What is not
 * kept takes nothing and gives zeros. */
void   optimizer_put(const Optimizer *o, Stream *s, Tensor part, const float *values);
void   optimizer_get_queued(const Optimizer *o, Stream *s, float *to, Tensor part);

/* Writes the working copy of every span from its master (after init or resume). */
void optimizer_publish(Optimizer *o, Stream *s);
void optimizer_zero_states(const Optimizer *o, Stream *s);

/* Adds the hash (hash_words) of all memory that every rank holds alike: the working copy and, where
 * shards_state_is_shared, masters and states. hash: [1] i64, out(+=). With tensor ranks: of the working copy's rows that
 * none of them cuts; what ranks with the same part hold alike is in optimizer_hash_parts. */
void optimizer_hash_replicas(const Optimizer *o, Stream *s, Tensor hash);
void optimizer_hash_parts(const Optimizer *o, Stream *s, Tensor hash);
/* The same of what ranks with the same piece of other copies of the state hold alike: masters and states. Nothing of an
 * optimizer in host memory. */
void optimizer_hash_pieces(const Optimizer *o, Stream *s, Tensor hash);

/* After shards_finish: adds to the step's sums the squares of the gradients this rank answers for and, where asked,
 * HASH_REPLICAS and HASH_GRADS. */
enum { NUMBERS_REPLICAS = 1, NUMBERS_GRADS = 2 };
void optimizer_numbers(const Optimizer *o, Stream *s, int hashes);

void optimizer_update(Optimizer *o, Stream *s, AdamW h, float grad_scale);

/* For kinds of optimizers: AdamW of all spans, or of all but matrices; and muon.c's step. */
typedef enum { ADAMW_ALL, ADAMW_BUT_MATRICES } AdamWOf;
void optimizer_adamw_on_device(Optimizer *o, Stream *s, AdamW h, float grad_scale, AdamWOf of);
void muon_step(Optimizer *o, Stream *s, AdamW h, float grad_scale);

#endif
