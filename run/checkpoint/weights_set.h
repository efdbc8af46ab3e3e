/* weights_set.h - the weights of a model as Hugging Face stores them: in one .safetensors file, or in several that an
 * index lists. Faults end the program as in weights_file.h.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_SET_H
#define TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_SET_H

#include "core/layout.h"
#include "run/checkpoint/weights_file.h"
#include "run/checkpoint/weights_index.h"

#define WEIGHTS_SINGLE "model.safetensors"
#define WEIGHTS_INDEX  "model.safetensors.index.json"

typedef struct {
    char        *path;      /* owned: path of the file, or of the index */
    char        *folder;    /* owned: folder whose config.json describes the weights; NULL for a named file of another name */
    WeightsFile *file;      /* owned [files] */
    int          files;
    WeightsIndex index;     /* owned: file of each tensor; index.tensors is 0 without an index */
} WeightsSet;

/* A tensor of the set. tensor is NULL if it is missing. */
typedef struct {
    const WeightsFile *file;
    const SafeTensor  *tensor;
} WeightsTensor;

/* Opens weights. path is a file, an index, or a folder. A folder holds one of the two, or all files of
 * NAME-00001-of-0000N.safetensors; else it is a run folder, whose newest checkpoint is opened. Exit 65 if a file that
 * an index lists is missing. A name of the Hugging Face hub that is no path, and weights in another format, are refused
 * with the command to type. */
WeightsSet weights_set_open(const char *path);
void       weights_set_close(WeightsSet *set);

/* Writes the folder of a model into out [capacity]: a checkpoint, the newest one of a run folder, or any other folder
 * with config.json and such weights. Exit 65 if path is none of these. */
void weights_set_folder(const char *path, char *out, size_t capacity);

/* Exit 65 naming file, line and column if a JSON file of a model is broken. path is the file, or the folder of a model.
 * In a folder it reads config.json, generation_config.json, tokenizer_config.json and special_tokens_map.json if they
 * exist. A file of another name is not read. */
void weights_set_check_json(const char *path);

/* Returns a hash of the sizes of the files and of samples of their content. */
uint64_t weights_set_fingerprint(const WeightsSet *set);

/* Returns the tensor of exactly this name, in any of the files. */
WeightsTensor weights_set_find(const WeightsSet *set, const char *name);
/* Returns the tensor of this plain name (model/hf.h), in any of the files. */
WeightsTensor weights_set_find_plain(const WeightsSet *set, const char *plain);
/* Returns the number of blocks, by the names of the tensors. */
int64_t       weights_set_blocks(const WeightsSet *set);

/* Returns lm_head.weight if it is stored beside the embedding and the layout has no row for it. */
WeightsTensor weights_set_head(const WeightsSet *set, const Layout *layout);

/* Source of the sizes that tensors are compared with: the path of a config.json and its kind of model (Arch), or with
 * config NULL the config keys of a run. warns: see weights_set_match. */
typedef struct { const char *config; int arch, warns; } WeightsSizes;

/* Finds the tensor of each parameter row by its plain name. Returns a malloc'ed array [layout->params]. Tensors to
 * ignore (model/hf.h) and weights_set_head() are skipped. If the embedding is not stored, a tied head is used for
 * it. If a tensor is in two files, the one that the index lists is used.
 *
 * Exit 65 naming tensor, found and expected: for any other extra tensor, a missing one, another shape, or a type other
 * than F64, F32, F16 and BF16. With sizes.warns it warns if the index lists other files than those that hold the
 * tensors. */
WeightsTensor *weights_set_match(const WeightsSet *set, const Layout *layout, WeightsSizes sizes);

/* The last check of a folder's weights. Exit 65 if the embedding holds nothing but zeros. Warns, in one line, of other
 * matrices that do, and of an adapter beside the weights. Exit 65 with the command that renames the file if the only file
 * has another name than WEIGHTS_SINGLE. tensor_of is what weights_set_match has returned. */
void weights_set_check_values(const WeightsSet *set, const Layout *layout, const WeightsTensor *tensor_of);

#endif
