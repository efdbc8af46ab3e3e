/* weights.h - the weights of a model as Hugging Face stores them: in one .safetensors file, or in several that an index
 * lists. They are read block by block as fp32.
 *
 * A fault ends the program and names the file: exit 65 for a fault in the file, exit 74 for a system error.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_H
#define TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_H

#include <math.h>

#include "core/error.h"
#include "core/layout.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/safetensors.h"

#define WEIGHTS_SINGLE "model.safetensors"
#define WEIGHTS_INDEX  "model.safetensors.index.json"

/* --- one file ----------------------------------------------------------------------------------------------------- */

enum { WEIGHTS_BLOCK = 1 << 22 };  /* elements read at a time: 16 MiB of fp32 */

typedef struct {
    char       *path;              /* path of the file; owned */
    int         fd;
    Safetensors header;            /* owned; the parsed header of the file */
} WeightsFile;

WeightsFile weights_open(const char *path);
void        weights_close(WeightsFile *w);

/* Returns 1 if values of this type can be read: F64, F32, F16 and BF16. */
int     weights_has_values(const SafeTensor *t);
int64_t weights_elems(const SafeTensor *t);
/* Reads elements [first, first + elems) of a tensor as fp32, with all threads. elems is at most WEIGHTS_BLOCK. */
void    weights_read(const WeightsFile *w, const SafeTensor *t, int64_t first, int64_t elems, float *out);
/* Reads elements of a span (rows or columns of a matrix that a rank holds), from index `at` of the span on. begin:
 * offset of the tensor in the model's flat order. Reads whole rows of the file, and copies the columns of this rank to
 * values. Returns the number of elements, at most WEIGHTS_BLOCK. values has space for twice as many, because its second
 * half receives the whole rows. */
int64_t weights_read_span(const WeightsFile *w, const SafeTensor *t, int64_t begin, const Layout *layout,
                          const Span *span, int64_t at, float *values);

/* Returns the index of the first of n values that is not finite, or n if all are. */
int64_t weights_finite(const float *value, int64_t n);
/* Ends the program with exit 65. The message names an element of a tensor that has no finite value in fp32. */
NORETURN void weights_refuse_element(const WeightsFile *w, const SafeTensor *t, int64_t element);

/* --- statistics --------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t elems, nans, infs;
    double  squares, least, most; /* sum of squares and range of the finite values; least and most are NaN if there are
                                   * none */
} WeightsStats;

static inline WeightsStats weights_stats_none(void) { return (WeightsStats){.least = NAN, .most = NAN}; }
/* Returns the statistics of a tensor whose values can be read. The result does not depend on the number of threads. */
WeightsStats weights_stats(const WeightsFile *w, const SafeTensor *t);
void         weights_stats_add(WeightsStats *a, const WeightsStats *b); /* adds the statistics b to a */
double       weights_norm(const WeightsStats *s);

typedef struct {
    int64_t elems, differ;     /* number of elements compared; number of those whose bits differ */
    int64_t nans;              /* number of differing elements with a NaN in at least one of the two tensors */
    double  most;              /* largest absolute difference |a - b| of two elements */
    double  squares, of;       /* sums of (a - b)^2 and of a^2; the relative difference is sqrt(squares / of) */
} WeightsDiff;

/* Compares two tensors of equal shape whose values can be read. */
WeightsDiff weights_diff(const WeightsFile *wa, const SafeTensor *a, const WeightsFile *wb, const SafeTensor *b);
double      weights_diff_relative(const WeightsDiff *d);

/* --- the files of a model ----------------------------------------------------------------------------------------- */

typedef struct {
    char        *path;      /* owned: path of the file, or of the index */
    char        *folder;    /* owned: folder whose config.json describes the weights; NULL if the path names a
                             * .safetensors file of another name than WEIGHTS_SINGLE */
    WeightsFile *file;      /* [files] the .safetensors files; owned */
    int          files;
    WeightsIndex index;     /* owned: says which file has which tensor; index.tensors is 0 without an index */
} WeightsSet;

/* A tensor of a WeightsSet and the file that holds it. tensor is NULL if it is missing. */
typedef struct {
    const WeightsFile *file;
    const SafeTensor  *tensor;
} WeightsTensor;

/* Opens the weights of a model. path is a file, an index, or a folder. A folder holds model.safetensors, an index, or
 * all files of NAME-00001-of-0000N.safetensors. Any other folder is taken for a run folder, whose newest checkpoint is
 * opened. Exit 65 if a file that an index lists is missing. Refuses a name of the Hugging Face hub that is no path, and
 * weights in another format; the message has the command to type. */
WeightsSet weights_set_open(const char *path);
void       weights_set_close(WeightsSet *set);

/* Returns the folder that holds a model. path is a checkpoint, a run folder (for its newest checkpoint), or another
 * folder with config.json and .safetensors files. Exit 65 if path is none of these. */
Path weights_set_folder(const char *path);

/* Checks the JSON files of a model. path is one of them, or a folder, in which config.json, generation_config.json,
 * tokenizer_config.json and special_tokens_map.json are read if they exist. A file of another name is not read. Exit 65
 * naming file, line and column if one is broken. */
void weights_set_check_json(const char *path);

/* Returns a hash of the sizes of the files and of some of their bytes. */
uint64_t weights_set_fingerprint(const WeightsSet *set);

/* Returns the tensor of exactly this name, in any of the files; its fields are NULL if it is missing. */
WeightsTensor weights_set_find(const WeightsSet *set, const char *name);
/* Returns the tensor of this plain name (its name without the prefix of the model family), in any of the files. */
WeightsTensor weights_set_find_plain(const WeightsSet *set, const char *plain);
/* Returns the number of transformer blocks, counted by the names of the tensors. */
int64_t       weights_set_blocks(const WeightsSet *set);

/* Returns lm_head.weight (the output head) if the files have it in addition to the embedding, but the layout does not.
 * Such a model uses the embedding as its head. */
WeightsTensor weights_set_head(const WeightsSet *set, const Layout *layout);

/* Source of the sizes that tensors are compared with. config: path of a config.json. arch: its kind of model (Arch).
 * With config NULL the sizes are from the config keys of a run. warns: 1 if weights_set_match warns of an index that
 * lists other files than those that hold the tensors. */
typedef struct { const char *config; int arch, warns; } WeightsSizes;

/* Finds the tensor of each parameter of the layout by its plain name (its name without the prefix of the model family).
 * Returns a malloc'ed array [layout->params]. Tensors to ignore (model/hf.h) and weights_set_head() are skipped. If the
 * embedding is not stored, a tied head is used for it. If a tensor is in two files, the one that the index lists is
 * used.
 *
 * Exit 65 for any other extra tensor, a missing one, another shape, or a type other than F64, F32, F16 and BF16. The
 * message names the tensor, what was found and what was expected. With sizes.warns it warns if the index lists other
 * files than those that hold the tensors. */
WeightsTensor *weights_set_match(const WeightsSet *set, const Layout *layout, WeightsSizes sizes);

/* Makes the last check of the weights of a model, after weights_set_match has returned their tensors in tensor_of. Exit
 * 65 if the embedding holds only zeros. Warns, in one line, of other matrices that hold only zeros, and of an adapter
 * next to the weights. If the only file is not called model.safetensors, exit 65 with the command that renames it. */
void weights_set_check_values(const WeightsSet *set, const Layout *layout, const WeightsTensor *tensor_of);

#endif
