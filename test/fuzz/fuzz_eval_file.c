/* fuzz_eval_file.c - any bytes as a file of questions: in llm.c's format if they begin like it, else as lines of JSON.
 * An accepted file is consistent: every text has tokens of the vocabulary, and at most as many scored tokens as it has
 * tokens to predict. */
#include <stdlib.h>
#include <string.h>

#include "run/text/tasks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { POSITIONS = 24 };

static void judge(const Task *t) {
    int32_t ids[POSITIONS + 1];
    for (int64_t i = 0; i < t->questions; i++) {
        const Question *q = &t->question[i];
        if (q->texts < 1 || q->gold < 0 || q->gold >= q->texts || q->first + q->texts > t->texts) abort();
        for (int64_t k = q->first; k < q->first + q->texts; k++) {
            const TaskText *x = &t->text[k];
            int64_t         count = (int64_t)x->shared + x->own;
            if (count < 1 || count > POSITIONS + 1 || x->scored < 0 || x->scored >= count ||
                (x->scored == 0 && !t->is_core))
                abort();
            if (task_text(t, q, k, ids) != count) abort();
            for (int64_t n = 0; n < count; n++)
                if (ids[n] < 0 || ids[n] > 255) abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const Tokenizer tokenizer = {.kind = TOKENIZER_BYTES, .vocab_size = 256};
    TaskReader             reader = {&tokenizer, POSITIONS};
    Task                   t = {0};
    char                   fault[TASK_FAULT_CHARS] = "";
    const char            *text = (const char *)data;
    int                    taken = 1;
    if (task_is_hellaswag(data, bytes)) {
        taken = task_parse_hellaswag(&t, reader, data, bytes, fault);
    } else {
        for (int64_t line = 1; bytes > 0 && taken; line++) {
            const char *end = (const char *)memchr(text, '\n', bytes);
            size_t      own = end ? (size_t)(end - text) : bytes, step = end ? own + 1 : own;
            taken = task_parse_line(&t, reader, text, own, line == 1, fault);
            text += step, bytes -= step;
        }
    }
    if (taken) judge(&t);
    else if (!fault[0] || !memchr(fault, 0, sizeof fault)) abort();
    task_free(&t);
    return 0;
}
