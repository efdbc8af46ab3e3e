/* lock.h - one writer per run folder, with one file system under it for all ranks, and one writer per out= of a verb.
 *
 * <dir>/lock is held by flock(2), and names its holder (lock_holder.h); a thread lets its beat grow. A second job
 * changes nothing in the folder and ends with 73, unless the holder is gone. A holder that only seemed gone, because
 * its host hung, finds another's name in the file: it writes no checkpoint any more and ends with 73, too.
 */
#ifndef TRAIN_GPT_RUN_GUARD_LOCK_H
#define TRAIN_GPT_RUN_GUARD_LOCK_H

#include "comm/comm.h"
#include "run/guard/watchdog.h"

enum { LOCK_BEAT_MS = 10000 };

typedef struct RunLock RunLock; /* rank 0's; NULL elsewhere, where every call does nothing */

/* Collective. Makes dir (rank 0), takes <dir>/lock for this job, checks that every rank reads rank 0's nonce. Waits for
 * the beats of a holder on another host, LOCK_BEATS_MISSED of beat_ms at most. Exit 73 when another job holds the
 * folder (names its host, process and job), 74 when dir cannot be made or written, is not shared (names the hosts), or
 * holds a link or pipe where the run keeps a file, 75 when asked to stop while it waits. */
RunLock *lock_run_folder(const char *dir, Comm *comm, Watchdog *watchdog, double beat_ms);

/* From here on the file names this job, and its beat grows. A job without work never signs: the folder stays as is. */
void lock_sign(RunLock *lock);

/* Whether the folder is still ours, by the file's text now (any thread); whether it is not, by the last such look. */
int  lock_is_held(RunLock *lock);
int  lock_is_lost(const RunLock *lock);
/* Exit 73, naming its holder now. */
NORETURN void lock_fail(const RunLock *lock);

void lock_release(RunLock *lock); /* gives the folder back: no job needs to wait for a beat */

/* LOCK_INTO: the verb writes into the folder `output`, which is made with its parents; the lock is .out.lock in it.
 * LOCK_WHOLE: the verb puts a file or folder of that name in place by a rename; the lock is <output>.lock beside it.
 * LOCK_WITH_PARENTS: the same, and the parents are made. */
typedef enum { LOCK_INTO, LOCK_WHOLE, LOCK_WITH_PARENTS } LockOutput;

/* Takes the output of a verb (key "out") for this process, and signs. lock_release(), fail() and CHECK() remove the lock
 * file, and those folders made here that are empty. Waits for the beats of another host, as lock_run_folder does. Exit
 * 73 when another process holds the output, 74 when the lock cannot be written, 64 when a file of its name is no lock,
 * 75 when asked to stop while it waits. */
RunLock *lock_output(const char *verb, const char *key, const char *output, LockOutput kind);

/* Exit 73 when another host has taken the folder or output over. Called before files get their final names. */
void lock_keep(RunLock *lock);

#endif
