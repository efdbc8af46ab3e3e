/* lock.h - one writer per run folder, and one file system under it for all ranks. */
#ifndef TRAIN_GPT_RUN_LOCK_H
#define TRAIN_GPT_RUN_LOCK_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { int fd; } RunLock; /* rank 0's; -1 elsewhere. The lock lives as long as the process. */

/* Makes dir (rank 0), takes <dir>/lock for this job, and sees that every rank finds rank 0's nonce in it.
 * Exit 73 when another job holds it (names its host and process), 74 when dir cannot be made or is not shared (names the hosts). */
RunLock lock_run_folder(const char *dir, Comm *comm);

/* Writes into the lock who holds it, for people; a job that finds nothing to do leaves the folder as it is. */
void lock_sign(RunLock lock, const char *dir, Comm *comm);

#ifdef __cplusplus
}
#endif
#endif
