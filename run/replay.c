/* replay.c - see replay.h. */
#include "run/replay.h"

static void micro_step(Gpt *g, Stream *s, Batch batch, float grad_scale, GptHooks hooks) {
    gpt_forward(g, s, batch);
    gpt_backward(g, s, batch, grad_scale, hooks);
}

void replay_micro_step(Replay *r, Gpt *g, Stream *s, Batch batch, float grad_scale, GptHooks hooks) {
    int first = r->seen++ == 0;
    if (first || hooks.bucket_ready || g->needs.bucket_needed) {
        micro_step(g, s, batch, grad_scale, hooks);
        return;
    }
    if (r->graph.handle && r->grad_scale != grad_scale) graph_destroy(&r->graph);
    if (!r->graph.handle) {
        int recording = graph_begin(s);
        micro_step(g, s, batch, grad_scale, hooks);
        if (!recording) return;
        r->graph = graph_end(s);
        r->grad_scale = grad_scale;
    }
    graph_launch(r->graph, s);
}

void replay_destroy(Replay *r) { graph_destroy(&r->graph); }
