/* tokens_json.c - see tokens_json.h. */
#include "data/tokens_json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json.h"

static int is_link(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

int tokens_folder(const char *shard, int is_target, char *folder, size_t capacity) {
    char       *real = is_target && is_link(shard) ? realpath(shard, NULL) : NULL;
    const char *file = is_target ? real : shard, *slash = file ? strrchr(file, '/') : NULL;
    int         bytes = slash ? (int)(slash - file) : 0;
    int         fits = file && snprintf(folder, capacity, "%.*s", slash ? bytes : 1, slash ? file : ".") < (int)capacity;
    free(real);
    return fits;
}

void tokens_json_path(const char *shard, char *path, size_t capacity) {
    char        folder[4200];
    const char *slash = strrchr(shard, '/');
    snprintf(path, capacity, "%.*stokens.json", slash ? (int)(slash - shard) + 1 : 0, shard);
    if (access(path, F_OK) == 0 || !tokens_folder(shard, 1, folder, sizeof folder)) return;
    char there[4300];
    snprintf(there, sizeof there, "%s/tokens.json", folder);
    if (strlen(there) < capacity && access(there, F_OK) == 0) strcpy(path, there);
}

int tokens_json_is_same(const char *a, const char *b) {
    const char *end_a = strrchr(a, '/'), *end_b = strrchr(b, '/');
    size_t      n = end_a ? (size_t)(end_a - a) + 1 : 0, m = end_b ? (size_t)(end_b - b) + 1 : 0;
    return n == m && memcmp(a, b, n) == 0 && !is_link(a) && !is_link(b);
}

/* Reads numbers of the notes of a shard; each that is missing or below 0 becomes NaN. */
static void numbers_beside(const char *shard, const char *const *key, int keys, double *found) {
    char      path[4200], *text;
    Json      json;
    JsonFault fault;
    for (int i = 0; i < keys; i++) found[i] = NAN;
    tokens_json_path(shard, path, sizeof path);
    int64_t bytes = io_read_file(path, TOKENS_JSON_BYTES, &text);
    io_expect_file(path, bytes);
    if (bytes < 0) return;
    if (json_parse(text, (size_t)bytes, TOKENS_JSON_BYTES, &json, &fault)) {
        for (int i = 0; i < keys; i++) {
            const cJSON *member = json_member(json.root, key[i]);
            if (cJSON_IsNumber(member) && member->valuedouble >= 0) found[i] = member->valuedouble;
        }
        json_free(&json);
    }
    free(text);
}

/* Returns a number above 0; NaN if there is none. */
static double number_beside(const char *shard, const char *key) {
    double found;
    numbers_beside(shard, &key, 1, &found);
    return found > 0 ? found : NAN;
}

int tokens_json_counts(const char *shard, int64_t tokens[2]) {
    static const char *const KEYS[] = {"train_tokens", "val_tokens", "vocab_size", "bytes", "bytes_per_token"};
    enum { KEYS_COUNT = sizeof KEYS / sizeof *KEYS };
    double found[KEYS_COUNT];
    numbers_beside(shard, KEYS, KEYS_COUNT, found);
    for (int i = 0; i < KEYS_COUNT; i++)
        if (!(found[i] < 0x1p53)) return 0;
    tokens[0] = (int64_t)found[0], tokens[1] = (int64_t)found[1];
    return 1;
}

double tokens_json_bytes_per_token(const char *shard) { return number_beside(shard, "bytes_per_token"); }

int64_t tokens_json_vocab_size(const char *shard) {
    double size = number_beside(shard, "vocab_size");
    return size <= INT32_MAX ? (int64_t)size : 0;
}

double bits_per_byte(double loss, double bytes_per_token) { return loss / 0.69314718055994530942 / bytes_per_token; }
