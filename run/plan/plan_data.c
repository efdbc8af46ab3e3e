/* plan_data.c - see plan_data.h. */
#include "run/plan/plan_data.h"

#include <stdio.h>
#include <string.h>

#include "core/io.h"
#include "data/dataset.h"
#include "run/checkpoint/checkpoint.h"

PlanText plan_count_text(double value) {
    static const char *units[] = {"", " k", " M", " G", " T", " P", " E"};
    PlanText t;
    int  unit = 0;
    if (value >= 1e4)
        for (; value >= 999.5 && unit < 6; unit++) value /= 1e3;
    snprintf(t.text, sizeof t.text, unit ? "%.3g%s" : "%.0f%s", value, units[unit]);
    return t;
}

typedef struct {
    int64_t files, tokens, samples;
    char    missing[4200]; /* why the data cannot be counted; "" = it could */
} DataCount;

static void count_file(DataCount *d, const char *path, int64_t T) {
    uint8_t     head[SHARD_START_BYTES];
    char        fault[SHARD_FAULT_CHARS];
    ShardHeader header;
    int64_t     bytes = io_file_bytes(path);
    FILE       *f = fopen(path, "rb");
    size_t      got = f ? fread(head, 1, sizeof head, f) : 0;
    if (f) fclose(f);
    if (!f || bytes < 0) {
        snprintf(d->missing, sizeof d->missing, "%s cannot be read", path);
    } else if (shard_parse_header(head, got, (uint64_t)bytes, &header, fault) != 0) {
        snprintf(d->missing, sizeof d->missing, "%s %s", path, fault);
    } else {
        d->files++;
        d->tokens += header.tokens;
        d->samples += header.tokens > 0 ? (header.tokens - 1) / T : 0;
    }
}

static DataCount count_data(const StringList *globs, int64_t T) {
    DataCount d = {0};
    for (int i = 0; i < globs->count; i++) {
        glob_t found;
        if (!dataset_glob(globs->item[i], &found)) {
            snprintf(d.missing, sizeof d.missing, "%s is not there yet", globs->item[i]);
            continue;
        }
        for (size_t f = 0; f < found.gl_pathc; f++) count_file(&d, found.gl_pathv[f], T);
        globfree(&found);
    }
    return d;
}

/* Free bytes where run.dir is or will be: in its nearest folder that exists. */
static int64_t free_bytes_for(const char *dir) {
    char path[4096];
    snprintf(path, sizeof path, "%s", *dir ? dir : ".");
    int64_t bytes;
    while ((bytes = io_free_bytes(path)) < 0) {
        char *slash = strrchr(path, '/');
        if (slash && slash > path) *slash = 0;
        else if (strcmp(path, ".") != 0 && strcmp(path, "/") != 0) strcpy(path, slash ? "/" : ".");
        else return bytes;
    }
    return bytes;
}

static void print_count(const DataCount *count, const Config *c, double wanted) {
    DataCount d = *count;
    if (d.missing[0]) printf("data         %s: epochs unknown\n", d.missing);
    else if (d.samples == 0)
        printf("data         %s tokens: not one sample of %lld\n", plan_count_text((double)d.tokens).text,
               (long long)c->batch.seq_len);
    else
        printf("data         %lld file%s, %s tokens, %lld samples of %lld: %.2f epochs\n", (long long)d.files,
               d.files == 1 ? "" : "s", plan_count_text((double)d.tokens).text, (long long)d.samples,
               (long long)c->batch.seq_len, wanted / (double)d.samples);
}

void plan_print_data(const Config *c) {
    const StringList *train = &c->data.train;
    int64_t           wanted = c->run.steps * (c->batch.global_tokens / c->batch.seq_len), share[BLEND_SOURCES];
    Blend             blend;
    if (train->share) {
        blend_make(&blend, train->item, train->share, train->count, c->batch.seq_len);
        blend_count(&blend, wanted, share);
    }
    for (int i = 0, seen = 0; i < (train->share ? train->count : 1); i++) {
        StringList source = {1, &train->item[i], NULL};
        if (train->share && blend_source(train->item, i) < seen) continue; /* a path in several stages */
        DataCount count = count_data(train->share ? &source : train, c->batch.seq_len);
        print_count(&count, c, (double)(train->share ? share[seen] : wanted));
        seen++;
    }
}

void plan_print_disk(const Config *c, double bytes, PlanDisk where) {
    int64_t count = checkpoint_most(c);
    double  most = bytes * (double)count;
    int64_t room = where == DISK_HERE ? free_bytes_for(c->run.dir) : -1;
    printf("checkpoint   %s each, %lld kept and one being written: %s", plan_bytes_text(bytes).text,
           (long long)count - 1, plan_bytes_text(most).text);
    if (room >= 0)
        printf(" of %s free under %s%s", plan_bytes_text((double)room).text, c->run.dir,
               most > (double)room ? ": not enough" : "");
    printf("\n");
}
