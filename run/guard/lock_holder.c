/* lock_holder.c - see lock_holder.h. */
#include "run/guard/lock_holder.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"

/* --- this process ------------------------------------------------------------------------------------------------- */

/* Copies the first word of text, at most capacity - 1 visible characters, or `otherwise` if there is none. */
static void copy_word(char *out, size_t capacity, const char *text, const char *otherwise) {
    size_t n = 0;
    for (; text && n + 1 < capacity && isgraph((unsigned char)text[n]); n++) out[n] = text[n];
    out[n] = 0;
    if (n == 0) snprintf(out, capacity, "%s", otherwise);
}

/* Returns the clock ticks from the boot to the start of a process, or 0 if /proc does not show it. *runs: 1 if it still
 * runs. */
static uint64_t start_of(int64_t process, int *runs) {
    char     path[64], *text = NULL, state = 'Z';
    uint64_t started = 0;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", process);
    if (io_read_file(path, 4096, &text) > 0) {
        const char *name_end = strrchr(text, ')'); /* the name of a program may contain ')' */
        if (!name_end ||
            sscanf(name_end + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64,
                   &state, &started) != 2)
            started = 0;
    }
    free(text);
    *runs = started > 0 && state != 'Z' && state != 'X';
    return started;
}

LockHolder holder_self(const char *host) {
    LockHolder  h = {.process = getpid(), .beat = 1};
    char       *boot = NULL;
    const char *restart = getenv("SLURM_RESTART_COUNT");
    int         runs;
    copy_word(h.host, sizeof h.host, host, "?");
    if (io_read_file("/proc/sys/kernel/random/boot_id", 4096, &boot) < 0) boot = NULL;
    copy_word(h.boot, sizeof h.boot, boot, "?");
    free(boot);
    h.started = start_of(h.process, &runs);
    copy_word(h.job, sizeof h.job, getenv("SLURM_JOB_ID"), "none");
    h.restart = restart ? strtoll(restart, NULL, 10) : 0;
    if (getrandom(&h.nonce, sizeof h.nonce, 0) != sizeof h.nonce) fail(EXIT_IO, "the system gives no random bytes");
    return h;
}

int holder_lives(const LockHolder *h) {
    int      runs;
    uint64_t started = start_of(h->process, &runs);
    if (started > 0) return runs && (h->started == 0 || h->started == started);
    return kill((pid_t)h->process, 0) == 0 || errno == EPERM; /* used if /proc is hidden */
}

/* --- text --------------------------------------------------------------------------------------------------------- */

int holder_format(const LockHolder *h, char out[HOLDER_TEXT]) {
    return snprintf(out, HOLDER_TEXT,
                    "host %s\nprocess %" PRId64 "\nboot %s\nstarted %" PRIu64 "\njob %s\nrestart %" PRId64
                    "\nnonce %016" PRIx64 "\nbeat %0*" PRIu64 "\n",
                    h->host, h->process, h->boot, h->started, h->job, h->restart, h->nonce, HOLDER_BEAT_DIGITS, h->beat);
}

int holder_parse(const char *text, LockHolder *h) {
    memset(h, 0, sizeof *h);
    return sscanf(text,
                  "host %255s process %" SCNd64 " boot %63s started %" SCNu64 " job %63s restart %" SCNd64
                  " nonce %" SCNx64 " beat %" SCNu64,
                  h->host, &h->process, h->boot, &h->started, h->job, &h->restart, &h->nonce, &h->beat) == 8;
}

/* --- the decision ------------------------------------------------------------------------------------------------- */

LockDecision holder_decide(const char *text, const LockHolder *self, LockSeen seen, double beat_ms) {
    LockHolder h;
    if (seen.flocked) return LOCK_REFUSE;
    if (!holder_parse(text, &h)) return LOCK_TAKE; /* the folder was given back, or never signed */
    if (strcmp(h.host, self->host) == 0 && strcmp(h.boot, self->boot) == 0) {
        if (seen.lives) return LOCK_REFUSE;
        if (!seen.no_flock) return LOCK_TAKE;
    }
    if (strcmp(h.job, "none") != 0 && strcmp(h.job, self->job) == 0 && h.restart < self->restart) return LOCK_TAKE;
    if (seen.moved) return LOCK_REFUSE;
    return seen.still_ms > LOCK_BEATS_MISSED * beat_ms ? LOCK_TAKE : LOCK_WAIT;
}
