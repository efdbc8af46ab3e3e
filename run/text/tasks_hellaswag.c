/* tasks_hellaswag.c - reads hellaswag_val.bin of llm.c. It has a header of 256 int32: magic, version, number of
 * questions, bytes of the longest question. Each question is uint16: 65535, its bytes with these three words, its
 * number, the index of the right answer, the number of answers. Then come the number of tokens of the context and these
 * tokens, and for each answer the number of its tokens and these. The context has no start token. */
#include <stdio.h>
#include <string.h>

#include "run/text/tasks.h"

enum { MAGIC = 20240522, VERSION = 1, HEADER = 1024, START = 65535, MOST_ANSWERS = 256 };

static int32_t word32(const unsigned char *data, int i) {
    int32_t value;
    memcpy(&value, data + 4 * i, sizeof value);
    return value;
}

int task_is_hellaswag(const void *data, size_t bytes) {
    return bytes >= HEADER && word32((const unsigned char *)data, 0) == MAGIC;
}

/* A reader of the words of a question. next() returns -1 at the end. */
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

/* Parses the words of a question after its first three. Returns NULL, or a phrase with its fault. */
static const char *parse_question(Task *t, TaskReader reader, Words w) {
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
    if (bytes < HEADER || word32(head, 0) != MAGIC || word32(head, 1) != VERSION || word32(head, 2) < 1) {
        snprintf(fault, TASK_FAULT_CHARS, "no header of llm.c's evaluation files, version %d", VERSION);
        return 0;
    }
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
        else wrong = parse_question(t, reader, (Words){all.data + 2 * all.at, own_bytes / 2 - 3, 0});
        if (wrong) {
            snprintf(fault, TASK_FAULT_CHARS, "question %lld of %lld: %s", (long long)i, (long long)questions, wrong);
            return 0;
        }
        all.at = begin + own_bytes / 2;
    }
    if (all.at != all.words || (bytes - HEADER) % 2) {
        snprintf(fault, TASK_FAULT_CHARS, "bytes are left over after its %lld questions", (long long)questions);
        return 0;
    }
    return 1;
}
