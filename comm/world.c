/* world.c - this process as a rank of the job: which rank is on which host, which groups exist, and which collective
 * this rank is in. */
#include "comm/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/internal.h"
#include "core/thread.h"
#include "core/failpoints.h"
#include "core/error.h"

static const double TELL_EVERY_MS = 100;

static int set_to_one(const char *variable) {
    const char *value = getenv(variable);
    return value && strcmp(value, "1") == 0;
}

/* The world of this process, NULL before world_join. It is static because the function that ends the job receives only
 * the exit code. */
static const World *joined;

void world_tell_neighbours(void) {
    const World *w = joined;
    for (int r = 0; w && w->neighbour && r < w->local_size; r++)
        if (r != w->local_rank) sigqueue(w->neighbour[r], SIGCONT, (union sigval){.sival_int = w->local_rank});
}

/* Reads the state of a process from /proc/PID/stat: "12 (name) T ...", where the name may hold any character. Reads
 * without stdio, because the watchdog calls this function. */
ProcessState world_neighbour(const World *w, int local) {
    char path[32], text[512];
    if (!w->neighbour) return PROCESS_RUNS;
    pid_t pid = w->neighbour[local];
    if (kill(pid, 0) < 0 && errno == ESRCH) return PROCESS_GONE;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int     file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = file < 0 ? 0 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')');
    char        state = end && end[1] == ' ' ? end[2] : 'R';
    return state == 'Z' || state == 'X' ? PROCESS_GONE : state == 'T' || state == 't' ? PROCESS_STOPPED : PROCESS_RUNS;
}

int world_neighbour_is_gone(const World *w) {
    for (int r = 0; r < w->local_size; r++)
        if (world_neighbour(w, r) == PROCESS_GONE) return 1;
    return 0;
}

void world_numbers(char (*host)[HOST_CHARS], int size, int *number) {
    for (int r = 0; r < size; r++) number[r] = -1;
    for (int first = 0, next = 0; first < size; first++) {
        if (number[first] >= 0) continue;
        for (int r = first; r < size; r++)
            if (number[r] < 0 && strcmp(host[r], host[first]) == 0) number[r] = next++;
    }
}

void world_renumber(World *w) {
    int *number = xmalloc(sizeof *number * (size_t)w->size, "the host names of the ranks");
    char (*host)[HOST_CHARS] = xcalloc((size_t)w->size, sizeof *host, "the host names of the ranks");
    world_numbers(w->host, w->size, number);
    for (int r = 0; r < w->size; r++) memcpy(host[number[r]], w->host[r], HOST_CHARS);
    w->rank = number[w->rank];
    free(w->host), free(number);
    w->host = host;
}

World *world_join(Launch launch) {
    World *w = xcalloc(1, sizeof *w, "the ranks");
    w->size = w->local_size = 1;
    w->blocking = (CommTrace){.name = "", .number = -1, .end_ms = clock_ms(), .group = "all"};
    w->stalled = INT64_MAX;
    Failpoint f = failpoint("comm.init");
    if (launch.launched) world_start(w, launch);
    else {
        error_set_rank(0, 1, NULL);
        launch_explain_alone();
        w->host = xcalloc(1, sizeof *w->host, "the name of this host");
        gethostname(w->host[0], HOST_CHARS - 1);
    }
    failpoint_done(f);
    pid_t mine = getpid();
    w->neighbour = xmalloc(sizeof *w->neighbour * (size_t)w->local_size, "the ranks of a host");
    world_local_all_gather(w, &mine, w->neighbour, sizeof mine);
    joined = w;
    if (world_neighbour_is_gone(w)) { /* forgets the process ids if one cannot be seen, as from another container */
        free(w->neighbour);
        w->neighbour = NULL;
    }
    w->yields = w->local_size > launch_read_masks(w) && !set_to_one("OMPI_MCA_mpi_oversubscribe") &&
                !set_to_one("OMPI_MCA_mpi_yield_when_idle");
    w->all = comm_make(w, "all");
    if (w->size > 1) group_all(w->all);
    world_list(w, w->all);
    return w;
}

World *world_dry(int size, int rank, Ledger *ledger) {
    CHECK(rank >= 0 && rank < size, "rank %d of %d", rank, size);
    World *w = xcalloc(1, sizeof *w, "a plan of ranks");
    w->size = size, w->rank = rank, w->local_size = 1;
    w->ledger = ledger;
    w->all = comm_make(w, "all");
    comm_make_dry(w->all, size, rank);
    world_list(w, w->all);
    return w;
}

Comm *world_all(World *w) { return w->all; }

void world_leave(World *w) {
    CHECK(w->groups == w->all && !w->all->next, "a group is not freed");
    if (!w->ledger) {
        comm_finish(w->all);
        if (w->all->nccl) nccl_close(w->all);
        nccl_leave(w);
        if (w->staging) staging_close(w);
        Failpoint f = failpoint("comm.finalize");
        if (w->size > 1) group_free(w->all);
        if (w->launched) world_stop(w);
        failpoint_done(f);
    }
    comm_drop(w->all); /* frees the group last, because the watchdog may read it until here */
    if (joined == w) joined = NULL;
    free(w->host);
    free(w->masks);
    free(w->neighbour);
    free(w->op);
    free(w);
}

int world_local_rank(const World *w) { return w->local_rank; }
int world_local_size(const World *w) { return w->local_size; }

/* Adds a complete group to the list, atomically, because the watchdog's thread reads the list. */
void world_list(World *w, Comm *c) {
    c->next = w->groups;
    __atomic_store_n(&w->groups, c, __ATOMIC_RELEASE);
}

void world_unlist(World *w, Comm *c) {
    Comm **at = &w->groups;
    while (*at != c) at = &(*at)->next;
    __atomic_store_n(at, c->next, __ATOMIC_RELEASE);
}

void world_follow(World *w, Stream *s) {
    CHECK(w->ops == 0, "%d collectives in flight", w->ops);
    w->followed = s;
}

/* --- progress, and where it ends ---------------------------------------------------------------------------------- */

void world_watch(World *w, void (*progress)(void *ctx), void *ctx) { w->watch = progress, w->watch_ctx = ctx; }

void world_moved(World *w) {
    double now_ms = clock_ms();
    if (!w->watch || now_ms - w->watched_ms < TELL_EVERY_MS) return;
    w->watched_ms = now_ms;
    w->watch(w->watch_ctx);
}

CommTrace world_last_call(const World *w) {
    CommTrace last = w->blocking;
    if (last.end_ms == 0) return last;
    /* the loop includes index `started`, because that collective may be starting now */
    for (int64_t i = w->started > TRACES ? w->started - TRACES : 0; i <= w->started; i++) {
        const CommTrace *t = &w->trace[i % TRACES];
        if (!t->name || t->sequence != i) continue;
        if (t->end_ms == 0) return *t;
        if (t->start_ms > last.start_ms) last = *t;
    }
    return last;
}

CommTrace *world_trace_of(World *w, int64_t sequence) {
    CommTrace *t = &w->trace[sequence % TRACES];
    return t->name && t->sequence == sequence ? t : NULL;
}

int world_trace(const World *w, CommTrace *out, int max) {
    int64_t count = w->started < TRACES ? w->started : TRACES;
    if (count > max) count = max;
    for (int64_t i = 0; i < count; i++) out[i] = w->trace[(w->started - count + i) % TRACES];
    return (int)count;
}

const char *world_call_text(const CommTrace *call, char text[CALL_CHARS]) {
    int is_all = strcmp(call->group, "all") == 0;
    snprintf(text, CALL_CHARS, "%s%s%s %lld", is_all ? "" : call->group, is_all ? "" : " ", call->name,
             (long long)call->number);
    return text;
}

void world_failed(const World *w, const char *why) {
    char      host[HOST_CHARS] = "?", call[CALL_CHARS], where[CALL_CHARS + 8] = "setting up";
    CommTrace last = world_last_call(w);
    gethostname(host, sizeof host - 1);
    if (last.number >= 0)
        snprintf(where, sizeof where, "%s%s", last.end_ms > 0 ? "after " : "", world_call_text(&last, call));
    fail(EXIT_PEER, "rank %d on host %s (%s) noticed that another rank is lost or that MPI failed: %s; the first error "
         "that another rank printed has the cause: remove the cause, and start the job again", w->rank, host, where,
         why);
}
