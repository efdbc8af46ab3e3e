/* tokens_json.c - see tokens_json.h. */
#include "data/tokens_json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"

void tokens_json_path(const char *shard, char *path, size_t capacity) {
    const char *slash = strrchr(shard, '/');
    snprintf(path, capacity, "%.*stokens.json", slash ? (int)(slash - shard) + 1 : 0, shard);
}

int tokens_json_is_same(const char *a, const char *b) {
    const char *end_a = strrchr(a, '/'), *end_b = strrchr(b, '/');
    size_t      n = end_a ? (size_t)(end_a - a) + 1 : 0, m = end_b ? (size_t)(end_b - b) + 1 : 0;
    return n == m && memcmp(a, b, n) == 0;
}

/* A number above 0; NaN: there is none. */
static double number_beside(const char *shard, const char *key) {
    char      path[4200], *text;
    Json      json;
    JsonFault fault;
    double    found = NAN;
    tokens_json_path(shard, path, sizeof path);
    int64_t bytes = io_read_file(path, TOKENS_JSON_BYTES, &text);
    io_expect_file(path, bytes);
    if (bytes < 0) return NAN;
    if (json_parse(text, (size_t)bytes, TOKENS_JSON_BYTES, &json, &fault)) {
        const cJSON *member = json_member(json.root, key);
        if (cJSON_IsNumber(member) && member->valuedouble > 0) found = member->valuedouble;
        json_free(&json);
    }
    free(text);
    return found;
}

double tokens_json_bytes_per_token(const char *shard) { return number_beside(shard, "bytes_per_token"); }

int64_t tokens_json_vocab_size(const char *shard) {
    double size = number_beside(shard, "vocab_size");
    return size <= INT32_MAX ? (int64_t)size : 0;
}

double bits_per_byte(double loss, double bytes_per_token) { return loss / 0.69314718055994530942 / bytes_per_token; }
