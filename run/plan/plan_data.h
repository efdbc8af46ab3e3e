/* plan_data.h - the lines of a plan about data and disk. Missing data are no fault: a plan comes before the data. */
#ifndef TRAIN_GPT_RUN_PLAN_PLAN_DATA_H
#define TRAIN_GPT_RUN_PLAN_PLAN_DATA_H

#include "run/plan/plan.h"

/* "1.88 M", "12.3 k"; below ten thousand a plain number. */
PlanText plan_count_text(double value);

/* Files, tokens, samples and epochs of data.train, of a blend of each source, as far as it is there. */
void plan_print_data(const Config *config);

/* The checkpoints that lie there at once, of so many bytes each; DISK_HERE: beside the free space for run.dir. */
typedef enum { DISK_HERE, DISK_ELSEWHERE } PlanDisk;
void plan_print_disk(const Config *config, double checkpoint_bytes, PlanDisk where);

#endif
