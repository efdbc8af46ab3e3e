/* lock_holder.h - who writes in a run folder, as its lock file says it, and whether another job may take it over. For lock.c; no I/O but
 * to find out about this host's processes. */
#ifndef TRAIN_GPT_RUN_GUARD_LOCK_HOLDER_H
#define TRAIN_GPT_RUN_GUARD_LOCK_HOLDER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A process by what no other shares with it: its number is given again, but not with the same start on the same boot. */
typedef struct {
    char     host[256];   /* as gethostname says */
    char     boot[64];    /* /proc's boot id; "?": unknown, as is 0 below */
    int64_t  process;
    uint64_t started;     /* clock ticks from the boot to the start of the process */
    char     job[64];     /* SLURM_JOB_ID, "none" outside of SLURM */
    int64_t  restart;     /* how often SLURM has requeued that job */
    uint64_t nonce;       /* of one taking of the folder */
    uint64_t beat;        /* grows while the holder lives */
} LockHolder;

LockHolder holder_self(const char *host);
int        holder_lives(const LockHolder *h); /* asked of this host's kernel: only about a holder on this host and boot */

/* The file's text: a line a field, the beat's digits last and always as many, so that they alone can be written anew. */
enum { HOLDER_TEXT = 768, HOLDER_BEAT_DIGITS = 20 };
int holder_format(const LockHolder *h, char out[HOLDER_TEXT]); /* returns its length */
int holder_parse(const char *text, LockHolder *h);             /* 0: the text is none of ours, or none at all */

/* What the job that wants the folder has seen of it so far. */
typedef struct {
    int    flocked;   /* flock(2) says that somebody has the file open and locked */
    int    lives;     /* holder_lives */
    int    moved;     /* the file has changed since the first look */
    double still_ms;  /* since then, by this job's own clock: hosts need not agree on the time */
} LockSeen;
typedef enum { LOCK_TAKE, LOCK_WAIT, LOCK_REFUSE } LockDecision;

/* text: the file's at the last look. A lock of this host goes by what its kernel knows. That of another host is held as long as its beat
 * moves, since flock does not reach over every network file system: LOCK_BEATS_MISSED beats without one, and it may be taken. A job that
 * SLURM has requeued knows that its former self is gone. */
enum { LOCK_BEATS_MISSED = 3 };
LockDecision holder_decide(const char *text, const LockHolder *self, LockSeen seen, double beat_ms);

#ifdef __cplusplus
}
#endif
#endif
