/* stored_model.h - a checkpoint as the verbs that compute with it open it: shape, tokenizer, and the model's place on a
 * grid of ranks. The folder describes the model, so neither the run's config nor its data need be there. */
#ifndef TRAIN_GPT_RUN_TEXT_STORED_MODEL_H
#define TRAIN_GPT_RUN_TEXT_STORED_MODEL_H

#include "data/tokenizer.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From the checkpoint's config.json, with Hugging Face's names. */
ModelShape stored_shape(const char *checkpoint);
/* `asked`, a tokenizer's folder or file, else the tokenizer of the checkpoint, else that of the run's config.json, else
 * the one beside its shards. asked NULL: not asked for. */
Tokenizer  stored_tokenizer(const char *asked, const char *run, const char *checkpoint, int64_t vocab_size);
/* Prints the tokens that stand before each text, and the file that says so, on standard error. */
void       stored_say_begin(const char *verb, const Tokenizer *t);
/* Exit 64, in the name of a verb, where `ranks` are not those that share the model and sequences of T tokens, or
 * cannot. */
void       stored_refuse_grid(const char *verb, ModelShape shape, int64_t T, MeshSizes grid, int ranks);
/* The model in fp32, for B sequences of T tokens at most. groups NULL: one rank. */
ModelSpec  stored_spec(GptUse use, ModelShape shape, int64_t B, int64_t T, const Groups *groups);

#ifdef __cplusplus
}
#endif
#endif
