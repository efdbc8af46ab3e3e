/* lock_holder.h - reads the holder of a run folder from its lock file, and decides whether another job may take the
 * folder over. For lock.c. Its only I/O asks for this host and its processes. */
#ifndef TRAIN_GPT_RUN_GUARD_LOCK_HOLDER_H
#define TRAIN_GPT_RUN_GUARD_LOCK_HOLDER_H

#include <stdint.h>

/* The identity of a process. The kernel reuses process numbers, but not with the same start on the same boot. */
typedef struct {
    char     host[256];   /* name from gethostname */
    char     boot[64];    /* boot id from /proc; "?": not known */
    int64_t  process;
    uint64_t started;     /* clock ticks from the boot to the start of the process; 0: not known */
    char     job[64];     /* SLURM_JOB_ID, "none" outside of SLURM */
    int64_t  restart;     /* number of times that SLURM has requeued the job */
    uint64_t nonce;       /* drawn each time a job takes the folder */
    uint64_t beat;        /* increases while the holder lives */
} LockHolder;

LockHolder holder_self(const char *host);
int        holder_lives(const LockHolder *h); /* returns 1 if the process runs; h: of this host and boot */

/* The text of the file has one line for each field. The beat comes last with a fixed number of digits, so that the
 * digits alone can be rewritten. */
enum { HOLDER_TEXT = 768, HOLDER_BEAT_DIGITS = 20 };
int holder_format(const LockHolder *h, char out[HOLDER_TEXT]); /* returns the length */
int holder_parse(const char *text, LockHolder *h);             /* returns 0 if text is empty or no lock */

/* The observations so far of a job that wants the folder. */
typedef struct {
    int    flocked;   /* another process has the file open and locked, by flock(2) */
    int    no_flock;  /* the file system has no flock(2): a holder in another container of this host cannot be seen */
    int    lives;     /* result of holder_lives */
    int    moved;     /* the file has changed since the first look */
    double still_ms;  /* time since the first look, by the clock of this job, because the clocks of hosts may differ */
} LockSeen;
typedef enum { LOCK_TAKE, LOCK_WAIT, LOCK_REFUSE } LockDecision;

/* Decides whether the folder may be taken, by the text of the lock file at the last look. For a lock of this host and
 * boot the kernel knows (holder_lives). Any other lock is held as long as its beat changes, because flock does not work
 * over every network file system. It may be taken after LOCK_BEATS_MISSED beats without a change. A host of this name
 * with another boot id counts as another host, because cloned machines and containers share names. A job that SLURM has
 * requeued takes its former lock at once. */
enum { LOCK_BEATS_MISSED = 3 };
LockDecision holder_decide(const char *text, const LockHolder *self, LockSeen seen, double beat_ms);

#endif
