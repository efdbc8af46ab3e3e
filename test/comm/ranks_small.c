/* ranks_small.c - numbers of ranks and hosts, and the small collectives that block. */
#include "comm/internal.h"
#include "test/comm/ranks.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void everyone_is_here(void **state) {
    (void)state;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    Launch launch = launch_detect();
    EXPECT_ON_ALL(!launch.launched || (launch.rank == comm_rank(world) && launch.size == comm_size(world)));
    /* mpirun starts all ranks of these tests on one host */
    EXPECT_ON_ALL(world_local_size(comm_world(world)) == comm_size(world) && world_local_rank(comm_world(world)) == comm_rank(world));
    for (int r = 0; r < comm_size(world); r++) EXPECT_ON_ALL(strcmp(comm_host(world, r), host) == 0);
    assert_true(strlen(world_library()) > 0);
}

/* The ranks of a host together use at most as many threads as the host has processors. Each rank uses at least one. */
static void threads_fit_the_host(void **state) {
    (void)state;
    int64_t mine = world_threads(comm_world(world)), all = mine, processors = sysconf(_SC_NPROCESSORS_ONLN);
    comm_all_reduce_i64(world, &all, 1, COMM_SUM);
    EXPECT_ON_ALL(mine >= 1);
    EXPECT_ON_ALL(all <= processors || mine == 1);
    EXPECT_ON_ALL(world_threads(comm_world(world)) == mine);
}

static void shared_devices_are_found(void **state) {
    (void)state;
    char own[32];
    snprintf(own, sizeof own, "GPU-%d", comm_rank(world));
    EXPECT_ON_ALL(comm_owns_device(world, own));
    /* all ranks name the same GPU, so comm_owns_device returns 0 and warns */
    EXPECT_ON_ALL(comm_owns_device(world, "GPU-0") == (comm_size(world) == 1));
    EXPECT_ON_ALL(!comm_owns_device(world, comm_rank(world) == 0 ? "" : own));
}

static void broadcast_reaches_all(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 5, 4096, 3000001};
    for (int root = 0; root < comm_size(world); root++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            unsigned char *data = malloc(sizes[s] + 1);
            int64_t        wrong = 0;
            for (size_t i = 0; i <= sizes[s]; i++) data[i] = comm_rank(world) == root ? (unsigned char)(i * 7 + (size_t)root) : 0;
            unsigned char after = data[sizes[s]];
            comm_broadcast(world, data, sizes[s], root);
            for (size_t i = 0; i < sizes[s]; i++) wrong += data[i] != (unsigned char)(i * 7 + (size_t)root);
            EXPECT_ON_ALL(wrong == 0 && data[sizes[s]] == after);
            free(data);
        }
}

static void all_reduce_of_numbers(void **state) {
    (void)state;
    int     W = comm_size(world), r = comm_rank(world);
    double  sum[2] = {r + 0.5, 1}, most[1] = {-(double)r}, least[1] = {r + 3.0};
    int64_t total = (int64_t)1 << (40 + r), top = r == W - 1 ? INT64_MAX : r, bottom = -r;
    comm_all_reduce_f64(world, sum, 2, COMM_SUM);
    comm_all_reduce_f64(world, most, 1, COMM_MAX);
    comm_all_reduce_f64(world, least, 1, COMM_MIN);
    comm_all_reduce_i64(world, &total, 1, COMM_SUM);
    comm_all_reduce_i64(world, &top, 1, COMM_MAX);
    comm_all_reduce_i64(world, &bottom, 1, COMM_MIN);
    EXPECT_ON_ALL(sum[0] == W * (W - 1) / 2 + 0.5 * W && sum[1] == W && most[0] == 0 && least[0] == 3);
    EXPECT_ON_ALL(total == (((int64_t)1 << W) - 1) << 40 && top == INT64_MAX && bottom == 1 - W);
}

/* Rank r gives r * 1000 bytes, so rank 0 gives none. The result has the bytes of all ranks in order. */
static void gather_concatenates(void **state) {
    (void)state;
    int W = comm_size(world), r = comm_rank(world);
    for (int root = 0; root < W; root++) {
        size_t  mine = (size_t)r * 1000, *bytes = NULL, at = 0;
        char   *data = malloc(mine + 1);
        int64_t wrong = 0;
        for (size_t i = 0; i < mine; i++) data[i] = (char)(i + (size_t)r);
        char *all = comm_gather(world, data, mine, root, &bytes);
        EXPECT_ON_ALL((all != NULL) == (r == root) && (bytes != NULL) == (r == root));
        for (int from = 0; all && from < W; from++) {
            wrong += bytes[from] != (size_t)from * 1000;
            for (size_t i = 0; i < bytes[from]; i++) wrong += all[at++] != (char)(i + (size_t)from);
        }
        EXPECT_ON_ALL(wrong == 0);
        free(data), free(all), free(bytes);
    }
}

static void dead_neighbours_are_seen(void **state) {
    (void)state;
    pid_t dead = fork(), *known;
    if (dead == 0) _exit(0);
    waitpid(dead, NULL, 0);
    pid_t stopped = fork();
    if (stopped == 0) raise(SIGSTOP), _exit(0);
    waitpid(stopped, NULL, WUNTRACED);
    int last_local = world_local_size(comm_world(world)) - 1;
    EXPECT_ON_ALL(world->world->neighbour && !world_neighbour_is_gone(comm_world(world)));
    known = &world->world->neighbour[last_local];
    pid_t last = *known;
    *known = dead;
    EXPECT_ON_ALL(world_neighbour_is_gone(comm_world(world)));
    EXPECT_ON_ALL(world_neighbour(comm_world(world), last_local) == PROCESS_GONE);
    *known = stopped;
    EXPECT_ON_ALL(world_neighbour(comm_world(world), last_local) == PROCESS_STOPPED);
    /* The stopped process continues and ends. Until its parent waits for it, it is a zombie, which counts as gone. */
    kill(stopped, SIGCONT);
    waitid(P_PID, (id_t)stopped, &(siginfo_t){0}, WEXITED | WNOWAIT);
    EXPECT_ON_ALL(world_neighbour(comm_world(world), last_local) == PROCESS_GONE);
    waitpid(stopped, NULL, 0);
    *known = last;
    EXPECT_ON_ALL(world_neighbour(comm_world(world), last_local) == PROCESS_RUNS);
    EXPECT_ON_ALL(!world_neighbour_is_gone(comm_world(world)));
}

static void count_call(void *calls) { ++*(int64_t *)calls; }
/* A listener of world_watch is called soon after a collective makes progress, but not for every step of it. A
 * removed listener is not called. */
static void progress_is_told(void **state) {
    (void)state;
    int64_t calls = 0;
    world_watch(comm_world(world), count_call, &calls);
    for (int i = 0; i < 1000; i++) world_moved(comm_world(world));
    int64_t told = calls;
    world_watch(comm_world(world), NULL, NULL);
    usleep(200000);
    world_moved(comm_world(world));
    EXPECT_ON_ALL(told >= 1 && told < 1000 && calls == told);
}

int main(void) {
    const struct CMUnitTest ranks_small[] = {
        cmocka_unit_test(everyone_is_here),
        cmocka_unit_test(threads_fit_the_host),
        cmocka_unit_test(shared_devices_are_found),
        cmocka_unit_test(broadcast_reaches_all),
        cmocka_unit_test(all_reduce_of_numbers),
        cmocka_unit_test(gather_concatenates),
        cmocka_unit_test(dead_neighbours_are_seen),
        cmocka_unit_test(progress_is_told),
    };
    return RUN_ON_RANKS(ranks_small);
}
