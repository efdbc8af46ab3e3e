/* layout.h - where every parameter element lives: the parameter table, buckets and shards.
 *
 * An element has two coordinates. The *global offset* counts elements of the table's rows one after another without
 * gaps. Files, hashes and seeds use it, and it never depends on the number of ranks. The *memory index* is the place in
 * the parameter memory (masters, moments, gradients, working copy). Rows of a bucket follow one another, each at a
 * multiple of 64 elements, wte followed by its vocabulary padding rows. A bucket is padded to W*q elements, q =
 * 64*ceil(length/(64*W)). Padding is zero and affects nothing.
 *
 * Ranks share in two ways. Tensor ranks cut the rows themselves (Cut): each holds its own slice of every row, of the
 * same size on all of them. Ranks of one state then share that memory: piece r of a bucket is elements [r*q, (r+1)*q)
 * of it. It is what rank r has after a reduce-scatter: its ZeRO shard. layout_spans() translates pieces into runs of
 * elements of one row's slice, layout_extent() translates those into extents of a file.
 *
 * Ranks that divide the experts (parallel.expert) hold whole rows: those of their own experts. These rows are in
 * buckets of their own. Only the ranks with the same experts share the pieces of such a bucket.
 */
#ifndef TRAIN_GPT_CORE_LAYOUT_H
#define TRAIN_GPT_CORE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum { LAYOUT_ALIGN = 64 }; /* elements: 128 bytes of bf16, so every piece is aligned for 128-bit accesses and NCCL */

/* How the optimizer treats a row. It applies weight decay to all groups but vectors. */
typedef enum { GROUP_VECTOR, GROUP_MATRIX, GROUP_EMBEDDING } ParamGroup;

/* How tensor ranks divide a row, in order of rank. CUT_NONE: every rank has all of it. CUT_ROWS: by its (input) rows.
 * CUT_COLUMNS: by its (output) columns. CUT_HEADS: by the columns of each third q, k and v. CUT_VOCABULARY: by the
 * vocabulary, with padding rows at the end. A vector counts as one row. */
typedef enum { CUT_NONE, CUT_ROWS, CUT_COLUMNS, CUT_HEADS, CUT_VOCABULARY } Cut;

typedef struct {            /* one row of the parameter table */
    char    name[64];       /* example: "transformer.h.3.attn.c_attn.weight", as in the files */
    int     dims;
    int64_t dim[2];         /* shape in files                              */
    int     symbol[2];      /* name of each dimension, defined by the caller (model/params.h, Dim) */
    Cut     cut;
    int64_t pad;            /* CUT_VOCABULARY: each tensor rank's rows in memory are a multiple of this; otherwise not
                             * used */
    float   init_mean;      /* initial values: N(init_mean, init_std^2)    */
    float   init_std;
    float rate, matrix_rate; /* factors of the learning rate: `rate` for updates by element, matrix_rate for updates of
                              * whole matrices */
    ParamGroup group;
    size_t  field;          /* offset of the row's Tensor in the view of its bucket (model/params.h) */
    int     bucket;         /* index of the bucket; a bucket's rows are neighbours, except that rows of another bucket
                             * may lie between them */
    int     expert;         /* number of the expert that owns the row, from 1; 0 if none does */
    /* layout_create computes the fields below */
    int64_t elems;          /* elements in files: product of dim           */
    int64_t offset;         /* global offset of element 0                  */
    int64_t local[2];       /* shape in this rank's memory, with padding rows; the second is 1 for a vector */
    int64_t local_elems;    /* elements in this rank's memory without padding; 0 if another rank has this expert */
    int64_t memory;         /* memory index of the row's first element */
} Param;

/* How a rank holds a bucket. BUCKET_OWN: with its masters, which the rank writes to files. BUCKET_TWIN: as a copy whose
 * master another rank has. BUCKET_ELSEWHERE: not at all. */
typedef enum { BUCKET_OWN, BUCKET_TWIN, BUCKET_ELSEWHERE } BucketHold;

typedef struct {
    int64_t memory;         /* memory index of the bucket's first element  */
    int64_t elems;          /* W*q: elements of the bucket in memory, with padding */
    int64_t piece_elems;    /* q: elements of one rank's piece of the bucket */
    int64_t shard;          /* index of this bucket's piece in a rank's shard: the sum of q over earlier buckets */
    int     first_param, params; /* range of params that holds the bucket's rows: those with this bucket's index */
    int     ranks;          /* W: ranks that share the bucket */
    BucketHold hold;
} Bucket;

typedef struct {
    Param  *param;          /* rows of the table; owned [params] */
    int     params;
    Bucket *bucket;         /* owned [buckets] */
    int     buckets;
    int     ranks;          /* W: ranks that share each bucket, except buckets of experts */
    int     tensor_ranks, tensor_rank;
    int     expert_ranks;   /* number of ranks that divide the experts */
    int64_t elems;          /* P: parameters, without padding */
    int64_t memory_elems;   /* elements of the parameter memory: sum of the buckets' elems */
    int64_t shard_elems;    /* elements of this rank's shard: sum of q over the buckets that it owns */
} Layout;

typedef struct {
    int64_t memory;         /* memory index of the first element */
    int64_t shard;          /* index of the first element in its owner's shard */
    int64_t first;          /* index of the span's first element among the elements of its row in this rank's memory */
    int64_t elems;
    int     param;
    ParamGroup group;
} Span;

/* Place of a layout in the grid. `ranks` ranks share the state. `tensor_ranks` divide every dimension that is cut.
 * `expert_ranks` (0 counts as 1) divide the experts, whose rows then have buckets of their own. `expert_rank` is this
 * rank's number among them. hold [buckets] is copied; it is NULL if the rank owns all buckets. */
typedef struct {
    int               ranks, tensor_ranks, tensor_rank;
    const BucketHold *hold;
    int               expert_ranks, expert_rank;
} LayoutPlace;
/* Copies the rows and places them. A bucket with BUCKET_ELSEWHERE takes no memory, and its pieces are empty. */
Layout layout_create(const Param *rows, int params, LayoutPlace place);
void   layout_destroy(Layout *layout);

/* Writes the spans of piece `rank` of `bucket` in memory order: runs of elements of one row, at most layout->params of
 * them. Returns their number: 0 if the piece is all padding or another rank has the master. */
int layout_spans(const Layout *layout, int bucket, int rank, Span *spans);

/* Contiguous elements in a file: `elems` of them, the first at global offset `offset`. layout_extent returns the first
 * such extent of the span's elements from number `at` on. */
typedef struct { int64_t offset, elems; } FileExtent;
FileExtent layout_extent(const Layout *layout, const Span *span, int64_t at);
/* Returns whether the cut divides every row of the matrix. This rank's slice is then not one run of the file. */
static inline int layout_cuts_columns(const Layout *layout, const Param *p) {
    return layout->tensor_ranks > 1 && (p->cut == CUT_COLUMNS || p->cut == CUT_HEADS);
}
/* Returns whether the bucket holds rows of experts while other ranks hold other experts. */
static inline int layout_is_of_experts(const Layout *layout, int bucket) {
    return layout->bucket[bucket].ranks < layout->ranks;
}
/* Returns into how many blocks of columns a row of the file is split before each block is cut by itself. */
static inline int layout_parts(const Param *p) { return p->cut == CUT_HEADS ? 3 : 1; }

#endif
