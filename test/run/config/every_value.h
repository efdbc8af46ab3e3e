/* every_value.h - a JSON text in which each value in turn is replaced, is missing, or is there twice. */
#ifndef TRAIN_GPT_TEST_RUN_EVERY_VALUE_H
#define TRAIN_GPT_TEST_RUN_EVERY_VALUE_H

#include <cjson/cJSON.h>

/* Finds the n-th value below `item`, counted depth first, and sets *parent to what contains it. Returns NULL if there
 * are fewer. *n counts down during the search. */
static inline cJSON *value_at(cJSON *item, int *n, cJSON **parent) {
    for (cJSON *child = item->child; child; child = child->next) {
        *parent = item;
        if ((*n)-- == 0) return child;
        cJSON *found = value_at(child, n, parent);
        if (found) return found;
    }
    return NULL;
}

static inline void without(cJSON *parent, cJSON *value) { cJSON_Delete(cJSON_DetachItemViaPointer(parent, value)); }
static inline void twice(cJSON *parent, cJSON *value) {
    cJSON *copy = cJSON_Duplicate(value, 1);
    if (cJSON_IsObject(parent)) cJSON_AddItemToObject(parent, value->string, copy);
    else                        cJSON_AddItemToArray(parent, copy);
}

/* Makes texts from a JSON text, each with one value replaced, missing, or given twice. Calls attempt(text, ctx) for
 * each. Returns the number of texts. */
static inline int every_value(const char *text, void (*attempt)(char *text, void *ctx), void *ctx) {
    static const char *const others[] = {"null",
                                         "true",
                                         "0",
                                         "-1",
                                         "1.5",
                                         "1e300",
                                         "4294967297",
                                         "9007199254740993",
                                         "\"\"",
                                         "\"x\"",
                                         "\"-1\"",
                                         "\"00\"",
                                         "\"9007199254740993\"",
                                         "\"9223372036854775808\"",
                                         "\"18446744073709551615\"",
                                         "\"184467440737095516160\"",
                                         "\"0123456789abcdef\"",
                                         "\"../x\"",
                                         "[]",
                                         "{}",
                                         "[1]",
                                         "[\"0\",\"1\"]",
                                         "[\"0\",\"1\",2]",
                                         "{\"a\":1}",
                                         "[[]]"};
    enum { OTHERS = sizeof others / sizeof *others };
    int    count = 0;
    for (int n = 0;; n++)
        for (int o = 0; o < OTHERS + 2; o++) {
            int    left = n;
            cJSON *root = cJSON_Parse(text), *parent = NULL, *value = value_at(root, &left, &parent);
            if (!value) return cJSON_Delete(root), count;
            if (o == OTHERS) without(parent, value);
            else if (o > OTHERS) twice(parent, value);
            else if (cJSON_IsObject(parent)) cJSON_ReplaceItemInObjectCaseSensitive(parent, value->string, cJSON_Parse(others[o]));
            else cJSON_ReplaceItemViaPointer(parent, value, cJSON_Parse(others[o]));
            char *changed = cJSON_PrintUnformatted(root);
            attempt(changed, ctx);
            cJSON_free(changed);
            cJSON_Delete(root);
            count++;
        }
}

#endif
