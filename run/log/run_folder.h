/* run_folder.h - what a run keeps in its folder beside weights and metrics: its config, and what it has printed. */
#ifndef TRAIN_GPT_RUN_LOG_RUN_FOLDER_H
#define TRAIN_GPT_RUN_LOG_RUN_FOLDER_H

#include "run/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

void run_folder_check(const Config *c);       /* exit 64 where a log would take the place of the config that was given */
void run_folder_keep_log(const Config *c);    /* from here on */
void run_folder_keep_config(const Config *c); /* exit 74 */

#ifdef __cplusplus
}
#endif
#endif
