/* dataset.c - see dataset.h. */
#include "data/dataset.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/json.h"
#include "core/rng.h"
#include "core/format.h"
#include "data/tokens_json.h"

/* --- counting ----------------------------------------------------------------------------------------------------- */

void sample_count_add(SampleCount *c, int64_t tokens, int64_t seq_len) {
    int64_t samples = (tokens - 1) / seq_len;
    c->files++, c->tokens += tokens, c->samples += samples;
    if (samples > 0) c->tail_tokens += tokens - samples * seq_len - 1;
    else c->short_files++, c->short_tokens += tokens;
}

void sample_count_file(SampleCount *c, const ShardHeader *header, int64_t seq_len) {
    sample_count_add(c, header->tokens, seq_len);
    if (header->data_offset == 0 && header->sequences == 0) c->bare_files++, c->bare_bytes = header->token_bytes;
}

const char *sample_count_unread(const SampleCount *c, int64_t seq_len, const char *before,
                                char out[SAMPLE_COUNT_CHARS]) {
    char    number[32], least[32];
    int64_t unread = c->short_tokens + c->tail_tokens;
    int     used = 0;
    *out = 0;
    if (c->bare_files)
        used = snprintf(out, SAMPLE_COUNT_CHARS, "%s%lld file%s without a header, read as uint%lld", before,
                        (long long)c->bare_files, plural(c->bare_files), 8 * (long long)c->bare_bytes);
    if (unread == 0) return out;
    used += snprintf(out + used, SAMPLE_COUNT_CHARS - (size_t)used, "%snever read: ", used ? "; " : before);
    if (c->short_files)
        used += snprintf(out + used, SAMPLE_COUNT_CHARS - (size_t)used,
                         "%s tokens of %lld file%s shorter than a sample (%s tokens)",
                         grouped_text(c->short_tokens, number), (long long)c->short_files, plural(c->short_files),
                         grouped_text(seq_len + 1, least));
    if (c->tail_tokens)
        used += snprintf(out + used, SAMPLE_COUNT_CHARS - (size_t)used,
                         "%s%s tokens after the last samples of %sfiles", c->short_files ? ", " : "",
                         grouped_text(c->tail_tokens, number), c->short_files ? "other " : "");
    if (unread >= c->tokens / 10)
        snprintf(out + used, SAMPLE_COUNT_CHARS - (size_t)used, " (a smaller batch.seq_len reads more of them)");
    return out;
}

double sample_epochs(int64_t taken, int64_t samples) { return (double)taken / (double)samples; }

SampleCount dataset_count(const Dataset *d) {
    SampleCount c = {0};
    for (int i = 0; i < d->shards; i++) sample_count_file(&c, &d->shard[i].header, d->seq_len);
    return c;
}

int64_t dataset_first_samples(const Dataset *d, int64_t tokens) {
    int64_t samples = tokens > 0 ? tokens / d->seq_len : d->samples;
    return samples < 1 ? 1 : samples > d->samples ? d->samples : samples;
}

double dataset_bytes_per_token(const Dataset *d, const Tokenizer *t, int64_t samples) {
    double bytes = 0, there = NAN;
    if (t->kind == TOKENIZER_BYTES) return 1.0;
    for (int i = 0; i < d->shards && d->first_sample[i] < samples; i++) {
        int64_t end = d->first_sample[i + 1] < samples ? d->first_sample[i + 1] : samples;
        if (end == d->first_sample[i]) continue;
        if (i == 0 || !tokens_json_is_same(d->shard[i - 1].path, d->shard[i].path))
            there = tokens_json_bytes_per_token(d->shard[i].path);
        bytes += there * (double)(end - d->first_sample[i]);
    }
    return bytes / (double)samples;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Refuses a glob that matches no file. If its folder is missing, the message names that folder. The message also says
 * how to make the data: by scripts/fetch.sh NAME if that knows datasets/NAME, otherwise by tokenize. To train with a
 * vocabulary larger than that of bytes, a tokenizer comes first. */
NORETURN static void fail_no_match(const char *key, const char *pattern, int64_t vocab_size) {
    static const char *const FETCHED[] = {"tinyshakespeare", "tinystories", "fineweb-10b", "fineweb-edu", "climbmix"};
    char        folder[4096], cure[3 * sizeof(ShellWord) + 320];
    struct stat st;
    int         wild = strpbrk(pattern, "*?[") != NULL;
    snprintf(folder, sizeof folder, "%s", pattern);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    /* if the folder has wildcards, uses the part of the path before them */
    if (slash && stat(folder, &st) < 0 && wild) {
        snprintf(folder, sizeof folder, "%s", pattern);
        folder[strcspn(folder, "*?[")] = 0;
        slash = strrchr(folder, '/');
        if (slash) slash[slash == folder] = 0;
    }
    ShellWord out = shell_word(slash ? folder : "FOLDER");
    char      there[sizeof folder + 32];
    snprintf(there, sizeof there, "%s/tokenizer.json", folder);
    if (vocab_size <= 256 || strncmp(key, "eval: ", 6) == 0)
        snprintf(cure, sizeof cure, "to make the data from a text: ./train_gpt tokenize TEXT out=%s", out.text);
    else if (access(there, F_OK) == 0)
        snprintf(cure, sizeof cure, "to make the data from a text: ./train_gpt tokenize TEXT out=%s tokenizer=%s",
                 out.text, out.text);
    else
        snprintf(cure, sizeof cure,
                 "to make the data from a text: ./train_gpt train-tokenizer TEXT out=%s vocab_size=%lld, then "
                 "./train_gpt tokenize TEXT out=%s tokenizer=%s; if there is a tokenizer already, leave out the first "
                 "command and give tokenizer= its file or folder",
                 out.text, (long long)vocab_size, out.text, out.text);
    for (size_t i = 0; i < sizeof FETCHED / sizeof *FETCHED; i++)
        if (slash && strncmp(folder, "datasets/", 9) == 0 && strcmp(folder + 9, FETCHED[i]) == 0)
            snprintf(cure, sizeof cure, "scripts/fetch.sh %s fetches these data", FETCHED[i]);
    if (slash && stat(folder, &st) < 0)
        fail(EXIT_DATA, "%s: \"%s\" names no file: the folder %s does not exist (%s)", key, pattern, folder, cure);
    if (slash && S_ISDIR(st.st_mode) && access(folder, wild ? R_OK | X_OK : X_OK) < 0)
        fail(EXIT_IO, "%s: \"%s\": the folder %s cannot be read: %s", key, pattern, folder, strerror(errno));
    fail(EXIT_DATA, "%s: \"%s\" %s (%s)", key, pattern, wild ? "matches no file" : "does not exist", cure);
}

/* Leaves tokens.json and the tokenizer files out, which `tokenize` writes into the folder of its shards, so that "my/"
 * with a star after it names only the shards. */
void dataset_files(const char *name, IoPaths *files) {
    static const char *const BESIDE[] = {"tokens.json", TOKENS_INPUTS_NAME, "tokenizer.json", "vocab.json",
                                         "merges.txt"};
    size_t first = files->count, kept = first;
    io_match(name, files);
    for (size_t i = first; i < files->count; i++) {
        char *path = files->path[i];
        int   is_beside = has_ending(path, ".tiktoken");
        for (size_t k = 0; k < sizeof BESIDE / sizeof *BESIDE; k++) is_beside |= !strcmp(basename(path), BESIDE[k]);
        if (is_beside && strcmp(path, name) != 0) free(path);
        else files->path[kept++] = path;
    }
    files->count = kept;
}

/* Identity of a file: two names with the same one are links to one file. */
typedef struct { dev_t device; ino_t number; const char *path; } FileId;

static int by_file(const void *a, const void *b) {
    const FileId *x = (const FileId *)a, *y = (const FileId *)b;
    if (x->device != y->device) return x->device < y->device ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Refuses two hard links to one file, which have different paths. */
static void refuse_hard_links(const IoPaths *list, const char *key) {
    FileId *id = xcalloc(list->count + 1, sizeof *id, "the names of the data");
    size_t  count = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct stat st;
        if (stat(list->path[i], &st) == 0 && st.st_nlink > 1)
            id[count++] = (FileId){st.st_dev, st.st_ino, list->path[i]};
    }
    if (count > 0) qsort(id, count, sizeof *id, by_file);
    for (size_t i = 1; i < count; i++)
        if (by_file(&id[i - 1], &id[i]) == 0)
            fail(EXIT_DATA, "%s names one file twice, as %s and as %s: name each file once", key, id[i - 1].path,
                 id[i].path);
    free(id);
}

/* Refuses one file under two names, because training would silently read it twice. */
static void refuse_duplicates(const IoPaths *list, const char *key) {
    IoPaths real = {NULL, 0};
    for (size_t i = 0; i < list->count; i++) {
        char *resolved = realpath(list->path[i], NULL);
        io_paths_add(&real, resolved ? resolved : list->path[i]);
        free(resolved);
    }
    qsort(real.path, real.count, sizeof *real.path, ascending_texts);
    for (size_t i = 1; i < real.count; i++)
        if (strcmp(real.path[i - 1], real.path[i]) == 0)
            fail(EXIT_DATA, "%s names the file %s twice; name each file once", key, real.path[i]);
    io_paths_free(&real);
    refuse_hard_links(list, key);
}

NORETURN static void refuse_foreign_token(const Shard *shard, const char *key, int64_t at, int64_t vocab_size) {
    fail(EXIT_DATA, "%s: %s: token %lld of %lld has the id %u, but model.vocab_size is %lld, so the ids end before "
         "that: %s", key, shard->path, (long long)at,
         (long long)shard->header.tokens, shard_token(shard, at), (long long)vocab_size,
         shard->header.data_offset || shard->header.sequences
             ? "these tokens are of another tokenizer, or the file is damaged"
         : shard->header.token_bytes == 2
             ? "headerless files are read as uint16 tokens; text becomes shards by ./train_gpt tokenize"
             : "headerless files are read as uint32 tokens where model.vocab_size is over 65,536; if this one holds "
               "uint16 tokens, give model.vocab_size 65536 or less; text becomes shards by ./train_gpt tokenize");
}

/* Sets d->first_of_source, the number of the first sample of each source of a blend. The files are in the order of
 * sources; files[i] of them belong to source i. */
static void take_sources(Dataset *d, const char *key, const char *const *source, const int *files) {
    d->first_of_source = xcalloc((size_t)d->blend->sources + 1, sizeof *d->first_of_source, "a table of data sources");
    for (int i = 0, file = 0; i < d->blend->sources; i++) {
        file += files[i];
        d->first_of_source[i + 1] = d->first_sample[file];
        if (d->first_of_source[i + 1] == d->first_of_source[i])
            fail(EXIT_DATA, "%s: the source \"%s\" is too short for one sample: with batch.seq_len %lld a sample takes "
                 "%lld tokens of one file; add text to this source, or leave the source out", key, source[i],
                 (long long)d->seq_len,
                 (long long)d->seq_len + 1);
    }
}

Dataset dataset_open(const char *key, const char *const *globs, const BlendShare *share, int count, int64_t seq_len,
                     int64_t vocab_size) {
    enum { LEAST_ZEROS = 1024 }; /* fewest zeros at the end of a shard that bring a warning */
    IoPaths     list = {NULL, 0};
    SampleCount count_of = {0};
    const char *source[BLEND_SOURCES];
    char        number[32];
    int         files[BLEND_SOURCES], sources = 0;
    /* option to name in messages: the one that sets the length of a sample */
    const char *length = strncmp(key, "eval: ", 6) == 0 ? "positions=" : "batch.seq_len";
    for (int i = 0; i < count; i++) {
        size_t before = list.count;
        /* skips a path whose files were opened for an earlier stage of the blend */
        if (share && blend_source(globs, i) < sources) continue;
        dataset_files(globs[i], &list);
        if (list.count == before) fail_no_match(key, globs[i], vocab_size);
        if (!share) continue;
        source[sources] = globs[i], files[sources++] = (int)(list.count - before);
    }
    if (list.count == 0)
        fail(EXIT_DATA, "%s names no token files: give a file, a pattern such as data/train_*.bin, or a list of them",
             key);
    refuse_duplicates(&list, key);

    Dataset d = {.shards = (int)list.count, .seq_len = seq_len, .vocab_size = vocab_size};
    d.shard = xcalloc(list.count, sizeof *d.shard, "a table of token files");
    d.first_sample = xcalloc(list.count + 1, sizeof *d.first_sample, "a table of token files");
    for (int i = 0; i < d.shards; i++) {
        d.shard[i] = shard_open(list.path[i], vocab_size);
        int64_t foreign = shard_find_foreign(&d.shard[i], vocab_size);
        if (foreign >= 0) refuse_foreign_token(&d.shard[i], key, foreign, vocab_size);
        int64_t tokens = d.shard[i].header.tokens, zeros = shard_zero_tail(&d.shard[i]);
        /* a program that makes a file at its full size and then stops leaves such an end */
        if (zeros >= LEAST_ZEROS)
            warn("%s: %s: its %s%s tokens are all 0: a copy or download that broke off ends so; compare it with its "
                 "source", key, d.shard[i].path, zeros < tokens ? "last " : "", grouped_text(zeros, number));
        sample_count_add(&count_of, tokens, seq_len);
        d.first_sample[i + 1] = count_of.samples;
    }
    d.tokens = count_of.tokens, d.samples = count_of.samples;
    if (d.samples == 0)
        fail(EXIT_DATA, "%s: %lld tokens in %d file%s are too few for one sample: with %s %lld a sample takes %lld "
             "tokens of one file; give more text or a smaller %s", key, (long long)d.tokens, d.shards,
             plural(d.shards), length, (long long)seq_len,
             (long long)seq_len + 1, length);
    if (share) {
        d.blend = xmalloc(sizeof *d.blend, "a blend of data sources");
        blend_make(d.blend, globs, share, count, seq_len);
        take_sources(&d, key, source, files);
    }
    io_paths_free(&list);
    return d;
}

void dataset_warn_shared(const Dataset *val, const Dataset *train) {
    for (int i = 0; i < val->shards; i++)
        for (int k = 0; k < train->shards; k++) {
            struct stat x, y;
            if (val->shard[i].file_bytes != train->shard[k].file_bytes || stat(val->shard[i].path, &x) != 0 ||
                stat(train->shard[k].path, &y) != 0 || x.st_dev != y.st_dev || x.st_ino != y.st_ino)
                continue;
            warn("data.val names %s, and so does data.train: name other files in data.val, because the loss of text "
                 "that the model is trained on says little", val->shard[i].path);
            return;
        }
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
    int low = 0, high = d->shards; /* always true: first_sample[low] <= j < first_sample[high] */
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
        if (t == T || (uint32_t)inputs[t] >= d->vocab_size)
            refuse_foreign_token(shard, "the data", first + t, d->vocab_size);
}

uint64_t dataset_fingerprint(const Dataset *d) {
    uint64_t hash = (uint64_t)d->shards;
    for (int i = 0; i < d->shards; i++) {
        const Shard *s = &d->shard[i];
        uint64_t     content[3] = {s->file_bytes, (uint64_t)s->header.tokens, s->ends};
        hash = XXH3_64bits_withSeed(shard_name(s), strlen(shard_name(s)), hash);
        hash = XXH3_64bits_withSeed(content, sizeof content, hash);
    }
    if (d->tokenizer) hash = XXH3_64bits_withSeed(&d->tokenizer, sizeof d->tokenizer, hash);
    if (d->blend)
        hash = XXH3_64bits_withSeed(d->first_of_source, sizeof *d->first_of_source * (size_t)(d->blend->sources + 1),
                                    hash);
    return hash;
}

/* Returns which of n samples is the g-th one, counted over all epochs: a number from 0 to n - 1. */
static int64_t order_of(int64_t n, SampleOrder order, int64_t g) {
    int64_t epoch = g / n, i = g % n;
    return order.shuffle ? (int64_t)rng_permute((uint64_t)i, (uint64_t)n, order.seed, (uint64_t)epoch) : i;
}

int64_t dataset_order(const Dataset *d, SampleOrder order, int64_t g) {
    if (!d->blend) return order_of(d->samples, order, g);
    BlendPlace     p = blend_at(d->blend, g);
    const int64_t *first = &d->first_of_source[p.source];
    order.seed ^= (uint64_t)p.source << 56; /* so that sources of equal size get different orders */
    return first[0] + order_of(first[1] - first[0], order, p.index);
}

int dataset_source_tokens(const Dataset *d, int64_t g, int64_t *tokens) {
    if (!d->blend) return 0;
    blend_count(d->blend, g, tokens);
    for (int i = 0; i < d->blend->sources; i++) tokens[i] *= d->seq_len;
    return d->blend->sources;
}
