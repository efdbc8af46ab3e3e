/* tasks.h - files of questions that a model answers by the probability of texts: multiple choice, and continuations.
 *
 * JSONL, one question a line, all questions of a file of one kind:
 *   {"context":"..","choices":["..",".."],"gold":0}          which continuation is the likeliest?
 *   {"contexts":["..",".."],"continuation":"..","gold":0}    after which context is it?
 *   {"context":"..","continuation":".."}                     is each of its tokens the likeliest?
 * "delimiter":".." is the text between context and continuation, and does not count in lengths. A first line
 * {"task":"name","method":"core","baseline":0.25} names the task, and makes it a task of CORE (docs/evaluation.md).
 * hellaswag_val.bin of llm.c, which holds token ids, is read, too.
 */
#ifndef TRAIN_GPT_RUN_TEXT_TASKS_H
#define TRAIN_GPT_RUN_TEXT_TASKS_H

#include <stdint.h>

#include "data/tokenizer.h"

/* TASK_OPEN: the task has no question yet */
typedef enum { TASK_OPEN, TASK_CHOICES, TASK_CONTEXTS, TASK_CONTINUATION } TaskKind;

/* A text whose last `scored` tokens are scored. It starts with `shared` tokens of the first text of its question. */
typedef struct {
    int64_t at;                   /* index in Task.token of the text's first own token, after the shared ones */
    int32_t shared, own, scored;
    /* number of characters or tokens, by which acc_norm divides the sum of log probabilities */
    double  length;
} TaskText;

typedef struct { int64_t first; int32_t texts, gold; } Question;

typedef struct {
    char     *name, *path;        /* owned */
    TaskKind  kind;
    int       is_core;            /* 1 if the task belongs to the benchmark CORE (docs/evaluation.md) */
    int       by_tokens;          /* 1: acc_norm divides by tokens (CORE, hellaswag_val.bin of llm.c) */
    double    baseline;           /* score that guessing gives */
    Question *question;           /* owned [questions]: the questions of the task */
    TaskText *text;               /* owned [texts]: the texts of all questions */
    int32_t  *token; /* owned [tokens]: tokens of all texts, without those shared with the first text of a question */
    int64_t   questions, texts, tokens, token_room;
    int64_t   cut;                /* texts that lost tokens on the left, because the model has fewer positions */
    uint64_t  fingerprint;        /* XXH3 hash of the whole task */
} Task;

/* Settings to turn the texts of a task into tokens: a tokenizer (borrowed), possibly of ids only, and the positions of
 * the model. begin is 1 + the id of an empty context, or 0 for tokenizer_start(). may_be_pipe: the file is read once,
 * by this process only. */
typedef struct { const Tokenizer *tokenizer; int64_t positions; int32_t begin; int may_be_pipe; } TaskReader;

/* Reads the task of a file. Exit 65 naming file and line; 64 if the file is text and the tokenizer reads none. */
Task task_read(const char *path, TaskReader reader);
void task_free(Task *t);
/* Writes the tokens of a text to out [positions + 1]. Returns their number. */
int64_t task_text(const Task *t, const Question *q, int64_t text, int32_t *out);

/* Returns the length in tokens of the longest text of the task. */
int64_t task_longest(const Task *t);

/* Parse text and add its questions to *t. task_parse_line reads one line of JSONL, which may name the task if is_first.
 * task_parse_hellaswag reads a whole file of llm.c. Both return 1, or 0 with a sentence in fault. */
enum { TASK_FAULT_CHARS = 400 };
int task_parse_line(Task *t, TaskReader reader, const char *text, size_t bytes, int is_first,
                    char fault[TASK_FAULT_CHARS]);
int task_parse_hellaswag(Task *t, TaskReader reader, const void *data, size_t bytes, char fault[TASK_FAULT_CHARS]);
int task_is_hellaswag(const void *data, size_t bytes);

/* Functions that parsers of tasks call. task_add_question begins a question, and task_add_text adds one of its texts:
 * count tokens, of which the last `scored` are scored. keep: at most so many tokens are kept, the last ones. */
void task_add_question(Task *t, int32_t gold);
void task_add_text(Task *t, const int32_t *tokens, int64_t count, int64_t scored, double length, int64_t keep);

#endif
