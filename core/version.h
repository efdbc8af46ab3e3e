/* version.h - which program this is. */
#ifndef TRAIN_GPT_CORE_VERSION_H
#define TRAIN_GPT_CORE_VERSION_H

const char *program_version(void); /* "0.1.0 (commit 1a2b3c4)" */
const char *program_commit(void);  /* commit from which this program was built */

#endif
