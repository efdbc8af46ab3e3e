/* ranks_ring.c - the collectives over buckets, on any number of ranks: exact sums, exact copies, equal bits when
 * repeated. On a GPU buckets are in its memory, and NCCL is tested if every rank has a GPU of its own. */
#include <math.h>

#include "comm/comm.h"
#include "core/layout.h"
#include "core/rng.h"
#include "test/comm/ranks.h"

/* Numbers of floats in the part of a bucket that each rank keeps: the smallest, odd multiples of 64, around the ring's
 * chunk of 65536, several chunks, and just over 262144. */
static const int64_t PIECES[] = {64, 192, 4032, 65472, 65536, 65600, 131072, 5 * 65536 + 192, 262144 + 64};
enum { LENGTHS = sizeof PIECES / sizeof *PIECES, IN_FLIGHT = 9 };
/* Returns the number of lengths to test. The emulator is slow and only affects the copies before and after the ring, so
 * only the CPU build has the longest pieces. */
static int lengths(void) { return emulated() ? LENGTHS - 3 : LENGTHS; }

/* Returns small integers, so that sums are exact in any order. */
static float value(int rank, int64_t i) { return (float)((i * 7 + rank * 31 + i / 61 * rank) % 201 - 100); }
static float sum_of(int ranks, int64_t i) {
    float sum = 0;
    for (int r = 0; r < ranks; r++) sum += value(r, i);
    return sum;
}
static void fill(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = value(comm_rank(world), i);
}
static int64_t wrong_sums(const float *x, int64_t from, int64_t to) {
    int64_t wrong = 0;
    device_sync(&stream);
    for (int64_t i = from; i < to; i++) wrong += x[i] != sum_of(comm_size(world), i);
    return wrong;
}

/* Returns the last CommKind to test: COMM_NCCL if NCCL is built in and every rank has a GPU of its own, otherwise
 * COMM_MPI. */
static int last_kind(void) { return comm_owns_device(world, device_id()) ? COMM_NCCL : COMM_MPI; }

static void sums_are_exact_with(CommKind kind) {
    comm_set_kind(world, kind);
    int W = comm_size(world), r = comm_rank(world);
    for (int l = 0; l < lengths(); l++) {
        int64_t q = PIECES[l];
        float  *x = floats(W * q);
        Tensor  t = tensor_1d(x, F32, W * q);

        fill(x, W * q);
        comm_reduce_scatter(world, t);
        EXPECT_ON_ALL(wrong_sums(x, r * q, (r + 1) * q) == 0);

        for (int64_t i = 0; i < W * q; i++) x[i] = i / q == r ? sum_of(W, i) : NAN;
        comm_all_gather(world, t);
        EXPECT_ON_ALL(wrong_sums(x, 0, W * q) == 0);

        fill(x, W * q);
        comm_all_reduce(world, t);
        EXPECT_ON_ALL(wrong_sums(x, 0, W * q) == 0);
        give_back(x);
    }
    comm_set_kind(world, COMM_RING);
}
static void sums_are_exact(void **state) {
    (void)state;
    sums_are_exact_with(COMM_RING);
}
static void mpi_agrees_exactly(void **state) {
    (void)state;
    sums_are_exact_with(COMM_MPI);
}
static void nccl_agrees_exactly(void **state) {
    (void)state;
    if (last_kind() < COMM_NCCL) skip();
    sums_are_exact_with(COMM_NCCL);
}

/* Reduces memory that the host cannot access. The stream fills it just before and reads it just after, so only the
 * order of the stream protects it. */
static void device_memory_alone(void **state) {
    (void)state;
    int     W = comm_size(world), r = comm_rank(world);
    int64_t q = 65536 + 192, n = W * q;
    size_t  bytes = (size_t)n * sizeof(float);
    Tensor  t = tensor_1d(device_alloc(bytes, "a bucket"), F32, n);
    float  *host = (float *)device_alloc_host(bytes, "a bucket");
    for (int kind = COMM_RING; kind <= last_kind(); kind++) {
        comm_set_kind(world, (CommKind)kind);
        for (int round = 0; round < 3; round++) {
            fill(host, n);
            device_from_host_queued(&stream, t, host);
            comm_reduce_scatter_start(world, t);
            comm_finish(world);
            device_to_host(&stream, host, t);
            EXPECT_ON_ALL(wrong_sums(host, r * q, (r + 1) * q) == 0);

            for (int64_t i = 0; i < n; i++) host[i] = i / q == r ? sum_of(W, i) : NAN;
            device_from_host_queued(&stream, t, host);
            comm_all_gather_start(world, t);
            comm_finish(world);
            device_to_host(&stream, host, t);
            EXPECT_ON_ALL(wrong_sums(host, 0, n) == 0);
        }
    }
    comm_set_kind(world, COMM_RING);
    device_free_host(host);
    device_free(t.data, bytes);
}

/* Sums a bucket of which each rank's part has 67 chunks, more than the ring posts sends in advance. */
static void long_piece(void **state) {
    (void)state;
    if (emulated()) skip();
    int     W = comm_size(world);
    int64_t q = 66 * 65536 + 64;
    float  *x = floats(W * q);
    fill(x, W * q);
    comm_all_reduce(world, tensor_1d(x, F32, W * q));
    EXPECT_ON_ALL(wrong_sums(x, 0, W * q) == 0);
    give_back(x);
}

/* Each rank p keeps piece p of a bucket. The sum of piece p is ((x[p+1] + x[p+2]) + ...) + x[p] in fp32, where x[r]
 * is the piece on rank r. The order depends only on the number of ranks W, so the bits are the same every time. */
static void order_of_additions_is_fixed(void **state) {
    (void)state;
    int     W = comm_size(world), r = comm_rank(world);
    int64_t q = 3 * 65536 + 64;
    float  *x = floats(W * q), *again = floats(W * q), *sum = floats(q), *next = floats(q);
    rng_normal(x, W * q, (uint64_t)r, 0, 0, 1);
    memcpy(again, x, (size_t)(W * q) * 4);
    comm_reduce_scatter(world, tensor_1d(x, F32, W * q));
    comm_reduce_scatter(world, tensor_1d(again, F32, W * q));
    device_sync(&stream);
    EXPECT_ON_ALL(memcmp(x + r * q, again + r * q, (size_t)q * 4) == 0);
    rng_normal(sum, q, (uint64_t)((r + 1) % W), (uint64_t)(r * q), 0, 1);
    for (int k = 2; k <= W; k++) {
        rng_normal(next, q, (uint64_t)((r + k) % W), (uint64_t)(r * q), 0, 1);
        for (int64_t i = 0; i < q; i++) sum[i] += next[i];
    }
    EXPECT_ON_ALL(memcmp(x + r * q, sum, (size_t)q * 4) == 0);
    give_back(x), give_back(again), give_back(sum), give_back(next);
}

/* Several reductions and gathers are in flight while ranks poll at different times. No collective receives a message of
 * another one. */
static void several_in_flight_with(CommKind kind) {
    comm_set_kind(world, kind);
    int    W = comm_size(world), r = comm_rank(world);
    float *x[IN_FLIGHT];
    for (int round = 0; round < (emulated() ? 1 : 5); round++) {
        for (int k = 0; k < IN_FLIGHT; k++) {
            int64_t q = PIECES[(k * 5 + round) % lengths()];
            Tensor  t = tensor_1d(x[k] = floats(W * q), F32, W * q);
            for (int64_t i = 0; i < W * q; i++)
                x[k][i] = k % 3 == 2 ? (i / q == r ? sum_of(W, i) : NAN) : value(r, i);
            if (k % 3 == 2) comm_all_gather_start(world, t);
            else            comm_reduce_scatter_start(world, t);
            for (int polls = (r * 3 + k + round) % 5; polls > 0; polls--) comm_poll(world);
        }
        comm_finish(world);
        int64_t wrong = 0;
        for (int k = 0; k < IN_FLIGHT; k++) {
            int64_t q = PIECES[(k * 5 + round) % lengths()];
            wrong += k % 3 == 2 ? wrong_sums(x[k], 0, W * q) : wrong_sums(x[k], r * q, (r + 1) * q);
            give_back(x[k]);
        }
        EXPECT_ON_ALL(wrong == 0);
    }
    comm_set_kind(world, COMM_RING);
}
static void several_in_flight(void **state) {
    (void)state;
    for (int kind = COMM_RING; kind <= last_kind(); kind++) several_in_flight_with((CommKind)kind);
}

/* The start of a collective posts its first message. Polling alone completes it. */
static void sends_are_posted_at_start(void **state) {
    (void)state;
    int       W = comm_size(world), r = comm_rank(world);
    int64_t   q = 4 * 65536;
    float    *x = floats(W * q), *y = floats(W * q);
    CommTrace before, trace[3];
    fill(x, W * q), fill(y, W * q);
    int known = world_trace(comm_world(world), &before, 1);
    comm_times(world);
    comm_reduce_scatter_start(world, tensor_1d(x, F32, W * q));
    comm_all_gather_start(world, tensor_1d(y, F32, W * q));
    comm_reduce_scatter_start(world, tensor_1d(x, F32, 0));
    int count = world_trace(comm_world(world), trace, 3);
    if (W == 1) assert_int_equal(count, 0);
    else {
        EXPECT_ON_ALL(count == 3 && trace[0].sequence == (known ? before.sequence + 1 : 0) &&
                      trace[2].sequence == trace[0].sequence + 2);
        /* not checked on a GPU, where the bytes are copied to the host before they are sent */
        for (int k = 0; k < 2 && (on_cpu() || emulated()); k++)
            EXPECT_ON_ALL(trace[k].start_ms > 0 && trace[k].first_send_ms >= trace[k].start_ms);
        do {
            comm_poll(world);
            world_trace(comm_world(world), trace, 3);
        } while (trace[0].end_ms == 0 || trace[1].end_ms == 0 || trace[2].end_ms == 0);
        CommTimes times = comm_times(world);
        EXPECT_ON_ALL(times.comm_ms > 0 && times.sends == 5 * (W - 1));
        EXPECT_ON_ALL(trace[2].first_send_ms == 0 && trace[0].end_ms >= trace[0].first_send_ms);
    }
    comm_finish(world);
    EXPECT_ON_ALL(wrong_sums(x, r * q, (r + 1) * q) == 0);
    give_back(x), give_back(y);
}

/* Sums a bucket of 65 elements, so short that the parts of the last ranks are only padding. The padding stays zero. */
static void padding_stays_zero(void **state) {
    (void)state;
    int    W = comm_size(world), r = comm_rank(world);
    Param  row = {.name = "short", .dims = 1, .dim = {65, 1}};
    Layout layout = layout_create(&row, 1, (LayoutPlace){W, 1, 0, NULL, 1, 0});
    Bucket b = layout.bucket[0];
    float *x = floats(b.elems);
    memset(x, 0, (size_t)b.elems * 4);
    for (int64_t i = 0; i < 65; i++) x[i] = value(r, i);
    comm_all_reduce(world, tensor_1d(x, F32, b.elems));
    int64_t wrong = wrong_sums(x, 0, 65);
    for (int64_t i = 65; i < b.elems; i++) wrong += x[i] != 0;
    EXPECT_ON_ALL(wrong == 0);
    EXPECT_ON_ALL(W < 3 || b.elems - 65 > b.piece_elems);
    layout_destroy(&layout);
    give_back(x);
}

static void gathers_any_type(void **state) {
    (void)state;
    int W = comm_size(world), r = comm_rank(world);
    for (int kind = COMM_RING; kind <= last_kind(); kind++) {
        comm_set_kind(world, (CommKind)kind);
        for (int l = 0; l < lengths(); l++) {
            int64_t   n = W * PIECES[l], wrong = 0;
            uint16_t *h = (uint16_t *)(void *)floats(n);
            for (int64_t i = 0; i < n; i++) h[i] = i / PIECES[l] == r ? (uint16_t)(i * 3 + l) : 0xffff;
            comm_all_gather(world, tensor_1d(h, BF16, n));
            device_sync(&stream);
            for (int64_t i = 0; i < n; i++) wrong += h[i] != (uint16_t)(i * 3 + l);
            EXPECT_ON_ALL(wrong == 0);
            give_back(h);
        }
    }
    comm_set_kind(world, COMM_RING);
}

static void times_add_up(void **state) {
    (void)state;
    int     W = comm_size(world);
    int64_t n = W * 65536 * 4;
    float  *x = floats(n);
    fill(x, n);
    comm_times(world);
    comm_all_reduce(world, tensor_1d(x, F32, n));
    CommTimes times = comm_times(world), after = comm_times(world);
    EXPECT_ON_ALL(W == 1 ? times.comm_ms == 0 : times.comm_ms > 0);
    EXPECT_ON_ALL(times.exposed_ms <= times.comm_ms + 0.1);
    EXPECT_ON_ALL(after.comm_ms == 0 && after.exposed_ms == 0 && after.sends == 0);
    comm_times(world);
    comm_all_reduce(world, tensor_1d(x, F32, n)), comm_barrier(world);
    comm_forget_times(world); /* forgets all times except that of NCCL's last bucket, which is only known later */
    times = comm_times(world);
    comm_barrier(world), comm_forget_times(world);
    after = comm_times(world);
    EXPECT_ON_ALL((times.comm_ms > 0) == (W > 1 && comm_kind(world) == COMM_NCCL) && after.comm_ms == 0 && after.exposed_ms == 0);
    EXPECT_ON_ALL((comm_buffer_bytes(COMM_RING, W) > 0) == (W > 1) && comm_buffer_bytes(COMM_MPI, W) == 0);
    EXPECT_ON_ALL(comm_staging_bytes(COMM_MPI, W, n) == (on_cpu() || W == 1 ? 0 : (size_t)n * 4));
    EXPECT_ON_ALL(comm_staging_bytes(COMM_NCCL, W, n) == 0);
    EXPECT_ON_ALL((comm_library_bytes(COMM_NCCL, W, COMM_FOR_BUCKETS) > 0) == (W > 1) && comm_library_bytes(COMM_RING, W, COMM_FOR_BUCKETS) == 0);
    EXPECT_ON_ALL((comm_library_bytes(COMM_NCCL, W, COMM_FOR_MESSAGES) > comm_library_bytes(COMM_NCCL, W, COMM_FOR_BUCKETS)) == (W > 1));
    give_back(x);
}

int main(void) {
    const struct CMUnitTest ranks_ring[] = {
        cmocka_unit_test(sums_are_exact),
        cmocka_unit_test(mpi_agrees_exactly),
        cmocka_unit_test(nccl_agrees_exactly),
        cmocka_unit_test(device_memory_alone),
        cmocka_unit_test(long_piece),
        cmocka_unit_test(order_of_additions_is_fixed),
        cmocka_unit_test(several_in_flight),
        cmocka_unit_test(sends_are_posted_at_start),
        cmocka_unit_test(padding_stays_zero),
        cmocka_unit_test(gathers_any_type),
        cmocka_unit_test(times_add_up),
    };
    return RUN_ON_RANKS(ranks_ring);
}
