/* version.c - the version of this program. The commit is that of git when make built the program. */
#include "core/version.h"

#define VERSION "0.1.0"
#ifndef GIT_COMMIT
#define GIT_COMMIT "unknown"
#endif

const char *program_version(void) { return VERSION " (commit " GIT_COMMIT ")"; }
const char *program_commit(void) { return GIT_COMMIT; }
