/* lock.h - ensures one writer per run folder, one file system under it for all ranks, and one writer per out= of a
 * verb.
 *
 * <dir>/lock is held by flock(2), and names its holder (LockHolder). A thread of the holder increases a number in the
 * file, the beat. A second job changes nothing in the folder and ends with 73, unless the holder is gone. A holder that
 * only seemed gone, because its host hung, finds another name in the file. It writes no checkpoint any more and ends
 * with 73, too.
 */
#ifndef TRAIN_GPT_RUN_GUARD_LOCK_H
#define TRAIN_GPT_RUN_GUARD_LOCK_H

#include <stdint.h>

#include "comm/comm.h"
#include "run/guard/watchdog.h"

enum { LOCK_BEAT_MS = 10000 };

/* A lock that this job holds or wants. It exists on rank 0. Other ranks have NULL, with which every call does
 * nothing. */
typedef struct RunLock RunLock;

/* Collective. Makes dir (rank 0), takes <dir>/lock for this job, and checks that every rank reads what rank 0 writes in
 * dir. If the lock names a holder on another host, waits until that holder has shown no sign of life for
 * LOCK_BEATS_MISSED times beat_ms.
 *   exit 73  another job holds the folder; the message names its host, process and job
 *   exit 74  dir cannot be made or written, is not shared (names the hosts), or holds a link or pipe in place of a file
 *   exit 75  a request to stop came during the wait */
RunLock *lock_run_folder(const char *dir, Comm *comm, Watchdog *watchdog, double beat_ms);

/* Writes the name of this job to the lock file, and starts a thread that shows there that the job lives. A job that has
 * no step to take never calls this, so that the folder stays unchanged. */
void lock_sign(RunLock *lock);

/* lock_is_held reads the file, and returns 1 if this job still holds the folder. Any thread may call it. lock_is_lost
 * returns 1 if the last call of lock_is_held found another job in the file. */
int  lock_is_held(RunLock *lock);
int  lock_is_lost(const RunLock *lock);
/* Ends the job with exit 73, and names the present holder. */
NORETURN void lock_fail(const RunLock *lock);

void lock_release(RunLock *lock); /* gives up the lock, so that the next job can take it at once */

/* Kinds of output of a verb.
 *   LOCK_INTO          the verb writes into the folder `output`, which is made with its parents; lock: .out.lock in it
 *   LOCK_WHOLE         the verb puts a file or folder of that name in place by a rename; lock: <output>.lock
 *   LOCK_WITH_PARENTS  like LOCK_WHOLE, and the parents are made */
typedef enum { LOCK_INTO, LOCK_WHOLE, LOCK_WITH_PARENTS } LockOutput;

/* Takes the output of a verb (key "out") for this process, and writes the name of the process to the lock file.
 * lock_release(), fail() and CHECK() remove the lock file, and the folders made here if they are empty. If the lock
 * names a process on another host, waits until that process has shown no sign of life for LOCK_BEATS_MISSED beats.
 *   exit 64  a file with the name of the lock is no lock        exit 74  the lock cannot be written
 *   exit 73  another process holds the output                   exit 75  a request to stop came during the wait */
RunLock *lock_output(const char *verb, const char *key, const char *output, LockOutput kind);

/* Names a folder of unfinished output. lock_release(), fail() and CHECK() remove it with the lock file. */
void lock_unfinished(RunLock *lock, const char *folder);

/* Ends the program with exit 73 if another host has taken the folder or output over. Called before files get their
 * final names. */
void lock_keep(RunLock *lock);

/* --- the holder, and whether another job may take the folder over ------------------------------------------------- */

/* The identity of a process. The kernel reuses process numbers, but not with the same start on the same boot. */
typedef struct {
    char     host[256];   /* name from gethostname */
    char     boot[64];    /* boot id from /proc; "?": not known */
    int64_t  process;
    uint64_t started;     /* clock ticks from the boot to the start of the process; 0: not known */
    char     job[64];     /* SLURM_JOB_ID, "none" outside of SLURM */
    int64_t  restart;     /* number of times that SLURM has requeued the job */
    uint64_t nonce;       /* random number, drawn each time a job takes the folder */
    uint64_t beat;        /* number that a thread increases while the holder lives */
} LockHolder;

LockHolder holder_self(const char *host);
int        holder_lives(const LockHolder *h); /* returns 1 if the process of h runs; h must be of this host and boot */

/* The text of a lock file has one line for each field of LockHolder. The beat comes last with a fixed number of digits,
 * so that the digits alone can be rewritten. */
enum { HOLDER_TEXT = 768, HOLDER_BEAT_DIGITS = 20 };
/* Writes the text of a lock file to out. Returns its length. */
int holder_format(const LockHolder *h, char out[HOLDER_TEXT]);
/* Reads the text of a lock file into *h. Returns 0 if the text is empty or is no lock. */
int holder_parse(const char *text, LockHolder *h);

/* The observations of a job that wants the folder, since it began to look at the lock file. */
typedef struct {
    int    flocked;   /* 1 if another process has the lock file open and locked, by flock(2) */
    int    no_flock;  /* 1 if the file system has no flock(2): a holder in another container of this host cannot be
                       * seen */
    int    lives;     /* 1 if the process of the holder runs (holder_lives) */
    int    moved;     /* 1 if the lock file has changed since the first look */
    double still_ms;  /* time since the first look, by the clock of this job, because the clocks of hosts may differ */
} LockSeen;
typedef enum { LOCK_TAKE, LOCK_WAIT, LOCK_REFUSE } LockDecision;

/* Decides whether the folder may be taken, by the text of the lock file at the last look. For a lock of this host and
 * boot the kernel knows (holder_lives). Any other lock is held as long as its beat, a number that the holder increases,
 * changes. The reason is that flock does not work over every network file system. Such a lock may be taken after
 * LOCK_BEATS_MISSED beats without a change. A host of this name with another boot id counts as another host, because
 * cloned machines and containers share names. A job that SLURM has requeued takes its former lock at once. A process
 * that was killed counts as dead before it lets go of the lock: one of its threads may still write to a disk. A start
 * waits up to LOCK_ENDING_MS for such a lock. */
enum { LOCK_BEATS_MISSED = 3, LOCK_ENDING_MS = 10000 };
LockDecision holder_decide(const char *text, const LockHolder *self, LockSeen seen, double beat_ms);

#endif
