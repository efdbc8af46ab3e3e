/* failpoints.c - makes calls fail as the rules in TRAIN_GPT_FAIL say (failpoints.h). This file is empty unless a test
 * build defines FAILPOINTS. */
#include "core/failpoints.h"

#ifdef FAILPOINTS
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"

enum { NAMES = 128, NAME_BYTES = 32 };

static struct {
    pthread_mutex_t lock;
    int             names;
    struct { char name[NAME_BYTES]; int64_t calls; } count[NAMES];
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct {
    char    name[NAME_BYTES], what[16];
    int64_t nth;
    int     and_later, rank; /* and_later: 1 if the rule also holds for all calls after the n-th; rank: the rank that
                              * obeys the rule, -1 for every rank */
} Rule;

static int64_t *count_of(const char *name) {
    for (int i = 0; i < seen.names; i++)
        if (strcmp(seen.count[i].name, name) == 0) return &seen.count[i].calls;
    CHECK(seen.names < NAMES && strlen(name) < NAME_BYTES, "failpoint %s: more than %d names, or too long", name,
          NAMES);
    strcpy(seen.count[seen.names].name, name);
    return &seen.count[seen.names++].calls;
}

int64_t failpoint_calls(const char *name) {
    pthread_mutex_lock(&seen.lock);
    int64_t calls = *count_of(name);
    pthread_mutex_unlock(&seen.lock);
    return calls;
}

void failpoints_reset(void) {
    pthread_mutex_lock(&seen.lock);
    seen.names = 0;
    memset(seen.count, 0, sizeof seen.count);
    pthread_mutex_unlock(&seen.lock);
}

static int own_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return atoi(getenv(names[i]));
    return 0;
}

/* Reads the next rule, such as "io.pwrite@3:ENOSPC,rank=0", at *text and moves *text past it. Returns 0 if there is no
 * rule left. */
static int next_rule(const char **text, Rule *r) {
    long long nth;
    int       used = 0;
    const char *start = *text += strspn(*text, "; ");
    if (!*start) return 0;
    *r = (Rule){.rank = -1};
    if (sscanf(start, "%31[a-z_.]@%lld%n", r->name, &nth, &used) == 2 && nth > 0) {
        const char *at = start + used;
        r->nth = nth;
        r->and_later = *at == '+';
        at += r->and_later;
        used = 0;
        sscanf(at, ":%15[A-Za-z0-9-]%n", r->what, &used);
        at += used;
        int more = 0;
        if (used && sscanf(at, ",rank=%d%n", &r->rank, &more) == 1) at += more;
        *text = at;
        if (used && (!*at || *at == ';' || *at == ' ')) return 1;
    }
    fail(EXIT_CONFIG, "TRAIN_GPT_FAIL: no rule \"name@n:what,rank=r\": %s", start);
}

static Failpoint strike(const char *name, int64_t nth, const char *what) {
    static const struct { const char *name; int value; } ERRORS[] = {
        {"fail", EIO},      {"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EDQUOT", EDQUOT},
        {"EFBIG", EFBIG},   {"EINTR", EINTR},   {"EROFS", EROFS},   {"EACCES", EACCES},
        {"ENOMEM", ENOMEM}, {"ENOENT", ENOENT}, {"EINVAL", EINVAL},
    };
    Failpoint   f = {0, 0, 0, ""};
    const char *path = getenv("TRAIN_GPT_FAIL_LOG");
    int         fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) { /* calls write(2) directly, because io_write() has a failpoint itself */
        char line[128];
        int  bytes = snprintf(line, sizeof line, "%s@%lld:%s,rank=%d\n", name, (long long)nth, what, own_rank());
        CHECK(write(fd, line, (size_t)bytes) == bytes, "cannot write %s", path);
        close(fd);
    }
    if (strcmp(what, "kill-before") == 0) kill(getpid(), SIGKILL);
    while (strcmp(what, "hang") == 0 || strcmp(what, "kill-before") == 0) pause();
    if (strcmp(what, "slow") == 0) usleep(50000);
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (strcmp(what, ERRORS[i].name) == 0) f.error = ERRORS[i].value;
    f.is_short = strcmp(what, "short") == 0;
    f.kills = strcmp(what, "kill-after") == 0;
    if (!f.error && !f.is_short && !f.kills) strcpy(f.word, what);
    return f;
}

Failpoint failpoint(const char *name) {
    char        group[NAME_BYTES];
    const char *text = getenv("TRAIN_GPT_FAIL");
    snprintf(group, sizeof group, "%.*s", (int)strcspn(name, "."), name);
    pthread_mutex_lock(&seen.lock);
    int64_t own = ++*count_of(name), all = ++*count_of(group);
    pthread_mutex_unlock(&seen.lock);
    for (Rule r; text && next_rule(&text, &r);) {
        int64_t nth = strcmp(r.name, name) == 0 ? own : strcmp(r.name, group) == 0 ? all : 0;
        if ((nth == r.nth || (nth > r.nth && r.and_later)) && (r.rank < 0 || r.rank == own_rank()))
            return strike(name, own, r.what);
    }
    return (Failpoint){0, 0, 0, ""};
}

void failpoint_done(Failpoint f) {
    if (!f.kills) return;
    kill(getpid(), SIGKILL);
    for (;;) pause();
}
#endif
