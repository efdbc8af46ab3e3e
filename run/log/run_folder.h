/* run_folder.h - the files of a run folder besides weights and metrics: the config and the printed output. */
#ifndef TRAIN_GPT_RUN_LOG_RUN_FOLDER_H
#define TRAIN_GPT_RUN_LOG_RUN_FOLDER_H

#include "run/config/config.h"

/* Checks run.dir before anything is written. If a file or folder has a name that a run would write, but content of
 * another program, exits with 64 and names it and a free run.dir. Empty files are allowed, because killed starts leave
 * them. Files of other names are allowed. The config file of the user may be in the folder, even as config.json. */
void run_folder_check(const Config *c);
void run_folder_keep_log(const Config *c);    /* copies all later output to log.txt in the run folder */
void run_folder_keep_config(const Config *c); /* writes config.json in the run folder; exit 74 if it cannot */

#endif
