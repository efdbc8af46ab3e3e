/* plan_data.h - the lines of a plan about data and disk. Missing data are not a fault, because a plan can come before
 * the data.
 */
#ifndef TRAIN_GPT_RUN_PLAN_PLAN_DATA_H
#define TRAIN_GPT_RUN_PLAN_PLAN_DATA_H

#include "run/plan/plan.h"

/* Returns "1.88 M", "12.3 k"; below ten thousand a plain number. */
ShortText plan_count_text(double value);

/* Prints files, tokens, samples and epochs of data.train, or of each source of a blend, as far as the files exist. */
void plan_print_data(const Config *config);

/* Prints how many checkpoints of `checkpoint_bytes` exist at once. DISK_HERE: with the free space for run.dir. */
typedef enum { DISK_HERE, DISK_ELSEWHERE } PlanDisk;
void plan_print_disk(const Config *config, double checkpoint_bytes, PlanDisk where);

#endif
