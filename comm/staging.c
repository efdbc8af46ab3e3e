/* staging.c - the CPU build: collectives work on the bucket's own memory, and a stream is always idle. */
#include "comm/internal.h"

int  staging_in(Comm *c, OpKind kind, Tensor *x) { return (void)c, (void)kind, (void)x, -1; }
int  staging_is_in(World *w, int staged) { return (void)w, (void)staged, 1; }
void staging_out(Comm *c, int staged, OpKind kind, Tensor bucket) { (void)c, (void)staged, (void)kind, (void)bucket; }
void staging_drop(World *w, int staged) { (void)w, (void)staged; }
void staging_finish(World *w) { (void)w; }
int  staging_stream_is_idle(World *w) { return (void)w, 1; }
void staging_close(World *w) { (void)w; }

size_t comm_staging_bytes(CommKind kind, int ranks, int64_t elems) { return (void)kind, (void)ranks, (void)elems, 0; }
