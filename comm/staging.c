/* staging.c - stands in for staging.cu in the CPU build: collectives work on the bucket's own memory, and a stream is
 * always idle. */
#include "comm/internal.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

int  staging_in(Comm *c, OpKind kind, Tensor *x) { return -1; }
int  staging_is_in(World *w, int staged) { return 1; }
void staging_out(Comm *c, int staged, OpKind kind, Tensor bucket) {}
void staging_drop(World *w, int staged) {}
void staging_finish(World *w) {}
int  staging_stream_is_idle(World *w) { return 1; }
void staging_close(World *w) {}

size_t comm_staging_bytes(CommKind kind, int ranks, int64_t elems) { return 0; }
