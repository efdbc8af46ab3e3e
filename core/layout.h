/* layout.h - where every parameter element lives: the parameter table, buckets and shards.
 *
 * Two coordinates. The *global offset* counts elements of the table's rows one after another without gaps: files,
 * hashes and seeds use it, it never depends on the number of ranks. The *memory index* is the place in the parameter
 * memory (masters, moments, gradients, working copy): rows of a bucket one after another, each at a multiple of 64
 * elements, wte followed by its vocabulary padding rows, then room up to W*q with q = 64*ceil(length/(64*W)). Padding
 * is zero and reaches nothing.
 *
 * Piece r of a bucket is [r*q, (r+1)*q) of its memory: rank r's part after a reduce-scatter, its ZeRO shard.
 * layout_spans() turns pieces into runs of elements that are contiguous in both coordinates.
 */
#ifndef TRAIN_GPT_CORE_LAYOUT_H
#define TRAIN_GPT_CORE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LAYOUT_ALIGN = 64 }; /* elements: 128 bytes of bf16, so every piece is aligned for 128-bit accesses and NCCL */

/* How the optimizer treats a row. Weight decay is for all but vectors. */
typedef enum { GROUP_VECTOR, GROUP_MATRIX, GROUP_EMBEDDING } ParamGroup;

typedef struct {            /* one row of the parameter table */
    char    name[64];       /* "transformer.h.3.attn.c_attn.weight", as in the files */
    int     dims;
    int64_t dim[2];         /* shape in files                              */
    int64_t memory_rows;    /* dim[0] and the padding rows after it        */
    float   init_mean;      /* init: N(init_mean, init_std^2)              */
    float   init_std;
    ParamGroup group;
    size_t  field;          /* offset of its Tensor in its bucket's view (model/params.h) */
    int     bucket;         /* rows of a bucket are neighbours, buckets ascend */
    /* computed by layout_create */
    int64_t elems;          /* product of dim                              */
    int64_t offset;         /* global offset of element 0                  */
    int64_t memory;         /* memory index of element 0                   */
} Param;

typedef struct {
    int64_t memory;         /* memory index of the bucket's first element  */
    int64_t elems;          /* W*q: the bucket's room                      */
    int64_t piece_elems;    /* q                                           */
    int64_t shard;          /* index of this bucket's piece in a rank's shard: the sum of q over earlier buckets */
    int     first_param, params;
} Bucket;

typedef struct {
    Param  *param;          /* owned */
    int     params;
    Bucket *bucket;         /* owned */
    int     buckets;
    int     ranks;          /* W */
    int64_t elems;          /* P: parameters, without padding */
    int64_t memory_elems;   /* sum of the buckets' rooms      */
    int64_t shard_elems;    /* sum of q                       */
} Layout;

typedef struct {
    int64_t memory;         /* memory index of the first element */
    int64_t shard;          /* index of it in its owner's shard  */
    int64_t offset;         /* its global offset                 */
    int64_t elems;
    int     param;
    ParamGroup group;
} Span;

/* Copies the rows and places them for `ranks` ranks. */
Layout layout_create(const Param *rows, int params, int ranks);
void   layout_destroy(Layout *layout);

/* Spans of piece `rank` of `bucket`, in memory order, at most layout->params of them; returns how many (0 = all
 * padding). */
int layout_spans(const Layout *layout, int bucket, int rank, Span *spans);

const Param *layout_find(const Layout *layout, const char *name); /* NULL if absent */

#ifdef __cplusplus
}
#endif
#endif
