/* exchange.h - which elements of the state (weights and optimizer states) a rank writes into a checkpoint, and their
 * copy to host memory while training waits. Used by saves, by copies in memory, and by islands (jobs that train one
 * model together).
 *
 * A rank holds spans of its pieces (core/layout.h). An extent is a range of neighbouring elements in a file. If tensor
 * ranks cut the columns of a matrix, a span covers many short extents, one in each row. The tensor ranks hold columns
 * of the same rows, so they exchange them before a save. Each rank gets some of the rows whole, and a span becomes a
 * few long extents. Rows that all tensor ranks hold are divided among them for writing.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_EXCHANGE_H
#define TRAIN_GPT_RUN_CHECKPOINT_EXCHANGE_H

#include "run/checkpoint/checkpoint.h"

typedef struct {
    FileExtent *extent;           /* [extents] ranges of the file, in the order of the copied elements; owned */
    /* number of extents (ranges of the file); number of elements in all of them together */
    int64_t     extents, elems;
} FileExtents;

/* Returns the extents (ranges) of the file of the masters (fp32 weights) that this rank writes. The extents of each
 * optimizer state are equal to these. Free with free(extents.extent). */
FileExtents exchange_extents(const Shards *z);

/* Collective over the tensor ranks. Copies the elements of all extents (ranges of the file) to `to`: first those of the
 * masters (fp32 weights), then those of each optimizer state. scratch has exchange_scratch_elems elements. Returns when
 * the copy is complete. */
void state_copy(const CheckpointState *state, const FileExtents *extents, float *to, float *scratch);

/* A function that copies the values of a span (part of a parameter) to `to`. The copy may be queued on the stream. */
typedef void (*SpanCopy)(void *ctx, Span span, float *to);
/* Collective over the tensor ranks. Calls copy(ctx) for each span (part of a parameter) that this rank owns. Stores at
 * `to` one value for each element that this rank writes to a checkpoint, in the order of exchange_extents. scratch has
 * exchange_scratch_elems elements. Returns the end of the values. The last copies may still be queued on the stream. */
float *exchange_copy(const Shards *z, Stream *stream, SpanCopy copy, void *ctx, float *to, float *scratch);

/* exchange_most_elems returns the most floats that a rank writes. exchange_scratch_elems returns the floats of scratch
 * memory that an exchange needs. */
int64_t exchange_most_elems(const Layout *layout);
int64_t exchange_scratch_elems(const Layout *layout);

#endif
