/* stored_model.h - opens a checkpoint for the verbs that compute with it: shape, tokenizer, and the division of the
 * model over ranks. The folder describes the model, so the config and data of the run need not be there. */
#ifndef TRAIN_GPT_RUN_TEXT_STORED_MODEL_H
#define TRAIN_GPT_RUN_TEXT_STORED_MODEL_H

#include "data/tokenizer.h"
#include "model/model.h"

/* Returns the shape in the config.json of a checkpoint folder, which has the names of Hugging Face. Checks it against
 * the limits of a config and against the header of the weights, before any memory is allocated. Exit 65 naming file and
 * key. A stored head is used even if config.json calls it tied. Then the shape has a head of its own, and a line on
 * standard error says so. */
ModelShape stored_shape(const char *checkpoint);

/* The ids that begin a text and those that end it. */
enum { STORED_ENDS = 64 };
typedef struct {
    int32_t begin;              /* only token of an empty prompt                                             */
    int32_t end[STORED_ENDS];   /* [ends] tokens that end a text                                             */
    int     ends;
} StoredEnds;
/* Returns eos_token_id (a number or a list) and bos_token_id of generation_config.json, else of config.json, else of
 * the tokenizer. If `prints`, writes a line "VERB: ..." to standard error that names the ids and their files. A second
 * line lists the settings of generation_config.json that are not used. given: keys that the user has set, ended by
 * NULL, whose settings are left out of that line. NULL, for a verb that samples nothing, leaves the whole line out. */
StoredEnds stored_ends(const char *verb, const char *checkpoint, const Tokenizer *tokenizer, int64_t vocab_size,
                       const char *const *given, int prints);
/* Returns the tokenizer: from the folder or file `asked` (NULL if not given), else that of the checkpoint, else that of
 * the config.json of the run, else the one beside its shards. */
Tokenizer  stored_tokenizer(const char *asked, const char *run, const char *checkpoint, int64_t vocab_size);
/* Exit 64, naming the verb, if `ranks` is not the number of ranks of the grid, or they cannot share the model and
 * sequences of T tokens. */
void       stored_refuse_grid(const char *verb, ModelShape shape, int64_t T, MeshSizes grid, int ranks);
/* Returns the positions to compute with: `asked`, the key positions=, or `positions` if that is 0 (not given). Exit 64
 * if the model has fewer. */
int64_t    stored_positions(const char *verb, int64_t asked, int64_t positions, ModelShape shape);
/* Returns the number of positions to allocate memory for, at most `positions`, if texts have `tokens` tokens. The
 * number is a whole number of gpt_sample_step(), or with is_doubled a length of gpt_scored_length(). Results are the
 * same as with memory for all positions. */
int64_t    stored_room(int64_t positions, int64_t tokens, int is_doubled, const Groups *groups);
/* Returns the spec of the model in fp32, for at most B sequences of T tokens. groups NULL: one rank. */
ModelSpec  stored_spec(GptUse use, ModelShape shape, int64_t B, int64_t T, const Groups *groups);

#endif
