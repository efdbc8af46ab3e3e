/* tensorboard.h - writes the numbers of a run as an event file for TensorBoard, and for other programs that read its
 * format.
 *
 * <dir>/tb/events.out.tfevents.<seconds>.<host>: one file for each process. It begins with a mark that makes readers
 * drop the points at and after a step, so that a resume leaves no stale ones. Points are written once a second. A
 * failed write never ends a run. It prints one warning, and points that could not be written are left out.
 */
#ifndef TRAIN_GPT_RUN_LOG_TENSORBOARD_H
#define TRAIN_GPT_RUN_LOG_TENSORBOARD_H

#include <stdint.h>

typedef struct TensorBoard TensorBoard;

/* A number of a run, and its name: the key in metrics.jsonl, or a tag of TensorBoard such as "val/loss". */
typedef struct { const char *name; double value; } Metric;

/* Opens a new file for points of the steps after `step`. time: seconds since 1970. Returns NULL after a warning if the
 * file cannot be made. All other calls accept NULL. */
TensorBoard *tensorboard_open(const char *dir, int64_t step, double time);
/* Writes a mark that makes readers drop the points after `step`. */
void tensorboard_forget(TensorBoard *t, int64_t step, double time);
/* Adds points at a step. Values that are not finite are left out. */
void tensorboard_add(TensorBoard *t, int64_t step, double time, const Metric *metric, int metrics);
void tensorboard_close(TensorBoard *t);

#endif
