/* version.h - the version of this program and the commit it was built from. */
#ifndef TRAIN_GPT_CORE_VERSION_H
#define TRAIN_GPT_CORE_VERSION_H

const char *program_version(void); /* returns the version and commit: "0.1.0 (commit 1a2b3c4)" */
const char *program_commit(void);  /* returns the git commit from which this program was built */

#endif
