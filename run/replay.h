/* replay.h - forward and backward of a micro-batch, on a GPU recorded once and then launched as one graph.
 *
 * A micro-step is some three hundred kernels; at small batches the host cannot queue them as fast as the GPU runs them. Shapes and
 * addresses are the same in every one, so the second is recorded and the rest replay it. Collectives stay outside: a micro-step that
 * starts any (hooks.bucket_ready, with more than one rank), or waits for weights (Gpt.needs), is queued plainly. The CPU records nothing.
 */
#ifndef TRAIN_GPT_RUN_REPLAY_H
#define TRAIN_GPT_RUN_REPLAY_H

#include "layers/gpt.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Graph graph;
    float grad_scale; /* what the recorded one multiplies by: another (fp16's loss scale has changed) is recorded anew */
    int   seen;       /* micro-steps so far: the first fills the products' algorithm table, which is no work to record */
} Replay;

/* gpt_forward and gpt_backward of the batch, whose memory must be the same every time. */
void replay_micro_step(Replay *r, Gpt *g, Stream *s, Batch batch, float grad_scale, GptHooks hooks);
void replay_destroy(Replay *r);

#ifdef __cplusplus
}
#endif
#endif
