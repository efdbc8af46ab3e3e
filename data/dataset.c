/* dataset.c - see dataset.h. */
#include "data/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/rng.h"
#include "data/tokens_json.h"

typedef struct { char **path; size_t count; } PathList; /* owned, as are its strings */

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void add_path(PathList *list, const char *path) {
    list->path = realloc(list->path, sizeof *list->path * (list->count + 1));
    char *copy = strdup(path);
    if (!list->path || !copy) fail(EXIT_MEMORY, "no memory for the names of the token files");
    list->path[list->count++] = copy;
}

static void free_paths(PathList *list) {
    for (size_t i = 0; i < list->count; i++) free(list->path[i]);
    free(list->path);
    *list = (PathList){NULL, 0};
}

/* A glob without a file: the message names its missing folder, if one is missing. */
NORETURN static void fail_no_match(const char *key, const char *pattern) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", pattern);
    folder[strcspn(folder, "*?[")] = 0; /* the text before the first wildcard, up to its last slash */
    int   wild = strpbrk(pattern, "*?[") != NULL;
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    struct stat st;
    if (slash && stat(folder, &st) < 0)
        fail(EXIT_DATA,
             "%s: \"%s\" names no file: the folder %s does not exist (text becomes shards by ./train_gpt tokenize TEXT out=%s)",
             key, pattern, folder, folder);
    if (slash && S_ISDIR(st.st_mode) && access(folder, wild ? R_OK | X_OK : X_OK) < 0)
        fail(EXIT_IO, "%s: \"%s\": the folder %s cannot be read: %s", key, pattern, folder, strerror(errno));
    fail(EXIT_DATA, "%s: \"%s\" %s (text becomes shards by ./train_gpt tokenize TEXT out=FOLDER)", key, pattern,
         wild ? "matches no file" : "does not exist");
}

static int end_without_memory(const char *folder, int error) {
    (void)folder;
    return error == ENOMEM;
}

int dataset_glob(const char *pattern, glob_t *found) {
    int rc = glob(pattern, GLOB_NOSORT, end_without_memory, found);
    if (rc == GLOB_NOSPACE || rc == GLOB_ABORTED) fail(EXIT_MEMORY, "no memory for the names of the files of %s", pattern);
    return rc == 0;
}

/* What `tokenize` leaves beside its shards: "my/" followed by a star means the shards. */
static int is_beside_shards(const char *path) {
    static const char *const NAMES[] = {"tokens.json", TOKENS_INPUTS_NAME, "tokenizer.json", "vocab.json", "merges.txt"};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (strcmp(name, NAMES[i]) == 0) return 1;
    return dot && strcmp(dot, ".tiktoken") == 0;
}

/* Adds the files of one glob, sorted by byte whatever the locale. */
static void add_glob(PathList *list, const char *key, const char *pattern) {
    glob_t      found;
    struct stat st;
    size_t      first = list->count;
    if (dataset_glob(pattern, &found)) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            if (strcmp(found.gl_pathv[i], pattern) == 0 || !is_beside_shards(found.gl_pathv[i])) add_path(list, found.gl_pathv[i]);
        globfree(&found);
    } else if (stat(pattern, &st) == 0) {
        add_path(list, pattern); /* a name that holds a wildcard character */
    }
    if (list->count == first) fail_no_match(key, pattern);
    qsort(list->path + first, list->count - first, sizeof *list->path, by_bytes);
}

/* One file under two names would be trained on twice, without a message. */
static void refuse_duplicates(const PathList *list, const char *key) {
    PathList real = {NULL, 0};
    for (size_t i = 0; i < list->count; i++) {
        char *resolved = realpath(list->path[i], NULL);
        add_path(&real, resolved ? resolved : list->path[i]);
        free(resolved);
    }
    qsort(real.path, real.count, sizeof *real.path, by_bytes);
    for (size_t i = 1; i < real.count; i++)
        if (strcmp(real.path[i - 1], real.path[i]) == 0)
            fail(EXIT_DATA, "%s names the file %s twice; name each file once", key, real.path[i]);
    free_paths(&real);
}

NORETURN static void refuse_foreign_token(const Shard *shard, const char *key, int64_t at, int64_t vocab_size) {
    fail(EXIT_DATA, "%s: %s: token %lld of %lld is %u, model.vocab_size is %lld: %s", key, shard->path, (long long)at,
         (long long)shard->header.tokens, shard_token(shard, at), (long long)vocab_size,
         shard->header.data_offset || shard->header.sequences ? "these tokens are of another tokenizer, or the file is damaged"
                                   : "headerless files are read as uint16 tokens; text becomes shards by ./train_gpt tokenize");
}

/* The first samples of a blend's sources, which hold files[i] files each, one source after the other. */
static void take_sources(Dataset *d, const char *key, const char *const *source, const int *files) {
    d->first_of_source = calloc((size_t)d->blend->sources + 1, sizeof *d->first_of_source);
    if (!d->first_of_source) fail(EXIT_MEMORY, "no memory for the table of %d sources", d->blend->sources);
    for (int i = 0, file = 0; i < d->blend->sources; i++) {
        file += files[i];
        d->first_of_source[i + 1] = d->first_sample[file];
        if (d->first_of_source[i + 1] == d->first_of_source[i])
            fail(EXIT_DATA, "%s: the source \"%s\" holds no sample: batch.seq_len %lld takes %lld tokens of one file; give it more "
                 "text, or leave it out", key, source[i], (long long)d->seq_len, (long long)d->seq_len + 1);
    }
}

Dataset dataset_open(const char *key, const char *const *globs, int count, int64_t seq_len, int64_t vocab_size) {
    return dataset_open_blend(key, globs, NULL, count, seq_len, vocab_size);
}

Dataset dataset_open_blend(const char *key, const char *const *globs, const BlendShare *share, int count, int64_t seq_len,
                           int64_t vocab_size) {
    PathList    list = {NULL, 0};
    const char *source[BLEND_SOURCES];
    int         files[BLEND_SOURCES], sources = 0;
    for (int i = 0; i < count; i++) {
        size_t before = list.count;
        if (share && blend_source(globs, i) < sources) continue; /* in an earlier stage, too */
        add_glob(&list, key, globs[i]);
        if (!share) continue;
        source[sources] = globs[i], files[sources++] = (int)(list.count - before);
    }
    if (list.count == 0) fail(EXIT_DATA, "%s names no token files", key);
    refuse_duplicates(&list, key);

    Dataset d = {.shards = (int)list.count, .seq_len = seq_len, .vocab_size = vocab_size};
    d.shard = calloc(list.count, sizeof *d.shard);
    d.first_sample = calloc(list.count + 1, sizeof *d.first_sample);
    if (!d.shard || !d.first_sample) fail(EXIT_MEMORY, "no memory for the table of %zu token files", list.count);
    for (int i = 0; i < d.shards; i++) {
        d.shard[i] = shard_open(list.path[i]);
        int64_t foreign = shard_find_foreign(&d.shard[i], vocab_size);
        if (foreign >= 0) refuse_foreign_token(&d.shard[i], key, foreign, vocab_size);
        d.tokens += d.shard[i].header.tokens;
        d.samples += (d.shard[i].header.tokens - 1) / seq_len;
        d.first_sample[i + 1] = d.samples;
    }
    if (d.samples == 0)
        fail(EXIT_DATA, "%s: %lld tokens in %d file%s hold no sample: batch.seq_len %lld takes %lld tokens of one file; "
             "give more text or a shorter batch.seq_len", key, (long long)d.tokens, d.shards, d.shards == 1 ? "" : "s", (long long)seq_len,
             (long long)seq_len + 1);
    if (share) {
        d.blend = malloc(sizeof *d.blend);
        if (!d.blend) fail(EXIT_MEMORY, "no memory for a blend of %d sources", sources);
        blend_make(d.blend, globs, share, count, seq_len);
        take_sources(&d, key, source, files);
    }
    free_paths(&list);
    return d;
}

const char *dataset_shared_file(const Dataset *a, const Dataset *b) {
    for (int i = 0; i < a->shards; i++)
        for (int k = 0; k < b->shards; k++) {
            struct stat x, y;
            if (a->shard[i].file_bytes == b->shard[k].file_bytes && stat(a->shard[i].path, &x) == 0 &&
                stat(b->shard[k].path, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino)
                return a->shard[i].path;
        }
    return NULL;
}

void dataset_close(Dataset *d) {
    for (int i = 0; i < d->shards; i++) shard_close(&d->shard[i]);
    free(d->shard);
    free(d->first_sample);
    free(d->first_of_source);
    free(d->blend);
    *d = (Dataset){0};
}

void dataset_sample(const Dataset *d, int64_t j, int32_t *inputs, int32_t *targets) {
    CHECK(j >= 0 && j < d->samples, "sample %lld of %lld", (long long)j, (long long)d->samples);
    int low = 0, high = d->shards; /* first_sample[low] <= j < first_sample[high] */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (d->first_sample[middle] <= j) low = middle;
        else high = middle;
    }
    const Shard *shard = &d->shard[low];
    int64_t      T = d->seq_len, first = (j - d->first_sample[low]) * T;
    uint32_t     most = 0;
    shard_read(shard, first, T, inputs);
    memmove(targets, inputs + 1, (size_t)(T - 1) * sizeof *targets);
    shard_read(shard, first + T, 1, targets + T - 1);
    for (int64_t t = 0; t < T; t++) most = (uint32_t)targets[t] > most ? (uint32_t)targets[t] : most;
    if ((uint32_t)inputs[0] > most) most = (uint32_t)inputs[0];
    for (int64_t t = 0; most >= d->vocab_size; t++)
        if (t == T || (uint32_t)inputs[t] >= d->vocab_size) refuse_foreign_token(shard, "the data", first + t, d->vocab_size);
}

uint64_t dataset_fingerprint(const Dataset *d) {
    enum { EDGE = 1024 }; /* tokens at either end of a shard */
    int32_t  edge[EDGE];
    uint64_t hash = (uint64_t)d->shards;
    for (int i = 0; i < d->shards; i++) {
        const Shard *s = &d->shard[i];
        int64_t      n = s->header.tokens < EDGE ? s->header.tokens : EDGE;
        uint64_t     sizes[2] = {s->file_bytes, (uint64_t)s->header.tokens};
        hash = XXH3_64bits_withSeed(shard_name(s), strlen(shard_name(s)), hash);
        hash = XXH3_64bits_withSeed(sizes, sizeof sizes, hash);
        shard_read(s, 0, n, edge);
        hash = XXH3_64bits_withSeed(edge, sizeof *edge * (size_t)n, hash);
        shard_read(s, s->header.tokens - n, n, edge);
        hash = XXH3_64bits_withSeed(edge, sizeof *edge * (size_t)n, hash);
    }
    if (d->blend) hash = XXH3_64bits_withSeed(d->first_of_source, sizeof *d->first_of_source * (size_t)(d->blend->sources + 1), hash);
    return hash;
}

/* The sample, of n, that is the g-th of all epochs. */
static int64_t order_of(int64_t n, SampleOrder order, int64_t g) {
    int64_t epoch = g / n, i = g % n;
    return order.shuffle ? (int64_t)rng_permute((uint64_t)i, (uint64_t)n, order.seed, (uint64_t)epoch) : i;
}

int64_t dataset_order(const Dataset *d, SampleOrder order, int64_t g) {
    if (!d->blend) return order_of(d->samples, order, g);
    BlendPlace     p = blend_at(d->blend, g);
    const int64_t *first = &d->first_of_source[p.source];
    order.seed ^= (uint64_t)p.source << 56; /* sources of one size have different orders */
    return first[0] + order_of(first[1] - first[0], order, p.index);
}

int dataset_source_tokens(const Dataset *d, int64_t g, int64_t *tokens) {
    if (!d->blend) return 0;
    blend_count(d->blend, g, tokens);
    for (int i = 0; i < d->blend->sources; i++) tokens[i] *= d->seq_len;
    return d->blend->sources;
}
