/* checkpoint.h - step folders under run.dir/checkpoints: written whole or not at all, verified before use.
 *
 * step_00001000.tmp is filled by all ranks (each its own pieces, by global offset, so that any number of ranks reads them), fsynced,
 * state.json (the manifest with hashes taken from memory) last, renamed to step_00001000, parent fsynced. The newest that verifies counts.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_H
#define TRAIN_GPT_RUN_CHECKPOINT_H

#include "comm/comm.h"
#include "data/dataset.h"
#include "layers/gpt.h"
#include "layers/optimizer.h"
#include "run/config.h"
#include "run/precision.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int64_t step, tokens, samples; } Consumed;

/* What a checkpoint holds; all borrowed. */
typedef struct {
    const Config    *config;
    Comm            *comm;
    const Layout    *layout;
    Optimizer       *optimizer;
    GptShape         shape;
    const Dataset   *train;
    Stream          *stream;
    char             run_id[40];   /* made at the first start, kept by resumes */
    const char      *precision;    /* "fp32", "bf16", "tf32", "fp16"            */
    LossScale       *loss_scale;   /* resumed too: the same bits as a run that was never stopped */
    int              threads;
    Consumed         before;       /* what the run had consumed when this process took over; set by resume */
} CheckpointState;

typedef struct {
    int64_t step;                  /* completed optimizer steps; 0 = a new run                       */
    int     ranks;                 /* that saved it                                                  */
    char    name[64];              /* "step_00001000"                                                */
} Resumed;

/* Collective. Looks for the newest checkpoint that verifies (saying which it passes over and why), checks that config and data agree
 * (exit 64 naming each key with both values), reads masters and moments, publishes the working copy. Honours run.resume. */
Resumed checkpoint_resume(CheckpointState *state);

/* Collective. Writes step_%08d and prunes to checkpoint.keep. Exit 74 naming the path. Returns the milliseconds it took. */
double checkpoint_save(CheckpointState *state, int64_t step);

/* Newest verifying checkpoint folder of a run folder, or the folder itself if it is one: path into out [capacity]; 0 if none. */
int checkpoint_find(const char *run_or_checkpoint, char *out, size_t capacity);

/* Weights of a checkpoint folder or a .safetensors file in Hugging Face GPT-2 names, with or without "transformer.": fills params
 * (act type) by the layout. Exit 65 naming file, tensor, found and expected shape. */
void checkpoint_read_weights(const char *path, const Layout *layout, Tensor params, Stream *s);

/* The same into this rank's masters (model.init_from). */
void checkpoint_init_from(const char *path, CheckpointState *state);

#ifdef __cplusplus
}
#endif
#endif
