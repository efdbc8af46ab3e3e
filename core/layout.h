/* layout.h - where every parameter element is in memory and in files: the parameter table, buckets and shards.
 *
 * An element has two coordinates. The *global offset* counts the elements of all parameters one after another without
 * gaps. Files, hashes and seeds use it, and it never depends on the number of ranks. The *memory index* is the place in
 * the parameter memory (masters, moments, gradients, working copy). Parameters of a bucket follow one another, each at
 * a multiple of 64 elements, wte followed by its vocabulary padding rows. A bucket that W ranks share is padded to W*q
 * elements, q = 64*ceil(length/(64*W)). Padding is zero and affects nothing.
 *
 * Ranks divide parameters in two ways. Tensor ranks cut each parameter (Cut): each rank holds its own slice of every
 * parameter, of the same size on all of them. Ranks that share masters and moments then divide that memory: piece r of
 * a bucket is elements [r*q, (r+1)*q) of it. It is what rank r has after a reduce-scatter: its ZeRO shard.
 * layout_spans() translates pieces into runs of elements of one parameter, layout_extent() translates those into
 * extents of a file.
 *
 * Ranks that divide the experts (parallel.expert) hold whole parameters: those of their own experts. These are in
 * buckets of their own. Only the ranks with the same experts share the pieces of such a bucket.
 */
#ifndef TRAIN_GPT_CORE_LAYOUT_H
#define TRAIN_GPT_CORE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum { LAYOUT_ALIGN = 64 }; /* alignment of memory in elements: 128 bytes of bf16, so that each rank's shard of a bucket
                             * suits 128-bit accesses and NCCL */

/* How the optimizer treats a parameter. It applies weight decay to all groups but vectors. */
typedef enum { GROUP_VECTOR, GROUP_MATRIX, GROUP_EMBEDDING } ParamGroup;

/* How tensor-parallel ranks divide a parameter, in order of rank. CUT_NONE: every rank has all of it. CUT_ROWS: by its
 * (input) rows. CUT_COLUMNS: by its (output) columns. CUT_HEADS: by the columns of q, of k and of v, each third by
 * itself. CUT_VOCABULARY: by the vocabulary, with padding rows at the end. A vector counts as one row. */
typedef enum { CUT_NONE, CUT_ROWS, CUT_COLUMNS, CUT_HEADS, CUT_VOCABULARY } Cut;

typedef struct {            /* one parameter: a row of the parameter table */
    char    name[64];       /* name of the parameter in files, such as "transformer.h.3.attn.c_attn.weight" */
    int     dims;
    int64_t dim[2];         /* shape of the parameter in files */
    int     symbol[2];      /* symbol of each dimension, such as DIM_V for the vocabulary, from an enum of the caller
                             * (Dim, model/params.h) */
    Cut     cut;
    int64_t pad;            /* CUT_VOCABULARY: the number of rows of each tensor rank in memory is a multiple of this;
                             * not used for other cuts */
    float   init_mean;      /* initial values: N(init_mean, init_std^2)    */
    float   init_std;
    float rate, matrix_rate; /* factors of the learning rate: `rate` for elementwise updates (AdamW), matrix_rate for
                              * updates of whole matrices (Muon) */
    ParamGroup group;
    size_t  field;          /* byte offset of the parameter's Tensor in the struct of its bucket's tensors
                             * (model/params.h) */
    int     bucket;         /* index of the bucket that holds the parameter. A bucket's parameters are neighbours in the
                             * table, except that those of another bucket may lie between them */
    int     expert;         /* number of the expert that owns the parameter, from 1; 0 if none does */
    /* layout_create computes this field and all fields after it */
    int64_t elems;          /* elements of the parameter in files: product of dim */
    int64_t offset;         /* position in files of element 0, counted in elements over all parameters */
    int64_t local[2];       /* shape of the parameter in this rank's memory, with padding rows; the second is 1 for a
                             * vector */
    int64_t local_elems;    /* elements in this rank's memory without padding; 0 if another rank has this expert */
    int64_t memory;         /* index of the parameter's first element in this rank's parameter memory */
} Param;

/* How a rank holds a bucket of parameters. BUCKET_OWN: the weights and their fp32 masters, which the rank writes to
 * files. BUCKET_TWIN: a copy of the weights, whose masters another rank has. BUCKET_ELSEWHERE: nothing. */
typedef enum { BUCKET_OWN, BUCKET_TWIN, BUCKET_ELSEWHERE } BucketHold;

typedef struct {
    int64_t memory;         /* index of the bucket's first element in this rank's parameter memory */
    int64_t elems;          /* elements of the bucket in memory, with padding: ranks * piece_elems */
    int64_t piece_elems;    /* elements of one rank's piece (ZeRO shard) of the bucket */
    int64_t shard;          /* index of this bucket's piece in this rank's shard: the sum of piece_elems over the
                             * earlier buckets that the rank owns */
    int     first_param, params; /* range in the parameter table that holds the bucket's parameters: those with this
                                  * bucket's index */
    int     ranks;          /* number of ranks that share the bucket, one piece each */
    BucketHold hold;
} Bucket;

typedef struct {
    Param  *param;          /* [params] the parameter table; owned */
    int     params;
    Bucket *bucket;         /* [buckets] groups of parameters that are communicated together; owned */
    int     buckets;
    int     ranks;          /* number of ranks that share each bucket, except buckets of experts */
    int     tensor_ranks, tensor_rank;
    int     expert_ranks;   /* number of ranks that divide the experts (parallel.expert) */
    int64_t elems;          /* number of parameter elements of the model, without padding */
    int64_t memory_elems;   /* elements of the parameter memory: sum of the buckets' elems */
    int64_t shard_elems;    /* elements of this rank's shard: sum of piece_elems over the buckets that it owns */
} Layout;

typedef struct {
    int64_t memory;         /* index of the first element of the span (a run of elements of one parameter) in this
                             * rank's parameter memory */
    int64_t shard;          /* index of the first element of the span in the ZeRO shard of the rank that owns it */
    int64_t first;          /* index of the first element of the span within its parameter, as this rank's memory holds
                             * the parameter */
    int64_t elems;
    int     param;
    ParamGroup group;
} Span;

/* This rank's place among the ranks that divide the parameters. `ranks` ranks share masters and moments. `tensor_ranks`
 * divide every dimension that is cut. `expert_ranks` (0 counts as 1) divide the experts, whose parameters then have
 * buckets of their own. `expert_rank` is this rank's number among them. hold [buckets] is copied; it is NULL if the
 * rank owns all buckets. */
typedef struct {
    int               ranks, tensor_ranks, tensor_rank;
    const BucketHold *hold;
    int               expert_ranks, expert_rank;
} LayoutPlace;
/* Copies the parameter table `rows` and computes where each parameter is. A bucket with BUCKET_ELSEWHERE takes no
 * memory, and its pieces are empty. */
Layout layout_create(const Param *rows, int params, LayoutPlace place);
void   layout_destroy(Layout *layout);

/* Writes the spans (runs of elements of one parameter) of piece `rank` of `bucket`, in memory order. There are at most
 * layout->params. Returns their number: 0 if the piece is all padding or another rank has the masters. */
int layout_spans(const Layout *layout, int bucket, int rank, Span *spans);

/* Contiguous elements in a file: `elems` of them, the first at element `offset` of all parameters. layout_extent
 * returns the extent that begins with the span's element number `at`. */
typedef struct { int64_t offset, elems; } FileExtent;
FileExtent layout_extent(const Layout *layout, const Span *span, int64_t at);
/* Returns whether tensor ranks divide the matrix by columns. This rank's slice is then not contiguous in the file. */
static inline int layout_cuts_columns(const Layout *layout, const Param *p) {
    return layout->tensor_ranks > 1 && (p->cut == CUT_COLUMNS || p->cut == CUT_HEADS);
}
/* Returns whether the bucket holds parameters of experts while other ranks hold other experts. */
static inline int layout_is_of_experts(const Layout *layout, int bucket) {
    return layout->bucket[bucket].ranks < layout->ranks;
}
/* Returns into how many blocks of columns (q, k, v) a row of the parameter is split before each block is divided among
 * the tensor ranks. */
static inline int layout_parts(const Param *p) { return p->cut == CUT_HEADS ? 3 : 1; }

#endif
