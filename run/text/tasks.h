/* tasks.h - files of questions whose answers a model only has to weigh: multiple choice, and texts to go on with.
 *
 * JSONL, a question a line, all of a file of one kind:
 *   {"context":"..","choices":["..",".."],"gold":0}          which continuation is the likeliest?
 *   {"contexts":["..",".."],"continuation":"..","gold":0}    after which context is it?
 *   {"context":"..","continuation":".."}                     is each of its tokens the likeliest?
 * "delimiter":".." stands between context and continuation, and does not count in lengths. A first line
 * {"task":"name","method":"core","baseline":0.25} names the task, and its part in CORE (docs/evaluation.md).
 * And llm.c's hellaswag_val.bin, which holds token ids.
 */
#ifndef TRAIN_GPT_RUN_TEXT_TASKS_H
#define TRAIN_GPT_RUN_TEXT_TASKS_H

#include <stdint.h>

#include "data/encoder.h"

typedef enum { TASK_OPEN, TASK_CHOICES, TASK_CONTEXTS, TASK_CONTINUATION } TaskKind; /* open: no question yet */

/* A text whose last `scored` tokens are weighed. It starts with `shared` tokens of its question's first text. */
typedef struct {
    int64_t at;                   /* of its own tokens */
    int32_t shared, own, scored;
    double  length;               /* what acc_norm divides its sum by: characters, or tokens */
} TaskText;

typedef struct { int64_t first; int32_t texts, gold; } Question;

typedef struct {
    char     *name, *path;        /* owned */
    TaskKind  kind;
    int       is_core;            /* part of CORE; acc_norm is by tokens then, as that of llm.c's file is */
    int       by_tokens;
    double    baseline;           /* what guessing scores */
    Question *question;           /* owned [questions] */
    TaskText *text;               /* owned [texts]     */
    int32_t  *token;              /* owned             */
    int64_t   questions, texts, tokens, question_room, text_room, token_room;
    int64_t   cut;                /* texts that lost tokens on the left: the model has not so many positions */
    uint64_t  fingerprint;        /* of all of it; XXH3 */
} Task;

/* What is needed to turn the texts of a task into tokens: a tokenizer, possibly of ids only, and the positions of the
 * model. begin is 1 + the id of an empty context, or 0 for tokenizer_start(). may_be_pipe: the file is read once, by this
 * process alone. All borrowed. */
typedef struct { const Tokenizer *tokenizer; int64_t positions; int32_t begin; int may_be_pipe; } TaskReader;

/* The task of a file. Exit 65 naming file and line; 64 where it is text and the tokenizer takes none. */
Task task_read(const char *path, TaskReader reader);
void task_free(Task *t);
/* The tokens of a text into out [positions + 1]; returns how many. */
int64_t task_text(const Task *t, const Question *q, int64_t text, int32_t *out);

/* Returns the length in tokens of the longest text of the task. */
int64_t task_longest(const Task *t);

/* Parse one line of JSONL, which may name the task if is_first, or a whole file of llm.c, and add it to *t. Return 1,
 * or 0 with a sentence in fault. */
enum { TASK_FAULT_CHARS = 400 };
int task_parse_line(Task *t, TaskReader reader, const char *text, size_t bytes, int is_first,
                    char fault[TASK_FAULT_CHARS]);
int task_parse_hellaswag(Task *t, TaskReader reader, const void *data, size_t bytes, char fault[TASK_FAULT_CHARS]);
int task_is_hellaswag(const void *data, size_t bytes);

/* For the parsers. A question begins, then its texts follow: count tokens, of which the last `scored` are weighed.
 * keep: so many at most stay, the last ones. */
void task_add_question(Task *t, int32_t gold);
void task_add_text(Task *t, const int32_t *tokens, int64_t count, int64_t scored, double length, int64_t keep);

#endif
