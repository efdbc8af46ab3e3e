/* probe.h - another program run for what it prints, for a few seconds at most. */
#ifndef TRAIN_GPT_RUN_VERBS_PROBE_H
#define TRAIN_GPT_RUN_VERBS_PROBE_H

#include <stddef.h>

enum { PROBE_ABSENT = -1, PROBE_HANGS = -2 }; /* not in PATH; killed, with what it had started, after its time */

/* Runs argv[0] of PATH. The first bytes of its output and errors go to out [room]. Returns its exit code, 128 + the
 * signal that ended it, or one of the above. */
int probe(const char *const *argv, double seconds, char *out, size_t room);

#endif
