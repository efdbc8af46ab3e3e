/* ranks_nccl.c - properties that only NCCL has: times read from events, order by the stream alone, gathers in
 * groups, and more collectives in flight than comm/ keeps times of. One rank is enough, so a machine with one GPU at
 * least proves that the library is there and accepts the calls. comm.h would skip collectives of one rank, so they
 * are started directly. */
#include "comm/internal.h"
#include "test/comm/ranks.h"

enum { PIECE = 4096 };

static int has_nccl(void) { return comm_owns_device(world, device_id()); }

static void start(OpKind kind, Tensor x) {
    if (comm_size(world) == 1) nccl_start(world, kind, x, NULL);
    else if (kind == OP_ALL_GATHER) comm_all_gather_start(world, x);
    else comm_reduce_scatter_start(world, x);
}

static void gathers(const Tensor *x, int count, GatherOrder order) {
    if (comm_size(world) > 1) {
        comm_all_gathers_start(world, x, count, order);
        return;
    }
    nccl_join(world, order);
    for (int i = 0; i < count; i++) nccl_start(world, OP_ALL_GATHER, x[i], NULL);
    nccl_join_end(world);
}

/* Rank r gives r + 1. The stream fills a bucket, sums it over the ranks, gathers the sums and reads them, while the
 * host does not wait in between. */
static void order_is_the_streams(void **state) {
    (void)state;
    if (!has_nccl()) skip();
    comm_set_kind(world, COMM_NCCL);
    int     W = comm_size(world), r = comm_rank(world);
    int64_t n = (int64_t)W * PIECE, wrong = 0;
    size_t  bytes = (size_t)n * sizeof(float);
    Tensor  t = tensor_1d(device_alloc(bytes, "a bucket"), F32, n);
    float  *host = (float *)device_alloc_host(bytes, "a bucket");
    for (int64_t i = 0; i < n; i++) host[i] = (float)(r + 1);
    /* 200 collectives in all; times are kept only of the latest ones, which are fewer */
    for (int round = 0; round < 100; round++) {
        device_zero(&stream, t);
        device_from_host_queued(&stream, t, host);
        start(OP_REDUCE_SCATTER, t);
        start(OP_ALL_GATHER, t);
        comm_finish(world);
        comm_poll(world);
    }
    device_to_host(&stream, host, t);
    for (int64_t i = 0; i < n; i++) wrong += host[i] != (float)(W * (W + 1)) / 2;
    EXPECT_ON_ALL(wrong == 0);
    device_free_host(host);
    device_free(t.data, bytes);
    comm_set_kind(world, COMM_RING);
}

static void times_come_from_the_gpu(void **state) {
    (void)state;
    if (!has_nccl()) skip();
    comm_set_kind(world, COMM_NCCL);
    int64_t   n = (int64_t)comm_size(world) * PIECE;
    size_t    bytes = (size_t)n * sizeof(float);
    Tensor    t = tensor_1d(device_alloc(bytes, "a bucket"), F32, n);
    CommTrace trace;
    device_sync(&stream);
    comm_times(world);
    start(OP_REDUCE_SCATTER, t);
    comm_finish(world);
    device_sync(&stream); /* waits for the collective, so that its end time can be read */
    CommTimes times = comm_times(world), after = comm_times(world);
    /* with one rank NCCL may queue nothing, so the time may be 0 */
    EXPECT_ON_ALL(times.comm_ms > 0 || comm_size(world) == 1);
    EXPECT_ON_ALL(times.comm_ms >= 0 && times.sends == 0 && times.exposed_ms >= 0);
    EXPECT_ON_ALL(after.comm_ms == 0 && after.exposed_ms == 0);
    if (comm_size(world) > 1)
        EXPECT_ON_ALL(world_trace(comm_world(world), &trace, 1) == 1 && trace.first_send_ms >= trace.start_ms &&
                      trace.end_ms > 0);
    device_free(t.data, bytes);
    comm_set_kind(world, COMM_RING);
}

/* Gathers buckets in two groups, the second after the first, while the stream has other work. The parts of all ranks
 * arrive, and the trace of each gather has its own number, time and end. */
static void gathers_in_groups(void **state) {
    (void)state;
    if (!has_nccl()) skip();
    enum { BUCKETS = 5, FIRST = 2 };
    comm_set_kind(world, COMM_NCCL);
    int     W = comm_size(world), r = comm_rank(world);
    int64_t n = (int64_t)W * PIECE, all = BUCKETS * n, wrong = 0;
    size_t  bytes = (size_t)all * sizeof(float);
    Tensor  t = tensor_1d(device_alloc(bytes, "buckets"), F32, all), bucket[BUCKETS];
    Tensor  other = tensor_1d(device_alloc(bytes, "other work"), F32, all);
    float  *host = (float *)device_alloc_host(bytes, "buckets");
    for (int64_t i = 0; i < all; i++) host[i] = i % n / PIECE == r ? (float)(10 * (i / n) + r + 1) : -1.0f;
    for (int b = 0; b < BUCKETS; b++) bucket[b] = tensor_slice(t, b * n, n);
    int64_t first = comm_next(world);
    /* 200 collectives in all; times are kept only of the latest ones, which are fewer */
    for (int round = 0; round < 40; round++) {
        device_from_host_queued(&stream, t, host);
        gathers(bucket, FIRST, GATHERS_NOW);
        device_zero(&stream, other);
        gathers(bucket + FIRST, BUCKETS - FIRST, GATHERS_BEHIND);
        comm_wait(world, comm_next(world) - 2);
        device_zero(&stream, other);
        comm_finish(world);
        comm_poll(world);
    }
    EXPECT_ON_ALL(comm_next(world) - first == (W > 1 ? 40 * BUCKETS : 0));
    device_to_host(&stream, host, t);
    for (int64_t i = 0; i < all; i++) wrong += host[i] != (float)(10 * (i / n) + i % n / PIECE + 1);
    EXPECT_ON_ALL(wrong == 0);
    device_free_host(host);
    device_free(other.data, bytes);
    device_free(t.data, bytes);
    comm_set_kind(world, COMM_RING);
}

int main(void) {
    const struct CMUnitTest ranks_nccl[] = {
        cmocka_unit_test(gathers_in_groups),
        cmocka_unit_test(order_is_the_streams),
        cmocka_unit_test(times_come_from_the_gpu),
    };
    return RUN_ON_RANKS(ranks_nccl);
}
