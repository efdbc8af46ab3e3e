/* lock_holder.h - the holder of a run folder, by its lock file, and whether another job may take it over. For lock.c;
 * its only I/O asks about this host and its processes. */
#ifndef TRAIN_GPT_RUN_GUARD_LOCK_HOLDER_H
#define TRAIN_GPT_RUN_GUARD_LOCK_HOLDER_H

#include <stdint.h>

/* The identity of a process: its number is given again, but not with the same start on the same boot. */
typedef struct {
    char     host[256];   /* from gethostname */
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

/* The file's text: a line a field, the beat's digits last and always as many, so that they alone can be written
 * anew. */
enum { HOLDER_TEXT = 768, HOLDER_BEAT_DIGITS = 20 };
int holder_format(const LockHolder *h, char out[HOLDER_TEXT]); /* returns its length */
int holder_parse(const char *text, LockHolder *h);             /* returns 0 if the text is empty or not a lock's */

/* The observations so far of the job that wants the folder. */
typedef struct {
    int    flocked;   /* another process has the file open and locked, by flock(2) */
    int    no_flock;  /* the file system has no flock(2): a holder in another container of this host cannot be seen */
    int    lives;     /* holder_lives */
    int    moved;     /* the file has changed since the first look */
    double still_ms;  /* since then, by this job's own clock: hosts need not agree on the time */
} LockSeen;
typedef enum { LOCK_TAKE, LOCK_WAIT, LOCK_REFUSE } LockDecision;

/* Decides whether the folder may be taken, by the text of the lock file at the last look. For a lock of this host and
 * boot the kernel knows (holder_lives). Any other lock is held as long as its beat changes, because flock does not work
 * over every network file system. It may be taken after LOCK_BEATS_MISSED beats without a change. A host of this name
 * with another boot id counts as another host, because cloned machines and containers share names. A job that SLURM has
 * requeued takes its own former lock at once. */
enum { LOCK_BEATS_MISSED = 3 };
LockDecision holder_decide(const char *text, const LockHolder *self, LockSeen seen, double beat_ms);

#endif
