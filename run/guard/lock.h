/* lock.h - ensures one writer per run folder, one file system under it for all ranks, and one writer per out= of a
 * verb.
 *
 * <dir>/lock is held by flock(2), and names its holder (lock_holder.h). A thread increases its beat. A second job
 * changes nothing in the folder and ends with 73, unless the holder is gone. A holder that only seemed gone, because
 * its host hung, finds another name in the file. It writes no checkpoint any more and ends with 73, too.
 */
#ifndef TRAIN_GPT_RUN_GUARD_LOCK_H
#define TRAIN_GPT_RUN_GUARD_LOCK_H

#include "comm/comm.h"
#include "run/guard/watchdog.h"

enum { LOCK_BEAT_MS = 10000 };

typedef struct RunLock RunLock; /* on rank 0; NULL elsewhere, where every call does nothing */

/* Collective. Makes dir (rank 0), takes <dir>/lock for this job, and checks that every rank reads the nonce of rank 0.
 * Waits for beats of a holder on another host, at most LOCK_BEATS_MISSED times beat_ms.
 *   exit 73  another job holds the folder; the message names its host, process and job
 *   exit 74  dir cannot be made or written, is not shared (names the hosts), or holds a link or pipe in place of a file
 *   exit 75  a request to stop came during the wait */
RunLock *lock_run_folder(const char *dir, Comm *comm, Watchdog *watchdog, double beat_ms);

/* Writes the name of this job to the file, and starts its beat. A job without work never signs, so that the folder
 * stays unchanged. */
void lock_sign(RunLock *lock);

/* lock_is_held reads the file, and returns 1 if this job still holds the folder. Any thread may call it. lock_is_lost
 * returns 1 if that was not so at the last such look. */
int  lock_is_held(RunLock *lock);
int  lock_is_lost(const RunLock *lock);
/* Ends the job with exit 73, and names the present holder. */
NORETURN void lock_fail(const RunLock *lock);

void lock_release(RunLock *lock); /* gives the folder back, so that the next job does not wait for beats */

/* Kinds of output of a verb.
 *   LOCK_INTO          the verb writes into the folder `output`, which is made with its parents; lock: .out.lock in it
 *   LOCK_WHOLE         the verb puts a file or folder of that name in place by a rename; lock: <output>.lock
 *   LOCK_WITH_PARENTS  like LOCK_WHOLE, and the parents are made */
typedef enum { LOCK_INTO, LOCK_WHOLE, LOCK_WITH_PARENTS } LockOutput;

/* Takes the output of a verb (key "out") for this process, and signs. lock_release(), fail() and CHECK() remove the lock
 * file, and the folders made here if they are empty. Waits for beats of another host like lock_run_folder.
 *   exit 64  a file with the name of the lock is no lock        exit 74  the lock cannot be written
 *   exit 73  another process holds the output                   exit 75  a request to stop came during the wait */
RunLock *lock_output(const char *verb, const char *key, const char *output, LockOutput kind);

/* Ends the program with exit 73 if another host has taken the folder or output over. Called before files get their
 * final names. */
void lock_keep(RunLock *lock);

#endif
