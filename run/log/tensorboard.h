/* tensorboard.h - a run's numbers as an event file for TensorBoard, and for the programs that read its format.
 *
 * <dir>/tb/events.out.tfevents.<seconds>.<host>: one file a process. Each begins with a mark by which readers forget the
 * points at and after a step, so that a resume leaves no stale ones. Points are written once a second, and never end a
 * run: one warning, and what had no room is left out.
 */
#ifndef TRAIN_GPT_RUN_LOG_TENSORBOARD_H
#define TRAIN_GPT_RUN_LOG_TENSORBOARD_H

#include <stdint.h>

typedef struct TensorBoard TensorBoard;
typedef struct { const char *tag; double value; } TensorBoardScalar; /* one that is not finite is left out */

/* Points of the steps after `step` follow; step 0: all. NULL, after a warning, where there can be no such file: every
 * call takes it. time: seconds since 1970. */
TensorBoard *tensorboard_open(const char *dir, int64_t step, double time);
void tensorboard_forget(TensorBoard *t, int64_t step, double time); /* points after `step` are void */
void tensorboard_add(TensorBoard *t, int64_t step, double time, const TensorBoardScalar *scalar, int scalars);
void tensorboard_close(TensorBoard *t);

#endif
