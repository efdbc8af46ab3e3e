/* tokens_json.c - see tokens_json.h. */
#include "data/tokens_json.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/format.h"
#include "data/shard.h"

static int is_link(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

int tokens_folder(const char *shard, int is_target, char *folder, size_t capacity) {
    char       *real = is_target && is_link(shard) ? realpath(shard, NULL) : NULL;
    const char *file = is_target ? real : shard, *slash = file ? strrchr(file, '/') : NULL;
    int fits = file && snprintf(folder, capacity, "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".") <
                           (int)capacity;
    free(real);
    return fits;
}

/* Returns how many bytes of a path are its folder, with the slash. */
static int folder_bytes(const char *path) { return (int)(basename(path) - path); }

void tokens_json_path(const char *shard, char *path, size_t capacity) {
    char folder[4200];
    snprintf(path, capacity, "%.*stokens.json", folder_bytes(shard), shard);
    if (access(path, F_OK) == 0 || !tokens_folder(shard, 1, folder, sizeof folder)) return;
    char there[4300];
    snprintf(there, sizeof there, "%s/tokens.json", folder);
    if (strlen(there) < capacity && access(there, F_OK) == 0) strcpy(path, there);
}

int tokens_json_is_same(const char *a, const char *b) {
    int n = folder_bytes(a);
    return n == folder_bytes(b) && memcmp(a, b, (size_t)n) == 0 && !is_link(a) && !is_link(b);
}

/* Ends the job because a tokens.json cannot be read. Otherwise training on the shards in its folder would skip the
 * checks that it allows. */
NORETURN static void refuse(const char *path, const char *why) {
    fail(EXIT_DATA, "%s %s. To use the shards without this check: rm %s; or make the shards and this file again: "
         "./train_gpt tokenize TEXT out=FOLDER", path, why, shell_word(path).text);
}

/* Numbers in a tokens.json. A number that is missing in the file is NaN. */
typedef struct { double vocab_size, train_tokens, val_tokens, bytes, bytes_per_token; } Notes;

/* Returns the number under a key of tokens.json, NaN if the key is missing. Refuses a value that is no number from
 * least to most. */
static double number_of(const Json *json, const char *path, const char *key, double least, double most, int is_whole) {
    const cJSON *member = json_member(json->root, key);
    char         why[160];
    double       v = member ? member->valuedouble : NAN;
    if (!member || (cJSON_IsNumber(member) && v >= least && v <= most && (!is_whole || v == floor(v)))) return v;
    snprintf(why, sizeof why, "is damaged: its %s is no %s of at least %g", key, is_whole ? "whole number" : "number",
             least);
    refuse(path, why);
}

/* Reads the tokens.json that belongs to a shard. Returns 0 if there is none. */
static int read_notes(const char *shard, Notes *notes) {
    const double WHOLE = 9007199254740992.0; /* 2^53, up to which a double holds every whole number */
    char         path[4200], why[2 * sizeof path], *text;
    struct stat  st;
    Json         json;
    JsonFault    fault;
    tokens_json_path(shard, path, sizeof path);
    int64_t bytes = io_read_file(path, TOKENS_JSON_BYTES, &text);
    io_expect_file(path, bytes);
    if (bytes < 0 && lstat(path, &st) < 0) return 0;
    snprintf(why, sizeof why, "cannot be read: %s", bytes < 0 ? io_error_text((int)bytes) : "");
    if (bytes == -EIO || bytes == -ENOMEM) fail(bytes == -EIO ? EXIT_IO : EXIT_MEMORY, "%s %s", path, why);
    if (bytes < 0) refuse(path, why);
    if (!json_parse(text, (size_t)bytes, TOKENS_JSON_BYTES, &json, &fault)) {
        snprintf(why, sizeof why, "is damaged: line %d: %.240s", fault.at.line, fault.text);
        shell_name_file(why, sizeof why, path);
        refuse(path, why);
    }
    if (!cJSON_IsObject(json.root)) refuse(path, "is damaged: it is no JSON object");
    *notes = (Notes){.vocab_size = number_of(&json, path, "vocab_size", 1, INT32_MAX, 1),
                     .train_tokens = number_of(&json, path, "train_tokens", 0, WHOLE, 1),
                     .val_tokens = number_of(&json, path, "val_tokens", 0, WHOLE, 1),
                     .bytes = number_of(&json, path, "bytes", 0, WHOLE, 1),
                     .bytes_per_token = number_of(&json, path, "bytes_per_token", DBL_MIN, 1e9, 0)};
    json_free(&json);
    free(text);
    return 1;
}

double tokens_json_bytes_per_token(const char *shard) {
    Notes notes;
    return read_notes(shard, &notes) ? notes.bytes_per_token : NAN;
}

int64_t tokens_json_vocab_size(const char *shard) {
    Notes notes;
    return read_notes(shard, &notes) && !isnan(notes.vocab_size) ? (int64_t)notes.vocab_size : 0;
}

int tokens_json_counts(const char *shard, int64_t tokens[2]) {
    Notes n;
    if (!read_notes(shard, &n) || isnan(n.vocab_size + n.train_tokens + n.val_tokens + n.bytes + n.bytes_per_token))
        return 0;
    tokens[0] = (int64_t)n.train_tokens, tokens[1] = (int64_t)n.val_tokens;
    return 1;
}

/* Returns the number of tokens in FOLDER/SPLIT_000000.bin, FOLDER/SPLIT_000001.bin and so on; -1 if one of them is no
 * llm.c shard. FOLDER is that of notes_path. */
static int64_t tokens_of(const char *notes_path, const char *split) {
    int64_t tokens = 0;
    for (int i = 0;; i++) {
        char        path[4300], fault[SHARD_FAULT_CHARS];
        uint8_t     start[16];
        ShardHeader header;
        snprintf(path, sizeof path, "%.*s%s_%06d.bin", folder_bytes(notes_path), notes_path, split, i);
        int64_t bytes = io_file_bytes(path);
        if (bytes < 0) return tokens;
        int fd = bytes < (int64_t)sizeof start ? -1 : io_open(path, IO_READ),
            rc = fd < 0 ? fd : io_pread(fd, start, sizeof start, 0);
        if (fd >= 0) io_close(fd);
        if (rc < 0 || !shard_is_llmc(start, sizeof start) ||
            shard_parse_header(start, sizeof start, (uint64_t)bytes, 0, &header, fault) < 0)
            return -1;
        tokens += header.tokens;
    }
}

void tokens_json_check(const char *shard) {
    Notes notes;
    char  path[4200], why[200];
    if (!read_notes(shard, &notes)) return;
    tokens_json_path(shard, path, sizeof path);
    for (int is_val = 0; is_val < 2; is_val++) {
        const char *split = is_val ? "val" : "train";
        double      noted = is_val ? notes.val_tokens : notes.train_tokens;
        int64_t     there = isnan(noted) ? 0 : tokens_of(path, split);
        if (there <= 0 || (double)there == noted) continue;
        snprintf(why, sizeof why, "says %s_tokens %.0f, and the shards beside it hold %lld", split, noted,
                 (long long)there);
        if ((double)there > noted) refuse(path, why);
        warn("%s %s: some shards are missing; copy or make the missing shards again, unless you left them out", path,
             why);
    }
}

double bits_per_byte(double loss, double bytes_per_token) { return loss / 0.69314718055994530942 / bytes_per_token; }
