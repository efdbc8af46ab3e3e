/* plan_data.c - see plan_data.h. */
#include "run/plan/plan_data.h"

#include <stdio.h>
#include <string.h>

#include "core/io.h"
#include "core/terminal.h"
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
    SampleCount found;
    char        missing[SHARD_SENTENCE_CHARS]; /* why the data cannot be counted; "" if they can */
} DataCount;

static DataCount count_data(const StringList *globs, const Config *c) {
    DataCount d = {0};
    for (int i = 0; i < globs->count; i++) {
        IoPaths files = {NULL, 0};
        dataset_files(globs->item[i], &files);
        if (!files.count) snprintf(d.missing, sizeof d.missing, "%.4000s is not there yet", globs->item[i]);
        for (size_t f = 0; f < files.count; f++) {
            ShardHeader header;
            if (shard_look(files.path[f], c->model.shape.vocab_size, &header, d.missing) == 0)
                sample_count_file(&d.found, &header, c->batch.seq_len);
        }
        io_paths_free(&files);
    }
    return d;
}

/* Returns the free bytes for run.dir, in its nearest folder that exists. */
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

static void print_count(const DataCount *d, const Config *c, int64_t wanted) {
    const SampleCount *n = &d->found;
    char               unread[SAMPLE_COUNT_CHARS];
    if (d->missing[0]) print_plain(stdout, "data         %s: epochs unknown\n", d->missing);
    else if (n->samples == 0)
        printf("data         %s tokens: not one sample of %lld\n", plan_count_text((double)n->tokens).text,
               (long long)c->batch.seq_len);
    else
        printf("data         %lld file%s, %s tokens, %lld sample%s of %lld: %.2f epochs%s\n", (long long)n->files,
               n->files == 1 ? "" : "s", plan_count_text((double)n->tokens).text, (long long)n->samples, n->samples == 1 ? "" : "s",
               (long long)c->batch.seq_len, sample_epochs(wanted, n->samples),
               sample_count_unread(n, c->batch.seq_len, "; ", unread));
}

void plan_print_data(const Config *c) {
    const StringList *train = &c->data.train;
    int64_t           wanted = position_after((Position){0, 0, 0}, c, c->run.steps).samples, share[BLEND_SOURCES];
    Blend             blend;
    if (train->share) {
        blend_make(&blend, train->item, train->share, train->count, c->batch.seq_len);
        blend_count(&blend, wanted, share);
    }
    for (int i = 0, seen = 0; i < (train->share ? train->count : 1); i++) {
        StringList source = {1, &train->item[i], NULL};
        if (train->share && blend_source(train->item, i) < seen) continue; /* a path in several stages counts once */
        DataCount count = count_data(train->share ? &source : train, c);
        print_count(&count, c, train->share ? share[seen] : wanted);
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
        print_plain(stdout, " of %s free under %s%s", plan_bytes_text((double)room).text, c->run.dir,
               most > (double)room ? ": not enough" : "");
    printf("\n");
}
