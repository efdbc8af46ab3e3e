/* tasks.c - reads files of questions, JSONL or llm.c's hellaswag_val.bin, and keeps them as tokens: see tasks.h. */
#include "run/text/tasks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "data/text_file.h"

/* --- questions ---------------------------------------------------------------------------------------------------- */

/* purpose of an allocation in the message "no memory for ..." */
static const char MEMORY[] = "the questions and tokens of a task";

void task_add_question(Task *t, int32_t gold) {
    t->question = xgrow(t->question, t->questions, sizeof *t->question, MEMORY);
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
    t->text = xgrow(t->text, t->texts, sizeof *t->text, MEMORY);
    if (t->tokens + own > t->token_room)
        t->token = xrealloc(t->token, sizeof *t->token * (size_t)(t->token_room = 2 * (t->tokens + own)), MEMORY);
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

/* --- JSONL: the keys of a line, and its texts as tokens ----------------------------------------------------------- */

/* Texts are divided into tokens like in lm-eval. The tokens that the tokenizer puts before each text come first. White
 * space at the end of the context moves to the continuation. The whole text is encoded. If the context alone has n
 * tokens, the continuation is everything after the first n. Without a context it follows the token of tokenizer_start,
 * unless it begins with that token itself.
 *
 * Tasks of CORE are divided like in nanochat, with a start token first. Choices are the tokens after those that all of
 * them begin with. Contexts are divided before the tokens that all texts end with. A continuation is everything after
 * the tokens of the context. */

enum { MOST_TEXTS = 256, LINE_LIMIT = 1 << 28 /* most bytes of a line */ };

#define fault_is(fault, ...) fault_text(fault, TASK_FAULT_CHARS, 0, __VA_ARGS__)

/* --- tokens ------------------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t *token;
    int64_t  count, scored;
    double   length;
} Text; /* token: owned */

/* Returns the bytes of text without the white space (as in Python's str.isspace) at its end. */
static size_t trimmed(const char *text) {
    size_t           end = 0;
    utf8proc_int32_t c;
    for (size_t at = 0; text[at];) {
        /* json.h ensures that the text is valid UTF-8 */
        at += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + at, -1, &c);
        int is_white = (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
                       (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
                       c == 0x3000;
        if (!is_white) end = at;
    }
    return end;
}

/* Encodes the first `bytes` bytes of a text. Before them comes the start token if has_start. Otherwise the tokens that
 * the tokenizer puts before each text come first, unless the text itself begins with the first of these. */
static int64_t encode(TaskReader reader, const char *text, size_t bytes, int has_start, int32_t **out) {
    const Tokenizer *tokenizer = reader.tokenizer;
    *out = xmalloc(sizeof **out * (tokenizer_most(tokenizer, bytes) + BPE_MOST_BEGIN), "a question of a task");
    int64_t before = has_start ? 1 : tokenizer_begin(tokenizer, *out);
    if (has_start) **out = reader.begin ? reader.begin - 1 : tokenizer_start(tokenizer);
    else if (before > 0) {
        char  *token = tokenizer_special_text(tokenizer, **out);
        size_t own = token ? strlen(token) : 0;
        if (own > 0 && own <= bytes && memcmp(text, token, own) == 0) before = 0;
        free(token);
    }
    return tokenizer_encode(tokenizer, text, bytes, *out + before) + before;
}

/* Returns the tokens of context + delimiter + continuation. scored: how many of them belong to the continuation. */
static Text text_of(const Task *t, TaskReader reader, const char *context, const char *delimiter,
                    const char *continuation) {
    size_t size = strlen(context) + strlen(delimiter) + strlen(continuation) + 1,
           of_context = t->is_core ? strlen(context) : trimmed(context);
    char    *whole = xmalloc(size, "a question of a task");
    int      has_start = t->is_core || of_context == 0;
    int32_t *alone;
    Text     x = {.length = 0};
    for (const char *c = continuation; *c; c++) x.length += ((unsigned char)*c & 0xc0) != 0x80; /* counts characters */
    snprintf(whole, size, "%s%s%s", context, delimiter, continuation);
    int64_t before = encode(reader, whole, of_context, has_start, &alone);
    x.count = encode(reader, whole, size - 1, has_start, &x.token);
    /* drops the start token if the continuation begins with one of its own */
    if (!t->is_core && !*context && x.count > 2 && x.token[1] == x.token[0])
        memmove(x.token, x.token + 1, sizeof *x.token * (size_t)--x.count);
    x.scored = x.count - before;
    free(alone);
    free(whole);
    return x;
}

/* Returns the number of tokens that all texts have in common, at their beginning or at their end. */
static int64_t in_common(const Text *text, int texts, int from_end) {
    for (int64_t n = 0;; n++)
        for (int i = 0; i < texts; i++) {
            const Text *a = &text[0], *b = &text[i];
            if (n >= b->count || n >= a->count) return n;
            if (a->token[from_end ? a->count - 1 - n : n] != b->token[from_end ? b->count - 1 - n : n]) return n;
        }
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

static const char FORMS[] =
    "a line has \"context\", \"choices\" and \"gold\", or \"contexts\", \"continuation\" and \"gold\", or "
    "\"context\" and \"continuation\"";

static int has_only(const cJSON *object, const char *const *keys, char *fault) {
    for (const cJSON *member = object->child; member; member = member->next) {
        int known = 0;
        for (int i = 0; keys[i]; i++) known |= strcmp(member->string, keys[i]) == 0;
        if (!known) return fault_is(fault, "unknown key \"%.60s\": %s", member->string, FORMS);
    }
    return 1;
}

/* Keys of a line of JSON for each kind of task: those of its texts, that of its list of texts, and all that it may
 * have. */
static const struct { const char *text[2], *list, *all[5]; } LINE_KEYS[] = {
    [TASK_CHOICES] = {{"context"}, "choices", {"context", "choices", "gold", "delimiter", NULL}},
    [TASK_CONTEXTS] = {{"continuation"}, "contexts", {"contexts", "continuation", "gold", "delimiter", NULL}},
    [TASK_CONTINUATION] = {{"context", "continuation"}, NULL, {"context", "continuation", "delimiter", NULL}}};

static int check_keys(const cJSON *line, TaskKind kind, char *fault) {
    const cJSON *delimiter = json_member(line, "delimiter");
    const char  *list = LINE_KEYS[kind].list;
    if (kind == TASK_OPEN) return fault_is(fault, "%s", FORMS);
    if (!has_only(line, LINE_KEYS[kind].all, fault)) return 0;
    if (delimiter && !cJSON_IsString(delimiter))
        return fault_is(fault, "\"delimiter\" must be a text in double quotes");
    for (int i = 0; i < 2 && LINE_KEYS[kind].text[i]; i++)
        if (!cJSON_IsString(json_member(line, LINE_KEYS[kind].text[i])))
            return fault_is(fault, "\"%s\" must be a text in double quotes", LINE_KEYS[kind].text[i]);
    if (!list) return 1;
    const cJSON *texts = json_member(line, list), *gold = json_member(line, "gold");
    int          count = cJSON_GetArraySize(texts);
    if (!cJSON_IsArray(texts) || count < 2 || count > MOST_TEXTS)
        return fault_is(fault, "\"%s\" must be a list of 2 to %d texts", list, MOST_TEXTS);
    for (const cJSON *item = texts->child; item; item = item->next)
        if (!cJSON_IsString(item)) return fault_is(fault, "\"%s\" must hold only texts (strings)", list);
    if (!cJSON_IsNumber(gold) || gold->valuedouble != (double)gold->valueint || gold->valueint < 0 ||
        gold->valueint >= count)
        return fault_is(fault, "\"gold\" must be the number of the right entry of \"%s\", 0 to %d", list, count - 1);
    return 1;
}

/* Parses the first line {"task":..,"method":..,"baseline":..}. */
static int parse_head(Task *t, const cJSON *head, char *fault) {
    static const char *const KEYS[] = {"task", "method", "baseline", NULL};
    const cJSON *name = json_member(head, "task"), *method = json_member(head, "method");
    const cJSON *baseline = json_member(head, "baseline");
    if (!has_only(head, KEYS, fault)) return 0;
    if (!cJSON_IsString(name) || !*name->valuestring || strlen(name->valuestring) > 100)
        return fault_is(fault, "\"task\" must be a name of 1 to 100 bytes");
    if (method && (!cJSON_IsString(method) ||
                   (strcmp(method->valuestring, "core") != 0 && strcmp(method->valuestring, "lm-eval") != 0)))
        return fault_is(fault, "\"method\" must be \"lm-eval\" or \"core\"");
    if (baseline && !(cJSON_IsNumber(baseline) && baseline->valuedouble >= 0 && baseline->valuedouble < 1))
        return fault_is(fault, "\"baseline\" must be a number from 0 to below 1");
    t->is_core = t->by_tokens = method && strcmp(method->valuestring, "core") == 0;
    t->baseline = baseline ? baseline->valuedouble : 0;
    free(t->name);
    t->name = xstrdup(name->valuestring, "the name of a task");
    return 1;
}

/* --- a question --------------------------------------------------------------------------------------------------- */

static int add_texts(Task *t, TaskReader reader, const Text *text, int texts, int32_t gold, char *fault) {
    /* The number of tokens to keep is one more than positions, because the last token is no input. For CORE it is
     * positions, as in nanochat. */
    int64_t keep = reader.positions + !t->is_core;
    /* A choice in a task of CORE may be the beginning of another choice. A choice without tokens of its own is never
     * the likeliest. */
    for (int i = 0; i < texts; i++) {
        for (int64_t k = 0; k < text[i].count; k++)
            if (text[i].token[k] >= reader.tokenizer->vocab_size)
                return fault_is(fault,
                                "the tokenizer makes token %d of this text, and the vocabulary of the model ends at "
                                "token %lld: give the tokenizer of the model, or leave this text out",
                                text[i].token[k], (long long)reader.tokenizer->vocab_size - 1);
        if (text[i].scored < 1 && (!t->is_core || t->kind == TASK_CONTINUATION))
            return fault_is(fault, "%s %d has no token of its own after the context: write a text that is not empty",
                            t->kind == TASK_CHOICES ? "choice" : "the continuation of text", i);
        if (text[i].scored >= keep)
            return fault_is(fault, "a continuation of %lld tokens is longer than the %lld positions of the model",
                            (long long)text[i].scored, (long long)reader.positions);
    }
    task_add_question(t, gold);
    for (int i = 0; i < texts; i++)
        task_add_text(t, text[i].token, text[i].count, text[i].scored, text[i].length, keep);
    return 1;
}

static int parse_question(Task *t, TaskReader reader, const cJSON *line, char *fault) {
    TaskKind kind = json_member(line, "choices")        ? TASK_CHOICES
                    : json_member(line, "contexts")     ? TASK_CONTEXTS
                    : json_member(line, "continuation") ? TASK_CONTINUATION
                                                        : TASK_OPEN;
    if (!check_keys(line, kind, fault)) return 0;
    if (t->kind != TASK_OPEN && t->kind != kind)
        return fault_is(fault, "the keys of this question are not those of the lines before: a file holds questions "
                               "with the same keys");
    t->kind = kind;
    Text         text[MOST_TEXTS];
    int          texts = 0;
    const cJSON *delimiter = json_member(line, "delimiter"), *context = json_member(line, "context"), *item = context;
    const char  *between = delimiter ? delimiter->valuestring : "";
    if (LINE_KEYS[kind].list) item = json_member(line, LINE_KEYS[kind].list)->child;
    for (; item; item = LINE_KEYS[kind].list ? item->next : NULL) {
        const cJSON *continuation = kind == TASK_CHOICES ? item : json_member(line, "continuation");
        text[texts++] = text_of(t, reader, kind == TASK_CHOICES ? context->valuestring : item->valuestring, between,
                                continuation->valuestring);
    }
    int64_t common = t->is_core && kind != TASK_CONTINUATION ? in_common(text, texts, kind == TASK_CONTEXTS) : 0;
    for (int i = 0; t->is_core && i < texts; i++) {
        if (kind != TASK_CONTINUATION) text[i].scored = kind == TASK_CONTEXTS ? common : text[i].count - common;
        /* the start token is not scored, because no token predicts it */
        if (text[i].scored == text[i].count) text[i].scored--;
        text[i].length = (double)text[i].scored;
    }
    const cJSON *gold = json_member(line, "gold");
    int          taken = add_texts(t, reader, text, texts, gold ? gold->valueint : 0, fault);
    for (int i = 0; i < texts; i++) free(text[i].token);
    return taken;
}

int task_parse_line(Task *t, TaskReader reader, const char *text, size_t bytes, int is_first,
                    char fault[TASK_FAULT_CHARS]) {
    Json      json;
    JsonFault wrong;
    if (!json_parse(text, bytes, LINE_LIMIT, &json, &wrong))
        return fault_is(fault, "column %d: %s", wrong.at.column, wrong.text);
    int taken = !cJSON_IsObject(json.root)                    ? fault_is(fault, "%s", FORMS)
                : is_first && json_member(json.root, "task") ? parse_head(t, json.root, fault)
                                                              : parse_question(t, reader, json.root, fault);
    json_free(&json);
    return taken;
}

/* --- hellaswag_val.bin of llm.c ----------------------------------------------------------------------------------- */

/* The file hellaswag_val.bin of llm.c has a header of 256 int32: magic, version, number of questions, bytes of the
 * longest question. Each question is uint16: 65535, its bytes with these three words, its number, the index of the
 * right answer, the number of answers. Then come the number of tokens of the context and these tokens, and for each
 * answer the number of its tokens and these. The context has no start token. */
enum { MAGIC = 20240522, VERSION = 1, HEADER = 1024, START = 65535, MOST_ANSWERS = 256 };

static int32_t word32(const unsigned char *data, int i) {
    int32_t value;
    memcpy(&value, data + 4 * i, sizeof value);
    return value;
}

int task_is_hellaswag(const void *data, size_t bytes) {
    return bytes >= HEADER && word32((const unsigned char *)data, 0) == MAGIC;
}

/* A reader of the 16-bit words of a question of hellaswag_val.bin. next() returns -1 at the end. */
typedef struct {
    const unsigned char *data;
    int64_t              words, at;
} Words;
static int32_t next(Words *w) {
    uint16_t value;
    if (w->at >= w->words) return -1;
    memcpy(&value, w->data + 2 * w->at++, sizeof value);
    return value;
}

/* Appends `count` tokens to out. Returns 0 if there are fewer, or if one is not in the vocabulary. */
static int take_tokens(Words *w, int32_t count, int64_t vocab_size, int32_t *out) {
    for (int32_t i = 0; i < count; i++)
        if ((out[i] = next(w)) < 0 || out[i] >= vocab_size) return 0;
    return 1;
}

/* Parses the 16-bit words of a question of hellaswag_val.bin after the first three: the index of the right answer, the
 * number of answers, the texts. Returns NULL, or a phrase with its fault. */
static const char *parse_words(Task *t, TaskReader reader, Words w) {
    int32_t tokens[2 * 65536], gold = next(&w), answers = next(&w), context = next(&w);
    if (context < 0) return "it ends too early";
    if (answers < 2 || answers > MOST_ANSWERS) return "it has no answers to choose from";
    if (gold >= answers) return "the right answer is none of its answers";
    if (context < 1) return "it has no context";
    if (!take_tokens(&w, context, reader.tokenizer->vocab_size, tokens))
        return "its context ends too early, or has ids that the model lacks";
    task_add_question(t, gold);
    for (int32_t i = 0; i < answers; i++) {
        int32_t own = next(&w);
        if (own < 1) return "an answer has no tokens";
        if (!take_tokens(&w, own, reader.tokenizer->vocab_size, tokens + context))
            return "an answer ends too early, or has ids that the model lacks";
        if (own > reader.positions) return "an answer is longer than the model's positions";
        task_add_text(t, tokens, (int64_t)context + own, own, own, reader.positions + 1);
    }
    return w.at == w.words ? NULL : "bytes are left over at its end";
}

int task_parse_hellaswag(Task *t, TaskReader reader, const void *data, size_t bytes, char fault[TASK_FAULT_CHARS]) {
    const unsigned char *head = (const unsigned char *)data;
    if (bytes < HEADER || word32(head, 0) != MAGIC || word32(head, 1) != VERSION || word32(head, 2) < 1)
        return fault_is(fault, "the file does not begin with the header of llm.c's evaluation files of version %d",
                        VERSION);
    int64_t questions = word32(head, 2), longest = word32(head, 3);
    Words   all = {head + HEADER, (int64_t)(bytes - HEADER) / 2, 0};
    t->kind = TASK_CHOICES, t->by_tokens = 1;
    for (int64_t i = 0; i < questions; i++) {
        int64_t     begin = all.at;
        int32_t     start = next(&all), own_bytes = next(&all), number = next(&all);
        const char *wrong = NULL;
        if (start != START || number != (i & 0xffff)) wrong = "it does not begin where it should";
        else if (own_bytes % 2 || own_bytes < 6 || own_bytes > longest || begin + own_bytes / 2 > all.words)
            wrong = "its number of bytes is odd, or more than the file's";
        else wrong = parse_words(t, reader, (Words){all.data + 2 * all.at, own_bytes / 2 - 3, 0});
        if (wrong) return fault_is(fault, "question %lld of %lld: %s", (long long)i, (long long)questions, wrong);
        all.at = begin + own_bytes / 2;
    }
    if (all.at != all.words || (bytes - HEADER) % 2)
        return fault_is(fault, "the header says %lld questions, and more bytes follow after them: the file is damaged",
                        (long long)questions);
    return 1;
}

/* --- a file ------------------------------------------------------------------------------------------------------- */

static const size_t FILE_LIMIT = (size_t)1 << 31;

static void read_lines(Task *t, TaskReader reader, const char *data, size_t bytes) {
    char fault[TASK_FAULT_CHARS];
    if (reader.tokenizer->kind == TOKENIZER_IDS)
        fail(EXIT_CONFIG,
             "%s is text, and the model has token ids only: a tokenizer has to turn the text into ids; name the "
             "model's own, in a run as data.tokenizer=, for eval as tokenizer=",
             t->path);
    int64_t line = 1;
    int     is_first = 1; /* 1 as long as all lines before were blank */
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

Task task_read(const char *path, TaskReader reader) {
    /* the default name: arc_easy for "tasks/arc_easy.jsonl" */
    const char *name = basename(path), *dot = strrchr(name, '.');
    size_t      length = dot && dot > name ? (size_t)(dot - name) : strlen(name);
    char   *data = NULL, fault[TASK_FAULT_CHARS];
    int64_t bytes = (reader.may_be_pipe ? io_read_input : io_read_file)(path, FILE_LIMIT, &data);
    if (bytes < 0)
        fail(bytes == -ENOMEM                    ? EXIT_MEMORY
             : bytes == -EIO || bytes == -EACCES ? EXIT_IO
                                                 : EXIT_DATA,
             "%s: the file of a task cannot be read: %s", path, io_error_text((int)bytes));
    Task t = {.name = xstrndup(name, length, "the name of a task"),
              .path = xstrdup(path, "the name of a task"),
              .fingerprint = XXH3_64bits(data, (size_t)bytes)};
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
