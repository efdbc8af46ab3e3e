/* tasks.c - see tasks.h. Keeps questions as tokens, and reads a file. */
#include "run/text/tasks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "data/text_file.h"

static const size_t FILE_LIMIT = (size_t)1 << 31;

/* --- questions ---------------------------------------------------------------------------------------------------- */

/* Returns the list with capacity for `more` elements after `used`. *room: its capacity. */
static void *grown(void *list, int64_t used, int64_t more, int64_t *room, size_t element) {
    if (used + more <= *room) return list;
    *room = 2 * (used + more);
    return xrealloc(list, (size_t)*room * element, "the questions and tokens of a task");
}

void task_add_question(Task *t, int32_t gold) {
    t->question = grown(t->question, t->questions, 1, &t->question_room, sizeof *t->question);
    t->question[t->questions++] = (Question){t->texts, 0, gold};
}

void task_add_text(Task *t, const int32_t *tokens, int64_t count, int64_t scored, double length, int64_t keep) {
    Question *q = &t->question[t->questions - 1];
    if (count > keep) tokens += count - keep, count = keep, t->cut++;
    int64_t shared = 0;
    if (q->texts > 0) {
        const TaskText *first = &t->text[q->first];
        while (shared < count && shared < first->own && t->token[first->at + shared] == tokens[shared]) shared++;
    }
    int64_t own = count - shared;
    t->text = grown(t->text, t->texts, 1, &t->text_room, sizeof *t->text);
    t->token = (int32_t *)grown(t->token, t->tokens, own, &t->token_room, sizeof *t->token);
    if (own > 0) memcpy(t->token + t->tokens, tokens + shared, sizeof *tokens * (size_t)own);
    t->text[t->texts++] = (TaskText){t->tokens, (int32_t)shared, (int32_t)own, (int32_t)scored, length};
    t->tokens += own;
    q->texts++;
}

int64_t task_text(const Task *t, const Question *q, int64_t text, int32_t *out) {
    const TaskText *x = &t->text[text];
    if (x->shared > 0) memcpy(out, t->token + t->text[q->first].at, sizeof *out * (size_t)x->shared);
    if (x->own > 0) memcpy(out + x->shared, t->token + x->at, sizeof *out * (size_t)x->own);
    return x->shared + x->own;
}

int64_t task_longest(const Task *t) {
    int64_t most = 1;
    for (int64_t i = 0; i < t->texts; i++)
        if (t->text[i].shared + t->text[i].own - 1 > most) most = t->text[i].shared + t->text[i].own - 1;
    return most;
}

void task_free(Task *t) {
    free(t->name), free(t->path);
    free(t->question), free(t->text), free(t->token);
    *t = (Task){0};
}

/* --- a file ------------------------------------------------------------------------------------------------------- */

static void read_lines(Task *t, TaskReader reader, const char *data, size_t bytes) {
    char fault[TASK_FAULT_CHARS];
    if (reader.tokenizer->kind == TOKENIZER_IDS)
        fail(EXIT_CONFIG,
             "%s is text, and the model has token ids only: a tokenizer has to turn it into them (data.tokenizer, tokenizer=)",
             t->path);
    int64_t line = 1;
    int     is_first = 1; /* all lines before were blank */
    for (const char *end; bytes > 0; line++) {
        end = (const char *)memchr(data, '\n', bytes);
        size_t own = end ? (size_t)(end - data) : bytes, step = end ? own + 1 : own;
        if (own > 0 && data[own - 1] == '\r') own--;
        size_t blank = 0;
        while (blank < own && strchr(" \t\r", data[blank]) && data[blank]) blank++;
        if (blank < own && !task_parse_line(t, reader, data, own, is_first, fault))
            fail(EXIT_DATA, "%s:%lld: %s", t->path, (long long)line, fault);
        if (blank < own) is_first = 0;
        data += step, bytes -= step;
    }
}

/* Returns the default name of a task, malloc'ed: arc_easy for "tasks/arc_easy.jsonl". */
static char *name_of(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    return xstrndup(name, dot && dot > name ? (size_t)(dot - name) : strlen(name), "the name of a task");
}

Task task_read(const char *path, TaskReader reader) {
    char   *data = NULL, fault[TASK_FAULT_CHARS];
    int64_t bytes = (reader.may_be_pipe ? io_read_input : io_read_file)(path, FILE_LIMIT, &data);
    if (bytes < 0)
        fail(bytes == -ENOMEM                    ? EXIT_MEMORY
             : bytes == -EIO || bytes == -EACCES ? EXIT_IO
                                                 : EXIT_DATA,
             "%s: the file of a task cannot be read: %s", path, io_error_text((int)bytes));
    Task t = {.name = name_of(path), .path = xstrdup(path, "the name of a task"), .fingerprint = XXH3_64bits(data, (size_t)bytes)};
    if (!task_is_hellaswag(data, (size_t)bytes)) {
        char   why[TEXT_FILE_FAULT_CHARS];
        size_t clean = (size_t)bytes;
        int    exit_code = text_clean(&data, &clean, FILE_LIMIT, path, why);
        if (exit_code) fail(exit_code, "%s %s", path, why);
        read_lines(&t, reader, data, clean);
    } else if (!task_parse_hellaswag(&t, reader, data, (size_t)bytes, fault)) fail(EXIT_DATA, "%s: %s", path, fault);
    free(data);
    if (t.questions == 0) fail(EXIT_DATA, "%s holds no question", path);
    return t;
}
