/* ranks_messages.c - messages from rank to rank, exchanges of bytes between all ranks, and maxima. */
#include <math.h>

#include "test/comm/ranks.h"

enum { MOST = 16 };

static float value(int rank, int64_t i, int salt) { return (float)((i * 7 + rank * 11 + salt * 5 + i / 61 * rank) % 31 - 15); }

/* Each rank sends messages of different lengths to the next rank, several in flight at once. Each arrives whole and in
 * order, and nothing else changes. An all-reduce over all ranks runs at the same time. */
static void messages_in_order(void **state) {
    (void)state;
    enum { MESSAGES = 5 };
    static const int64_t sizes[MESSAGES] = {1, 64 * 3, 100003, 7, 1 << 18};
    static const DType   types[MESSAGES] = {F32, BF16, F32, F16, BF16};
    int   W = comm_size(world), r = comm_rank(world), wrong = 0;
    Comm *pair[MOST], *in = NULL, *out = NULL;
    if (W == 1) return;
    for (int p = 0; p < W; p++) {
        pair[p] = comm_pair(world, p, (p + 1) % W, "ring");
        EXPECT_ON_ALL((pair[p] != NULL) == (p == r || (p + 1) % W == r));
        if (p == r) out = pair[p];
        if ((p + 1) % W == r) in = pair[p];
    }
    EXPECT_ON_ALL(comm_size(in) == 2 && comm_rank(in) == 1 && comm_rank(out) == 0 && comm_member(out, 1) == (r + 1) % W);
    comm_times(out), comm_times(in);
    Tensor  sent[MESSAGES], got[MESSAGES];
    int64_t bytes = 0;
    for (int m = 0; m < MESSAGES; m++) {
        sent[m] = tensor_1d(floats(sizes[m]), types[m], sizes[m]), got[m] = tensor_1d(floats(sizes[m] + 1), types[m], sizes[m]);
        for (int64_t i = 0; i < sizes[m]; i++) tensor_set(sent[m], i, value(r, i, m));
        tensor_set(tensor_1d(got[m].data, types[m], sizes[m] + 1), sizes[m], 99);
        bytes += (int64_t)tensor_bytes(sent[m]);
    }
    Tensor beside = tensor_1d(floats(64 * W), F32, 64 * W);
    for (int64_t i = 0; i < 64 * W; i++) tensor_set(beside, i, 1);
    comm_all_reduce_start(world, beside);
    for (int m = 0; m < MESSAGES; m++) comm_receive_start(in, got[m]);
    for (int m = 0; m < MESSAGES; m++) comm_send_start(out, sent[m]);
    for (int m = 0; m < MESSAGES; m++) {
        comm_wait(in, m);
        device_sync(&stream);
        for (int64_t i = 0; i < sizes[m]; i++) wrong += tensor_get(got[m], i) != value((r + W - 1) % W, i, m);
        wrong += tensor_get(tensor_1d(got[m].data, types[m], sizes[m] + 1), sizes[m]) != 99;
    }
    EXPECT_ON_ALL(wrong == 0);
    comm_finish(out);
    comm_finish(world);
    device_sync(&stream);
    for (int64_t i = 0; i < 64 * W; i++) wrong += tensor_get(beside, i) != (float)W;
    EXPECT_ON_ALL(wrong == 0);
    give_back(beside.data);
    int64_t counted = comm_times(out).sent;
    EXPECT_ON_ALL(counted == bytes && comm_times(in).sent == 0);
    for (int m = 0; m < MESSAGES; m++) give_back(sent[m].data), give_back(got[m].data);
    for (int p = W; p-- > 0;) comm_free(pair[p]);
}

/* Sends bytes of every rank to every other. Lengths are uneven; some are zero. */
static void everything_to_everyone(void **state) {
    (void)state;
    int    W = comm_size(world), r = comm_rank(world), wrong = 0;
    size_t bytes[MOST], all = 0;
    for (int k = 0; k < W; k++) all += bytes[k] = k % 3 == 1 ? 0 : 1 + (size_t)k * 70001;
    unsigned char *send = malloc(all + 1), *receive = malloc(bytes[r] * (size_t)W + 1);
    for (size_t i = 0, k = 0, at = 0; i < all; i++, at++) {
        while (at == bytes[k]) k++, at = 0;
        send[i] = (unsigned char)(r * 31 + (int)k * 7 + (int)(at % 251));
    }
    comm_all_to_all(world, send, bytes, receive);
    for (int from = 0; from < W; from++)
        for (size_t at = 0; at < bytes[r]; at++)
            wrong += receive[(size_t)from * bytes[r] + at] != (unsigned char)(from * 31 + r * 7 + (int)(at % 251));
    EXPECT_ON_ALL(wrong == 0);
    free(send);
    free(receive);
}

/* exchanged() returns the number of elements of message `number` from one rank to another. The lengths are uneven, and
 * some messages are missing. */
static int64_t exchanged(int from, int to, int number) { return (from * 5 + to * 3 + number) % 4 == 1 ? 0 : 1 + (from * 70001 + to * 13 + number * 64) % 150000; }
static float   exchanged_value(int from, int to, int number, int64_t i) { return value(from * 4 + number, i, to); }

/* Each rank sends two messages, one, or none to every other rank. A sum in the ring is in flight before, a gather
 * after. In a second exchange some ranks send nothing. The bytes of a message are counted by its sender. */
static void exchanges(void **state) {
    (void)state;
    int W = comm_size(world), r = comm_rank(world), wrong = 0;
    for (int kind = COMM_RING; kind <= COMM_MPI && W > 1; kind++) {
        Comm       *all = comm_split(world, 0, r, "whole");
        CommMessage message[4 * MOST];
        Tensor      beside = tensor_1d(floats(64 * W), F32, 64 * W);
        int         count = 0, number[4 * MOST];
        int64_t     bytes = 0;
        comm_set_kind(all, (CommKind)kind);
        comm_times(all);
        for (int64_t i = 0; i < 64 * W; i++) tensor_set(beside, i, 1);
        for (int k = 0; k < W * 4; k++) {
            int     peer = k / 4, is_send = k % 2, n = k / 2 % 2;
            int64_t elems = is_send ? exchanged(r, peer, n) : exchanged(peer, r, n);
            if (peer == r || elems == 0) continue;
            number[count] = n;
            message[count] = (CommMessage){is_send ? EXCHANGE_SEND : EXCHANGE_RECEIVE, peer, tensor_1d(floats(elems), F32, elems)};
            for (int64_t i = 0; i < elems; i++) tensor_set(message[count].x, i, is_send ? exchanged_value(r, peer, n, i) : -99);
            if (is_send) bytes += elems * (int64_t)sizeof(float);
            count++;
        }
        comm_all_reduce_start(all, beside);
        comm_exchange_start(all, message, count);
        comm_exchange_start(all, message, 0);
        comm_wait(all, comm_next(all) - 1);
        int64_t counted = comm_times(all).sent, ring = 64 * (int64_t)sizeof(float) * 2 * (W - 1);
        comm_all_gather_start(all, beside);
        comm_finish(all);
        device_sync(&stream);
        for (int k = 0; k < count; k++)
            for (int64_t i = 0; i < tensor_elems(message[k].x) && message[k].kind == EXCHANGE_RECEIVE; i++)
                wrong += tensor_get(message[k].x, i) != exchanged_value(message[k].peer, r, number[k], i);
        for (int64_t i = 0; i < 64 * W; i++) wrong += tensor_get(beside, i) != (float)W;
        EXPECT_ON_ALL(wrong == 0 && counted == bytes + ring);
        for (int k = 0; k < count; k++) give_back(message[k].x.data);
        give_back(beside.data);
        comm_free(all);
    }
}

/* Computes the maximum over all ranks, for any length. NaN is larger than every number. */
static void maxima(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 3, 64, 1000, 64 * 24, 300001};
    int W = comm_size(world), r = comm_rank(world);
    for (int kind = COMM_RING; kind <= COMM_MPI; kind++) {
        Comm *all = comm_split(world, 0, r, "whole");
        comm_set_kind(all, (CommKind)kind);
        for (int k = 0; k < (int)(sizeof sizes / sizeof *sizes); k++) {
            int64_t n = sizes[k], wrong = 0;
            Tensor  x = tensor_1d(floats(n), F32, n);
            for (int64_t i = 0; i < n; i++)
                tensor_set(x, i, i == n - 1 && n > 3 && r == W - 1 && kind == COMM_RING ? NAN : value(r, i, k));
            comm_all_reduce_max(all, x);
            device_sync(&stream);
            for (int64_t i = 0; i < n; i++) {
                float want = -INFINITY;
                for (int m = 0; m < W; m++) want = value(m, i, k) > want ? value(m, i, k) : want;
                wrong += i == n - 1 && n > 3 && kind == COMM_RING ? !isnan(tensor_get(x, i)) : tensor_get(x, i) != want;
            }
            EXPECT_ON_ALL(wrong == 0);
            give_back(x.data);
        }
        comm_free(all);
    }
}

int main(void) {
    const struct CMUnitTest ranks_messages[] = {cmocka_unit_test(messages_in_order),
                                                cmocka_unit_test(everything_to_everyone), cmocka_unit_test(maxima),
                                                cmocka_unit_test(exchanges)};
    return RUN_ON_RANKS(ranks_messages);
}
