/* weights_set.h - a model's weights as Hugging Face stores them: one .safetensors file, or the several that an index
 * names. Faults end the program as in weights_file.h.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_SET_H
#define TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_SET_H

#include "core/layout.h"
#include "run/checkpoint/weights_file.h"
#include "run/checkpoint/weights_index.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEIGHTS_SINGLE "model.safetensors"
#define WEIGHTS_INDEX  "model.safetensors.index.json"

typedef struct {
    char        *path;      /* owned: of the file, or of the index */
    char        *folder;    /* owned: the folder whose config.json describes them; NULL: a file of another name */
    WeightsFile *file;      /* owned [files] */
    int          files;
    WeightsIndex index;     /* owned: which file each tensor is in; tensors 0: there is no index */
} WeightsSet;

/* One of the set's tensors; tensor NULL: there is none. */
typedef struct {
    const WeightsFile *file;
    const SafeTensor  *tensor;
} WeightsTensor;

/* path: a file; an index; a folder that holds one of the two, or all of NAME-00001-of-0000N.safetensors, or else a
 * run folder, whose newest checkpoint is taken. Every file that an index names must be there: exit 65. A name that
 * is no path, but may be one of the Hugging Face hub, and a folder of weights in another format are refused with the
 * way out. */
WeightsSet weights_set_open(const char *path);
void       weights_set_close(WeightsSet *set);

/* The folder of a model, into out [capacity]: a checkpoint, the newest one of a run folder, or any other with
 * config.json and such weights. Else exit 65. */
void weights_set_folder(const char *path, char *out, size_t capacity);

/* Of sizes, and samples of what the files hold. */
uint64_t weights_set_fingerprint(const WeightsSet *set);

/* The tensor of just this name, in any of the files. */
WeightsTensor weights_set_find(const WeightsSet *set, const char *name);
/* The tensor of this plain name (model/hf_gpt2.h), in any of the files. */
WeightsTensor weights_set_find_plain(const WeightsSet *set, const char *plain);
/* The number of blocks that the tensors' names count. */
int64_t       weights_set_blocks(const WeightsSet *set);

/* lm_head.weight, if it is stored, the layout has no row for it, and the embedding is stored, too. */
WeightsTensor weights_set_head(const WeightsSet *set, const Layout *layout);

/* Who gave the sizes that tensors are compared with: config.json of a kind (Arch) of model; config NULL: the keys of
 * a run. */
typedef struct { const char *config; int arch, warns; } WeightsSizes;

/* tensor_of[p] = the tensor of parameter row p, by its plain name. Tensors that carry nothing (model/hf_gpt2.h) and
 * weights_set_head() are passed over. A tied head stands for the embedding, where that is not stored. Of a tensor
 * that is in two files the index' counts. Any other extra tensor, a missing one, another shape, or a type that is
 * not F64, F32, F16 or BF16: exit 65 naming tensor, found and expected. sizes.warns: warns of an index that names
 * other files than those that hold the tensors. Returns a malloc'ed array [layout->params]. */
WeightsTensor *weights_set_match(const WeightsSet *set, const Layout *layout, WeightsSizes sizes);

#ifdef __cplusplus
}
#endif
#endif
