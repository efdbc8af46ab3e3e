/* run_folder.h - what a run keeps in its folder beside weights and metrics: its config, and what it has printed. */
#ifndef TRAIN_GPT_RUN_LOG_RUN_FOLDER_H
#define TRAIN_GPT_RUN_LOG_RUN_FOLDER_H

#include "run/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Refuses a run.dir in which a file or folder of a name that a run writes is another program's, by its content: exit 64
 * with its name and a free run.dir, and nothing is touched. Empty ones are fine, because killed starts leave such. Files
 * of other names may be there. The config that was given may lie there as config.json, and under no name of a log. */
void run_folder_check(const Config *c);
void run_folder_keep_log(const Config *c);    /* from here on */
void run_folder_keep_config(const Config *c); /* exit 74 */

#ifdef __cplusplus
}
#endif
#endif
