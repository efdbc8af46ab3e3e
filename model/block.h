/* block.h - a kind of block: tables of its parameters and activations, and three plain functions that compose ops of
 * layers.h.
 *
 * model/gpt.c runs the blocks of any kind. A new kind of model is a file like gpt2.c.
 */
#ifndef TRAIN_GPT_MODEL_BLOCK_H
#define TRAIN_GPT_MODEL_BLOCK_H

#include "core/arena.h"
#include "core/device.h"
#include "model/params.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { RECOMPUTE_NONE, RECOMPUTE_LIGHT, RECOMPUTE_BLOCK } Recompute;
typedef enum { GPT_INFERENCE, GPT_TRAINING } GptUse;

/* --- activations -------------------------------------------------------------------------------------------------- */

/* Shapes in symbols: N = B*T rows. */
typedef enum { ACT_N_C, ACT_N_QKV, ACT_N_FC, ACT_N, ACT_HEADS_T /* [B*H,T] */ } ActShape;
typedef enum { TYPE_ACT, TYPE_F32 } ActType; /* the run's own, or always f32 */
/* The time for which a block's tensor is kept:
 *   KEEP_STREAM     until its backward, in every mode of recompute
 *   KEEP_STATE      until then, unless whole blocks are computed again
 *   KEEP_CHEAP      until then, unless norms and GELU, or whole blocks, are computed again
 *   KEEP_BACKWARD   only while one block's backward runs
 * The blocks share the memory of rows that are not kept. */
typedef enum { KEEP_STREAM, KEEP_STATE, KEEP_CHEAP, KEEP_BACKWARD } Keep;

typedef struct {
    size_t   field;     /* offset of its Tensor in the kind's struct                            */
    ActShape shape;
    ActType  type;
    Keep     keep;
    size_t   alias;     /* in inference the memory of the Tensor at this offset; NO_ALIAS: own  */
} ActRow;
#define NO_ALIAS ((size_t)-1)

/* --- the arguments of a block's functions ------------------------------------------------------------------------- */

/* Of the micro-batch: B sequences of T tokens, N = B*T rows of every activation. */
typedef struct { int64_t B, T, N; } Extent;

typedef struct {
    Stream    *s;
    ModelShape shape;
    Recompute  recompute;
    Extent     e;
    /* The residual stream before the block, in two parts: `update`, the last branch's output, joins `mid` in the
     * block's first norm. mid.data is NULL before the first block: its entry holds the stream already. forward leaves
     * its last branch's output in update. */
    Tensor mid, update;        /* [N,C] act */
    Tensor dresidual, dbranch; /* [N,C] act: backward's gradient of the stream, in and out; a branch's */
} BlockRun;

typedef struct {
    const char *name;                      /* "gpt2" */
    const char *prefix;                    /* of names in files: "transformer." */
    ParamTable  embedding, block, final;
    const ActRow *act;
    int         acts;
    size_t      act_bytes;                 /* of the struct of Tensors */
    size_t      entry, mid;                /* offsets in it: the stream entering the block; the one leaving it but for the last branch */
    /* acts, weights and grads are the kind's structs. */
    void (*forward)(BlockRun *r, void *acts, const void *weights);
    void (*recompute)(BlockRun *r, void *acts, const void *weights); /* of rows that are not kept */
    void (*backward)(BlockRun *r, void *acts, const void *weights, const void *grads);
} BlockKind;

extern const BlockKind BLOCK_GPT2;

/* The kind of a model of this shape: there is one so far. */
const BlockKind *block_kind(ModelShape shape);

/* The structs of all blocks, n_layer * act_bytes, with their memory out of the arena; free() it. */
void *block_acts_create(const BlockKind *kind, ModelShape shape, DType act, int64_t B, int64_t T, Recompute recompute, GptUse use, Arena *arena);
/* Block l's of a micro-batch, which may be smaller than the memory, into out [act_bytes]. */
void block_acts_view(const BlockKind *kind, ModelShape shape, const void *acts, int64_t l, Extent e, void *out);

#ifdef __cplusplus
}
#endif
#endif
