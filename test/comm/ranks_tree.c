/* ranks_tree.c - sums of micro-batches in the order of a tree, on any number of ranks. The bits equal those of a plain
 * recursive definition, on the CPU and in GPU memory, by messages and by NCCL. */
#include <math.h>

#include "core/rng.h"
#include "test/comm/ranks.h"

#include "comm/comm.h"

/* PIECES: numbers of floats in the part of a bucket that each rank keeps: the smallest, around a chunk of 32768,
 * several chunks. LEAVES: numbers of micro-batches of each rank. */
static const int64_t PIECES[] = {64, 32768 - 64, 32768, 32768 + 64, 3 * 32768 + 192};
static const int64_t LEAVES[] = {1, 2, 3, 5, 7};
enum { LENGTHS = sizeof PIECES / sizeof *PIECES, TREES = sizeof LEAVES / sizeof *LEAVES };

static float value(int64_t leaf, int64_t i) {
    return (float)((rng_uniform((uint64_t)leaf, RNG_TEST, (uint64_t)i) - 0.5) * (leaf % 3 ? 1.0 : 1e3));
}

static float sum_by_definition(int64_t first, int64_t width, int64_t leaves, int64_t i) {
    if (width == 1) return value(first, i);
    float left = sum_by_definition(first, width / 2, leaves, i);
    return first + width / 2 < leaves ? left + sum_by_definition(first + width / 2, width / 2, leaves, i) : left;
}

/* A bucket of n elements, to be summed and compared with the definition. `node` holds this rank's partial sums, the
 * nodes of the tree. */
typedef struct { Tensor node[TREE_MOST]; int count; int64_t n, leaves; } Sum;

static Sum begin_sum(int64_t n, int64_t leaves) {
    Sum       s = {.n = n, .leaves = leaves};
    TreeNodes nodes = tree_of_rank(leaves, comm_size(world), comm_rank(world));
    s.count = nodes.count;
    for (int k = 0; k < nodes.count; k++) {
        s.node[k] = tensor_1d(floats(n), F32, n);
        for (int64_t i = 0; i < n; i++)
            ((float *)s.node[k].data)[i] = sum_by_definition(nodes.node[k].first, nodes.node[k].leaves, leaves, i);
    }
    comm_tree_sum_start(world, s.node[s.count - 1], s.node, s.count - 1);
    return s;
}

static int64_t end_sum(Sum *s) {
    int64_t q = s->n / comm_size(world), wrong = 0, width = 1;
    while (width < s->leaves) width *= 2;
    device_sync(&stream);
    for (int64_t i = comm_rank(world) * q; i < (comm_rank(world) + 1) * q; i++)
        wrong += ((float *)s->node[s->count - 1].data)[i] != sum_by_definition(0, width, s->leaves, i);
    for (int k = 0; k < s->count; k++) give_back(s->node[k].data);
    return wrong;
}

static int last_kind(void) { return comm_owns_device(world, device_id()) ? COMM_NCCL : COMM_MPI; }

static void the_bits_of_the_definition(void **state) {
    (void)state;
    /* one rank sends nothing; model/shards.c adds its partial sums, not comm/ */
    if (comm_size(world) == 1) return;
    for (int kind = COMM_RING; kind <= last_kind(); kind++) {
        comm_set_exchanges(world);
        comm_set_kind(world, (CommKind)kind);
        for (int t = 0; t < TREES; t++) {
            int64_t leaves = LEAVES[t] * comm_size(world);
            comm_tree_open(world, leaves);
            for (int l = 0; l < (emulated() ? 3 : LENGTHS); l++) {
                Sum s = begin_sum(PIECES[l] * comm_size(world), leaves);
                comm_finish(world);
                EXPECT_ON_ALL(end_sum(&s) == 0);
            }
        }
    }
    comm_set_kind(world, COMM_RING);
}

/* Several sums are in flight, with gathers between them, while ranks poll at different times. */
static void several_in_flight(void **state) {
    (void)state;
    int W = comm_size(world), r = comm_rank(world);
    if (W == 1) return;
    for (int kind = COMM_RING; kind <= last_kind(); kind++) {
        comm_set_exchanges(world);
        comm_set_kind(world, (CommKind)kind);
        int64_t leaves = 3 * W;
        comm_tree_open(world, leaves);
        Sum     s[4];
        float  *gathered = floats(64 * W);
        Tensor  gather = tensor_1d(gathered, F32, 64 * W);
        int64_t wrong = 0;
        for (int i = 0; i < 64 * W; i++) gathered[i] = i / 64 == r ? (float)i : NAN;
        for (int k = 0; k < 4; k++) {
            s[k] = begin_sum(PIECES[(k + 1) % (emulated() ? 3 : LENGTHS)] * W, leaves);
            if (k == 1) comm_all_gather_start(world, gather);
            for (int polls = (r * 3 + k) % 5; polls > 0; polls--) comm_poll(world);
        }
        comm_finish(world);
        for (int k = 0; k < 4; k++) wrong += end_sum(&s[k]);
        for (int i = 0; i < 64 * W; i++) wrong += gathered[i] != (float)i;
        EXPECT_ON_ALL(wrong == 0);
        give_back(gathered);
    }
    comm_set_kind(world, COMM_RING);
}

static void buffers_are_planned(void **state) {
    (void)state;
    EXPECT_ON_ALL(comm_tree_bytes(COMM_RING, 1, 8) == 0 && comm_tree_bytes(COMM_NCCL, 1, 8) == 0);
    EXPECT_ON_ALL(comm_tree_bytes(COMM_RING, 4, 8) == comm_tree_bytes(COMM_MPI, 2, 4) * 2);
}

int main(void) {
    const struct CMUnitTest ranks_tree[] = {cmocka_unit_test(the_bits_of_the_definition), cmocka_unit_test(several_in_flight),
                                            cmocka_unit_test(buffers_are_planned)};
    return RUN_ON_RANKS(ranks_tree);
}
