/* stored_model.h - a model that is stored in a folder, opened by the verbs that compute with it: its shape, tokenizer
 * and weights, divided over ranks. The folder describes the model, so the config and data of the run need not be there.
 *
 * The model is opened in steps: stored_find, stored_open, stored_load, stored_close.
 */
#ifndef TRAIN_GPT_RUN_TEXT_STORED_MODEL_H
#define TRAIN_GPT_RUN_TEXT_STORED_MODEL_H

#include "core/io.h"
#include "data/tokenizer.h"
#include "model/model.h"

/* Values of the keys that all verbs with a stored model share (STORED_KEYS in run/verbs/verbs.h). */
typedef struct {
    const char *verb;             /* name of the verb, for messages */
    const char *tokenizer;        /* folder or file of a tokenizer; NULL: the one of the model */
    int64_t     positions;        /* value of positions=; 0: not given */
    MeshSizes   grid;
} StoredKeys;

enum { STORED_ENDS = 64 };
typedef struct {
    StoredKeys  keys;
    char        path[4096];       /* path that the user gave: a folder of a run, or one of weights */
    char        checkpoint[sizeof(Path)]; /* folder of the weights */
    ModelShape  shape;
    int64_t     positions;        /* number of positions to compute with, at most */
    World      *world;            /* owned; NULL: this process has the whole model */
    Groups      groups;           /* owned: groups of ranks; the group `job` is NULL if world is */
    int         is_first;         /* 1 on the rank that prints */
    Tokenizer   tokenizer;        /* owned */
    int32_t     begin;            /* the one token of which an empty prompt consists */
    int32_t     end[STORED_ENDS]; /* [ends] tokens that end a text */
    int         ends;
    Model      *model;            /* owned */
    Arena       memory;           /* owned: memory of the batch `room` */
    Batch       room;             /* buffers of a batch: I32 [B,T], with T the tokens of a sequence on this rank */
} StoredModel;

/* Finds the folder of the weights. `path` is a checkpoint, a run, another folder with weights, or a model.safetensors
 * in one. Reads the shape of the model from its config.json, which has the names of Hugging Face. Checks it against the
 * limits of a config and against the header of the weights, before any memory is allocated. Exit 65 naming file and
 * key. A stored head is used even if config.json calls it tied. Then the shape has a head of its own, and a line on
 * standard error says so. */
void stored_find(StoredModel *m, const char *path);

/* Sets the positions to those of the key positions=, or to `positions` if that is not given. Exit 64 if the model has
 * fewer. With is_of_ranks, divides the model over all ranks of mpirun; exit 64 if they are not as many as the grid has,
 * or cannot share the model.
 *
 * Opens the tokenizer: that of tokenizer=, else that of the checkpoint, else that of the config.json of the run, else
 * the one in the folder of its shards.
 *
 * Takes eos_token_id (a number or a list) and bos_token_id of generation_config.json, else of config.json, else of the
 * tokenizer. Prints a line "VERB: ..." to standard error that names the ids and their files. A second line lists the
 * settings of generation_config.json that are not used. given: keys that the user has set, ended by NULL, whose
 * settings are left out of that line. NULL, for a verb that samples nothing, leaves the whole line out. */
void stored_open(StoredModel *m, int64_t positions, int is_of_ranks, const char *const *given);

/* Returns the number of positions to allocate memory for, at most m->positions, if texts have `tokens` tokens. The
 * number is a multiple of gpt_sample_step(), or with is_doubled a length of gpt_scored_length(). Results are the same
 * as with memory for all positions. */
int64_t stored_room(const StoredModel *m, int64_t tokens, int is_doubled);

/* Makes the model in fp32 for at most B sequences of T tokens, and reads its weights. masks: 1 if documents are masked
 * from each other. Afterwards no algorithm is chosen by timing, because that could change a result. */
void stored_load(StoredModel *m, GptUse use, int64_t B, int64_t T, int masks);
void stored_close(StoredModel *m);

#endif
