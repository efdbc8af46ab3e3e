/* ranks_groups.c - several groups of ranks at once: their members, exact sums and gathers in flight side by side,
 * all-reduce of any length and type, the small blocking calls, times. Groups are cut from as many ranks as mpirun
 * gives; NCCL takes part where every rank has a GPU of its own.
 * Long: tries many groups.
 */
#include "comm/internal.h"
#include "test/comm/ranks.h"

enum { SPLITS = 6, PIECE = 64 * 3, MOST = 16 };

/* Returns the group (color) of a rank for way `split` of dividing W ranks: 0 and 3 all in one group (3 in reverse
 * order), 1 halves, 2 odd and even, 4 one apart from the others, 5 each alone. */
static int color_of(int split, int rank, int W) {
    switch (split) {
        case 1: return rank >= (W + 1) / 2;
        case 2: return rank % 2;
        case 4: return rank == 0 ? 0 : 7;
        case 5: return rank;
        default: return 3;
    }
}
static int key_of(int split, int rank, int W) { return split == 3 ? W - rank : 0; }

/* Writes the ranks of this rank's group to `member`, in order of key, then of rank. This is the definition of a
 * group. Returns the number of ranks. */
static int members_of(int split, int *member) {
    int W = comm_size(world), mine = color_of(split, comm_rank(world), W), count = 0;
    for (int i = 0; i < W; i++) {
        int r = split == 3 ? W - 1 - i : i;
        if (color_of(split, r, W) == mine) member[count++] = r;
    }
    return count;
}

typedef struct { Comm *c; int member[MOST], size; } Group;

static Group cut(int split) {
    static const char *const names[SPLITS] = {"whole", "half", "parity", "reverse", "apart", "alone"};
    Group g = {.size = members_of(split, g.member)};
    int   r = comm_rank(world), W = comm_size(world);
    g.c = comm_split(world, color_of(split, r, W), key_of(split, r, W), names[split]);
    return g;
}

/* Returns a small integer. Sums of four ranks stay under 128, so every type holds them exactly for any order of
 * additions. */
static float value(int rank, int64_t i, int salt) { return (float)((i * 7 + rank * 11 + salt * 5 + i / 61 * rank) % 31 - 15); }
static float sum_of(const Group *g, int64_t i, int salt) {
    float sum = 0;
    for (int k = 0; k < g->size; k++) sum += value(g->member[k], i, salt);
    return sum;
}

typedef enum { SCATTER, GATHER, REDUCE } What;
/* A collective in flight in group g, with the data that are needed to check its result. */
typedef struct { const Group *g; What what; Tensor x; int salt; } Job;

static Job begin(const Group *g, What what, DType type, int64_t n, int salt) {
    Job     j = {g, what, tensor_1d(floats(n > 0 ? n : 1), type, n), salt};
    int64_t piece = n / g->size, mine = comm_rank(g->c);
    for (int64_t i = 0; i < n; i++)
        tensor_set(j.x, i, what != GATHER || i / piece == mine ? value(comm_rank(world), i, salt) : -99);
    if (what == SCATTER) comm_reduce_scatter_start(g->c, j.x);
    else if (what == GATHER) comm_all_gather_start(g->c, j.x);
    else comm_all_reduce_start(g->c, j.x);
    return j;
}

/* Returns the number of wrong elements of a collective that has ended. */
static int64_t wrong_in(const Job *j) {
    int64_t n = tensor_elems(j->x), piece = n / j->g->size, first = 0, end = n, wrong = 0;
    if (j->what == SCATTER) first = comm_rank(j->g->c) * piece, end = first + piece;
    device_sync(&stream);
    for (int64_t i = first; i < end; i++)
        wrong += tensor_get(j->x, i) != (j->what == GATHER ? value(j->g->member[i / piece], i, j->salt) : sum_of(j->g, i, j->salt));
    return wrong;
}
static int64_t finish(Job *j) {
    int64_t wrong = wrong_in(j);
    give_back(j->x.data);
    return wrong;
}

static int last_kind(void) { return comm_owns_device(world, device_id()) ? COMM_NCCL : COMM_MPI; }

static void members_are_in_order(void **state) {
    (void)state;
    int last = last_kind();
    for (int split = 0; split < SPLITS; split++) {
        Group   g = cut(split);
        int64_t wrong = comm_size(g.c) != g.size || g.member[comm_rank(g.c)] != comm_rank(world);
        for (int k = 0; k < g.size; k++) wrong += strcmp(comm_host(g.c, k), comm_host(world, g.member[k])) != 0;
        EXPECT_ON_ALL(wrong == 0 && comm_world(g.c) == comm_world(world) && comm_kind(g.c) == COMM_RING &&
                      strlen(g.c->name) >= 4);
        if (last == COMM_NCCL) comm_set_kind(g.c, COMM_NCCL);
        comm_free(g.c);
    }
    comm_free(NULL);
}

/* Divides a group of ranks into groups of two, with a name that is too long. The name is cut, and sums are right. */
static void groups_of_groups(void **state) {
    (void)state;
    Group half = cut(1);
    Comm *pair = comm_split(half.c, comm_rank(half.c) / 2, 0, "a name longer than there is room for");
    int   size = half.size - comm_rank(half.c) / 2 * 2 > 1 ? 2 : 1;
    EXPECT_ON_ALL(comm_size(pair) == size && comm_rank(pair) == comm_rank(half.c) % 2);
    EXPECT_ON_ALL(strcmp(pair->name, "a name longer t") == 0);
    int64_t sum = comm_rank(world), first = half.member[comm_rank(half.c) / 2 * 2];
    comm_all_reduce_i64(pair, &sum, 1, COMM_SUM);
    EXPECT_ON_ALL(sum == (size == 2 ? 2 * first + 1 : first));
    comm_free(pair);
    comm_free(half.c);
}

/* For some grids and every set of axes, the group that comm_group makes has the members that mesh_group returns. */
static void groups_of_a_mesh(void **state) {
    (void)state;
    int  W = comm_size(world);
    Mesh grids[] = {mesh_of(W, (MeshSizes){1, 1, 1, 1}), {{W, 1, 1, 1, 1}},
                    {{1, W % 2 ? 1 : 2, W % 2 ? W : W / 2, 1, 1}}, {{W % 2 ? 1 : 2, 1, 1, 1, W % 2 ? W : W / 2}}};
    for (size_t m = 0; m < sizeof grids / sizeof *grids; m++)
        for (unsigned axes = 0; axes < 1u << AXES; axes += axes < 8 ? 1 : 5) {
            Group   g = {.c = comm_group(world, grids[m], axes, "grid")};
            int64_t wrong = 0;
            g.size = mesh_group(grids[m], comm_rank(world), axes, g.member);
            wrong += comm_size(g.c) != g.size || g.member[comm_rank(g.c)] != comm_rank(world);
            Job j = begin(&g, REDUCE, F32, 65, (int)axes);
            comm_finish(g.c);
            wrong += finish(&j);
            EXPECT_ON_ALL(wrong == 0);
            comm_free(g.c);
        }
}

/* Runs collectives in two groups at once, which divide the ranks in the ways `first` and `second`. Ranks start them in
 * different orders, except NCCL's, and poll at different times. They wait for one group while the other proceeds. */
static void two_groups_with(CommKind kind, int first, int second) {
    int   r = comm_rank(world), is_nccl = kind == COMM_NCCL;
    Group a = cut(first), b = cut(second);
    comm_set_kind(a.c, kind), comm_set_kind(b.c, kind);
    for (int round = 0; round < 4; round++) {
        int64_t long_piece = emulated() ? 4096 : 70016, wrong = 0;
        int     b_first = !is_nccl && (r + round) % 2;
        Job     in_a[3], in_b[3];
        for (int turn = 0; turn < 2; turn++) {
            if (turn == b_first) {
                in_a[0] = begin(&a, SCATTER, F32, a.size * long_piece, 1);
                in_a[1] = begin(&a, GATHER, BF16, a.size * PIECE, 2);
                for (int polls = (r * 3 + round) % 5; polls > 0; polls--) comm_poll(a.c);
                in_a[2] = begin(&a, REDUCE, F16, 1001, 3);
            } else {
                in_b[0] = begin(&b, REDUCE, BF16, 4097, 4);
                in_b[1] = begin(&b, SCATTER, F16, b.size * PIECE, 5);
                in_b[2] = begin(&b, GATHER, F32, b.size * long_piece, 6);
            }
        }
        if ((r + round / 2) % 2) comm_finish(a.c), comm_finish(b.c);
        else comm_finish(b.c), comm_finish(a.c);
        for (int k = 0; k < 3; k++) wrong += finish(&in_a[k]) + finish(&in_b[k]);
        EXPECT_ON_ALL(wrong == 0);
    }
    comm_free(b.c);
    comm_free(a.c);
}
static void two_groups_in_flight(void **state) {
    (void)state;
    for (int kind = COMM_RING, last = last_kind(); kind <= last; kind++)
        for (int first = 0; first < SPLITS; first++)
            for (int second = emulated() ? first : 0; second < SPLITS; second++) two_groups_with((CommKind)kind, first, second);
}

/* A rank that waits in one group must still send and receive for its other groups. Rank 0 waits in a call of group
 * `all` while a gather of group `half` is in flight. Odd ranks finish that gather before they enter `all`. */
static void waits_move_every_group(void **state) {
    (void)state;
    Group   all = cut(0), half = cut(1);
    int64_t piece = 1 << 20, wrong = 0;
    if (emulated()) piece = 1 << 14;
    for (int round = 0; round < 3; round++) {
        Job     j = begin(&half, round == 2 ? REDUCE : GATHER, F32, half.size * piece, round);
        int64_t one = 1;
        if (comm_rank(world) % 2) comm_finish(half.c);
        if (round == 0) comm_barrier(all.c);
        else if (round == 1) comm_all_reduce_i64(all.c, &one, 1, COMM_SUM);
        else {
            Comm *made = comm_split(all.c, 0, 0, "made meanwhile");
            comm_all_reduce_i64(made, &one, 1, COMM_SUM);
            comm_free(made);
        }
        comm_finish(half.c);
        wrong += finish(&j) + (round > 0 && one != comm_size(world));
    }
    EXPECT_ON_ALL(wrong == 0);
    comm_free(half.c), comm_free(all.c);
}

/* Checks the numbers of collectives, by which training waits for the gathers of weights. After first =
 * comm_next(group), the group's k-th gather has number first + k, although another group starts collectives before
 * and in between. The other group was used earlier, so its numbers are higher. */
static void numbers_are_the_groups(void **state) {
    (void)state;
    for (int kind = COMM_RING, last = last_kind(); kind <= last; kind++) {
        Group   all = cut(0), half = cut(1);
        int64_t first, wrong = 0, next;
        comm_set_kind(all.c, (CommKind)kind), comm_set_kind(half.c, (CommKind)kind);
        Job gather[4], other[4];
        for (int older = 0; older < 20; older++) {
            other[0] = begin(&half, REDUCE, F32, 1, older);
            comm_finish(half.c);
            wrong += finish(&other[0]);
        }
        for (int round = 0; round < 3; round++) {
            Job before = begin(&half, REDUCE, F32, emulated() ? 1000 : 1 << 19, round);
            first = comm_next(all.c);
            for (int k = 0; k < 4; k++) {
                gather[k] = begin(&all, GATHER, F32, all.size * PIECE * (4 - k), k);
                other[k] = begin(&half, REDUCE, BF16, 100 * k, k);
            }
            next = comm_next(all.c);
            wrong += next != (comm_size(world) > 1 ? first + 4 : first);
            for (int k = 0; k < 4; k++) {
                comm_wait(all.c, first + k);
                wrong += finish(&gather[k]);
            }
            comm_finish(half.c);
            wrong += finish(&before);
            for (int k = 0; k < 4; k++) wrong += finish(&other[k]);
        }
        EXPECT_ON_ALL(wrong == 0);
        comm_free(half.c), comm_free(all.c);
    }
}

static void any_length_and_type(void **state) {
    (void)state;
    static const int64_t LENGTHS[] = {0, 1, 63, 64, 65, 127, 1003, 20001, 1000003};
    static const DType   TYPES[] = {F32, BF16, F16};
    for (int kind = COMM_RING, last = last_kind(); kind <= last; kind++)
        for (int split = 0; split < 3; split++) {
            Group g = cut(split);
            comm_set_kind(g.c, (CommKind)kind);
            for (size_t l = 0; l < sizeof LENGTHS / sizeof *LENGTHS - (size_t)(emulated() || split == 2); l++)
                for (int t = 0; t < 3; t++) {
                    Job j = begin(&g, REDUCE, TYPES[t], LENGTHS[l], (int)l);
                    comm_finish(g.c);
                    EXPECT_ON_ALL(finish(&j) == 0);
                }
            comm_free(g.c);
        }
}

/* Sums a tensor of two dimensions by the blocking call comm_all_reduce. */
static void any_shape(void **state) {
    (void)state;
    Group  g = cut(0);
    Tensor x = tensor_2d(floats(7 * 13), F32, 7, 13);
    for (int64_t i = 0; i < 7 * 13; i++) tensor_set(x, i, value(comm_rank(world), i, 9));
    comm_all_reduce(g.c, x);
    Job j = {&g, REDUCE, x, 9};
    EXPECT_ON_ALL(finish(&j) == 0);
    comm_free(g.c);
}

/* Each rank p of a ring of W ranks keeps piece p of a bucket. The sum of piece p is ((x[p+1] + x[p+2]) + ...) +
 * x[p], where x[r] is the piece on rank r. It is rounded to the type at each +, with equal bits on every rank. */
static void sixteen_bits_round_once_per_addition(void **state) {
    (void)state;
    static const DType TYPES[] = {BF16, F16};
    int     W = comm_size(world), r = comm_rank(world);
    int64_t n = 1000, piece = n % W == 0 ? n / W : (n + 64 * W - 1) / (64 * W) * 64, wrong = 0;
    for (int t = 0; t < 2; t++) {
        Tensor x = tensor_1d(floats(n), TYPES[t], n), part = tensor_1d(floats(1), TYPES[t], 1);
        for (int64_t i = 0; i < n; i++) tensor_set(x, i, (float)(i * (r + 3) % 97) * 0.37f);
        comm_all_reduce(world, x);
        device_sync(&stream);
        for (int64_t i = 0; i < n; i++) {
            float sum = 0;
            for (int k = 1; k <= W; k++) {
                tensor_set(part, 0, (float)(i * ((i / piece + k) % W + 3) % 97) * 0.37f);
                float next = tensor_get(part, 0);
                tensor_set(part, 0, k == 1 ? next : sum + next);
                sum = tensor_get(part, 0);
            }
            wrong += tensor_get(x, i) != sum;
        }
        give_back(x.data), give_back(part.data);
    }
    EXPECT_ON_ALL(wrong == 0);
}

static void small_calls(void **state) {
    (void)state;
    for (int split = 0; split < SPLITS; split++) {
        Group   g = cut(split);
        int     last = g.size - 1, me = comm_rank(g.c);
        int64_t word = me == last ? 100 + comm_rank(world) : 0, least = comm_rank(world), ranks = 0, wrong = 0;
        double  most = comm_rank(world), sum = 0.5;
        comm_barrier(g.c);
        comm_broadcast(g.c, &word, sizeof word, last);
        comm_all_reduce_i64(g.c, &least, 1, COMM_MIN);
        comm_all_reduce_f64(g.c, &most, 1, COMM_MAX);
        comm_all_reduce_f64(g.c, &sum, 1, COMM_SUM);
        size_t *bytes = NULL;
        char   *all = comm_gather(g.c, "abcdefgh", (size_t)(1 + me), last, &bytes), *at = all;
        for (int k = 0; all && k < g.size; at += bytes[k++])
            wrong += bytes[k] != (size_t)(1 + k) || memcmp(at, "abcdefgh", bytes[k]) != 0;
        wrong += (all != NULL) != (me == last);
        free(all), free(bytes);
        for (int k = 0; k < g.size; k++) {
            wrong += least > g.member[k] || most < g.member[k];
            ranks += g.member[k] == least || g.member[k] == (int)most;
        }
        wrong += word != 100 + g.member[last] || sum != 0.5 * g.size || ranks != (g.size > 1 ? 2 : 1);
        EXPECT_ON_ALL(wrong == 0);
        comm_free(g.c);
    }
}

static void times_are_the_groups(void **state) {
    (void)state;
    Group     g = cut(1), idle = cut(2);
    CommTrace last;
    comm_times(g.c), comm_times(idle.c), comm_times(world);
    Job j = begin(&g, SCATTER, F32, g.size * (int64_t)65536, 1);
    comm_finish(g.c);
    comm_barrier(g.c);
    last = world_last_call(comm_world(world));
    CommTimes times = comm_times(g.c), others = comm_times(idle.c), all = comm_times(world), after = comm_times(g.c);
    int64_t   wrong = finish(&j);
    wrong += (times.comm_ms > 0) != (g.size > 1) || (times.sends > 0) != (g.size > 1) || times.exposed_ms > times.comm_ms + 0.1;
    wrong += others.comm_ms != 0 || others.sends != 0 || all.comm_ms != 0 || all.sends != 0 || after.comm_ms != 0;
    if (g.size > 1)
        wrong +=
            strcmp(last.group, "half") != 0 || strcmp(last.name, "barrier") != 0 || last.number != 1 || last.end_ms == 0;
    EXPECT_ON_ALL(wrong == 0);

    comm_times(world);
    j = begin(&g, REDUCE, F32, 1000, 1);
    last = world_last_call(comm_world(world));
    comm_finish(g.c);
    CommTrace trace;
    wrong = finish(&j);
    if (g.size > 1) {
        wrong += world_trace(comm_world(world), &trace, 1) != 1 || strcmp(trace.group, "half") != 0 ||
                 trace.number != 2 || trace.end_ms == 0;
        wrong += strcmp(last.group, "half") != 0 || last.number != 2 || strcmp(last.name, "all-reduce") != 0;
    }
    EXPECT_ON_ALL(wrong == 0);
    comm_free(idle.c), comm_free(g.c);
}

/* Tests a sum in two levels. The ranks of a group (shard) sum a bucket, and each keeps its part. Then each part is
 * summed over the ranks that have it in all groups (replica). Several buckets are in flight. */
static void sums_after_sums(void **state) {
    (void)state;
    enum { BUCKETS = 5 };
    int  W = comm_size(world), copies = W % 2 ? W : 2;
    Mesh mesh = mesh_of(W, (MeshSizes){1, 1, 1, copies});
    for (int kind = COMM_RING, last = last_kind(); kind <= last; kind++) {
        Comm   *shard = comm_group(world, mesh, WITH_SHARD, "shard"), *replica = comm_group(world, mesh, WITH_REPLICA, "replica");
        Tensor  x[BUCKETS];
        int64_t wrong = 0, sizes[BUCKETS] = {64, 64 * 3, 64 * 1000, 64 * 7, 64 * 300}, Z = W / copies;
        comm_set_kind(shard, (CommKind)kind), comm_set_kind(replica, (CommKind)kind);
        for (int b = 0; b < BUCKETS; b++) {
            x[b] = tensor_1d(floats(Z * sizes[b]), F32, Z * sizes[b]);
            for (int64_t i = 0; i < x[b].dim[0]; i++) tensor_set(x[b], i, value(comm_rank(world), i, b));
            comm_reduce_scatter_start(shard, x[b]);
            comm_all_reduce_after(replica, tensor_slice(x[b], comm_rank(shard) * sizes[b], sizes[b]), shard);
            comm_poll(world);
        }
        comm_finish(replica);
        comm_finish(shard);
        device_sync(&stream);
        Group all = {.size = W};
        for (int r = 0; r < W; r++) all.member[r] = r;
        for (int b = 0; b < BUCKETS; b++) {
            for (int64_t i = comm_rank(shard) * sizes[b], end = i + sizes[b]; i < end; i++)
                wrong += tensor_get(x[b], i) != sum_of(&all, i, b);
            give_back(x[b].data);
        }
        EXPECT_ON_ALL(wrong == 0);
        comm_free(shard), comm_free(replica);
    }
}

/* Checks the bytes that a collective sends, summed over the W ranks: (W - 1) times the bytes of a bucket, twice for an
 * all-reduce. This holds also if the last ranks' parts of the bucket are shorter. */
static void bytes_sent(void **state) {
    (void)state;
    static const DType TYPES[] = {F32, BF16};
    int64_t W = comm_size(world);
    for (int t = 0; t < 2; t++)
        for (What what = SCATTER; what <= REDUCE; what++) {
            Group   all = cut(0);
            int64_t n = what == REDUCE ? 64 * W * 3 + 17 : 64 * W * 3, sum;
            Job     j = begin(&all, what, TYPES[t], n, 1);
            comm_finish(all.c);
            sum = comm_times(all.c).sent;
            comm_all_reduce_i64(world, &sum, 1, COMM_SUM);
            EXPECT_ON_ALL(finish(&j) == 0 && sum == (what == REDUCE ? 2 : 1) * (W - 1) * n * (int64_t)dtype_bytes(TYPES[t]));
            EXPECT_ON_ALL(comm_times(all.c).sent == 0);
            comm_free(all.c);
        }
}

/* Runs more collectives, of two groups in turn, than the trace of recent collectives holds. Then makes and frees many
 * groups. */
static void many(void **state) {
    (void)state;
    Group   a = cut(0), b = cut(1);
    int64_t wrong = 0;
    for (int round = 0; round < (emulated() ? 100 : 300); round++) {
        Job x = begin(&a, REDUCE, F32, 64, round), y = begin(&b, REDUCE, F32, 65, round);
        comm_finish(a.c), comm_finish(b.c);
        wrong += finish(&x) + finish(&y);
    }
    for (int round = 0; round < 100; round++) {
        Group g = cut(round % SPLITS);
        Job   j = begin(&g, REDUCE, F32, 65, round);
        comm_finish(g.c);
        wrong += finish(&j);
        comm_free(g.c);
    }
    EXPECT_ON_ALL(wrong == 0);
    comm_free(b.c), comm_free(a.c);
}

int main(void) {
    const struct CMUnitTest ranks_groups[] = {
        cmocka_unit_test(members_are_in_order),
        cmocka_unit_test(groups_of_groups),
        cmocka_unit_test(groups_of_a_mesh),
        cmocka_unit_test(two_groups_in_flight),
        cmocka_unit_test(waits_move_every_group),
        cmocka_unit_test(numbers_are_the_groups),
        cmocka_unit_test(any_length_and_type),
        cmocka_unit_test(any_shape),
        cmocka_unit_test(sixteen_bits_round_once_per_addition),
        cmocka_unit_test(small_calls),
        cmocka_unit_test(times_are_the_groups),
        cmocka_unit_test(sums_after_sums),
        cmocka_unit_test(bytes_sent),
        cmocka_unit_test(many),
    };
    return RUN_ON_RANKS(ranks_groups);
}
