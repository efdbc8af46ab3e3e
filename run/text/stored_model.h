/* stored_model.h - a checkpoint as the verbs that compute with it open it: shape, tokenizer, and the model's place on a
 * grid of ranks. The folder describes the model, so neither the run's config nor its data need be there. */
#ifndef TRAIN_GPT_RUN_TEXT_STORED_MODEL_H
#define TRAIN_GPT_RUN_TEXT_STORED_MODEL_H

#include "data/tokenizer.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The model of a checkpoint's folder: config.json, with Hugging Face's names, its sizes within the limits of a run's
 * config, and the header of the weights compared with them before any memory is taken. Exit 65 naming file and key.
 * A stored head is used where config.json calls it tied, too: then the shape has a head of its own, and a line on
 * standard error says so. */
ModelShape stored_shape(const char *checkpoint);

/* The ids that texts begin after and end with, and where that is written. */
enum { STORED_ENDS = 64 };
typedef struct {
    int32_t begin;              /* an empty prompt's only token                                              */
    int32_t end[STORED_ENDS];   /* any of them ends a text                                                   */
    int     ends;
} StoredEnds;
/* eos_token_id, a number or a list, and bos_token_id of generation_config.json, else of config.json, else the
 * tokenizer's own. Prints one line on standard error, "VERB: ...", that names them and the files; and, for a verb
 * that draws, one of the settings of generation_config.json that it does not use. given: as of hf_generation_unused;
 * NULL: the verb draws nothing. prints: this rank does. */
StoredEnds stored_ends(const char *verb, const char *checkpoint, const Tokenizer *tokenizer, int64_t vocab_size,
                       const char *const *given, int prints);
/* `asked`, a tokenizer's folder or file, else the tokenizer of the checkpoint, else that of the run's config.json, else
 * the one beside its shards. asked NULL: not asked for. */
Tokenizer  stored_tokenizer(const char *asked, const char *run, const char *checkpoint, int64_t vocab_size);
/* Exit 64, in the name of a verb, where `ranks` are not those that share the model and sequences of T tokens, or
 * cannot. */
void       stored_refuse_grid(const char *verb, ModelShape shape, int64_t T, MeshSizes grid, int ranks);
/* The positions to compute with: `asked`, the key positions= (0: not given), else `positions`. Exit 64 where the
 * model has fewer. */
int64_t    stored_positions(const char *verb, int64_t asked, int64_t positions, ModelShape shape);
/* Positions that texts of so many tokens need memory for, at most `positions`: whole steps of sampling; is_doubled:
 * one of the lengths that scored texts are computed at. The same numbers come out as with memory for all positions. */
int64_t    stored_room(int64_t positions, int64_t tokens, int is_doubled, const Groups *groups);
/* The model in fp32, for B sequences of T tokens at most. groups NULL: one rank. */
ModelSpec  stored_spec(GptUse use, ModelShape shape, int64_t B, int64_t T, const Groups *groups);

#ifdef __cplusplus
}
#endif
#endif
