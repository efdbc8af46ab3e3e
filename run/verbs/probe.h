/* probe.h - runs another program for a limited time and takes its output. */
#ifndef TRAIN_GPT_RUN_VERBS_PROBE_H
#define TRAIN_GPT_RUN_VERBS_PROBE_H

#include <stddef.h>

enum { PROBE_ABSENT = -1, PROBE_HANGS = -2 }; /* not in PATH; killed with its children after the time limit */

/* Runs argv[0] from PATH for at most `seconds`. Writes the first bytes of its output and errors to out [room]. Returns
 * its exit code, 128 + the signal that ended it, PROBE_ABSENT or PROBE_HANGS. */
int probe(const char *const *argv, double seconds, char *out, size_t room);

#endif
