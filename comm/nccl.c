/* nccl.c - stands in for nccl.cu in a build without NCCL, such as that for the CPU. nccl_open() reports that NCCL is
 * missing; no other function of this file has an effect. */
#include "comm/internal.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

int  comm_library_blocks(CommKind kind, CommUse use) { return 0; }
void nccl_open(Comm *c) {
    fail(EXIT_NODEVICE, "this build has no NCCL: parallel.comm may be \"ring\" or \"mpi\"; "
#ifdef NO_NCCL
         "for \"nccl\" install libnccl-dev, then make BACKEND=cuda");
#else
         "make BACKEND=cuda builds one that has");
#endif
}
const char *world_nccl(void) { return "none"; }
void nccl_close(Comm *c) {}
void nccl_tree_open(Comm *c) {}
void nccl_leave(World *w) {}
void nccl_start(Comm *c, OpKind kind, Tensor x, const Tensor *nodes) {}
void nccl_exchange(Comm *c, const CommMessage *message, int count) {}
void nccl_join(Comm *c, GatherOrder order) {}
void nccl_join_end(Comm *c) {}
void nccl_poll(Comm *c) {}
void nccl_wait(Comm *c, int64_t number) {}
void world_abandon(World *w, double wait_ms) {}
void nccl_read_times(Comm *c) {}
