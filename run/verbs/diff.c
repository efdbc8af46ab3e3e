/* diff.c - `train_gpt diff A B`: compares two runs, checkpoints, configs or files of weights. It compares keys,
 * tensors, and the metrics up to the first step that differs. Exit 0 if nothing differs, 1 if something does, like
 * diff(1). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/terminal.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/weights.h"
#include "run/config/config.h"
#include "run/verbs/inspect.h"
#include "run/log/run_log.h"
#include "run/verbs/verbs.h"

enum { EXIT_DIFFERS = 1, NAMED = 20 };

static const char *side[2];
static int         differs, lists; /* lists: 1 if every tensor is listed, also those with equal bits */
static const VerbKey DIFF_KEYS[] = {
    {"tensors", "true", "false", "list every tensor", .flag = &lists},
    {.name = NULL},
};

/* --- configs ------------------------------------------------------------------------------------------------------ */

static void tell_key(void *ctx, const char *key, const cJSON *a, const cJSON *b) {
    char x[REPORT_VALUE], y[REPORT_VALUE];
    (void)ctx;
    print_plain(stdout, "  %-30s %s | %s\n", key, report_value(a, x), report_value(b, y));
}

static void diff_configs(const cJSON *a, const cJSON *b) {
    int count = config_diff(a, b, NULL, NULL);
    differs |= count > 0;
    printf("config       %d key%s differ%s\n", count, plural(count), count == 1 ? "s" : "");
    config_diff(a, b, tell_key, NULL);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* Compares the bytes of tensors whose values cannot be read. Returns 1 if they are equal. */
static int same_bytes(const WeightsFile *wa, const SafeTensor *a, const WeightsFile *wb, const SafeTensor *b) {
    char x[4096], y[4096];
    int  error = 0, same = a->end - a->begin == b->end - b->begin;
    for (uint64_t at = 0, n, bytes = a->end - a->begin; same && !error && at < bytes; at += n) {
        n = bytes - at < sizeof x ? bytes - at : sizeof x;
        error = io_pread(wa->fd, x, n, wa->header.data_offset + a->begin + at);
        if (!error) error = io_pread(wb->fd, y, n, wb->header.data_offset + b->begin + at);
        same = memcmp(x, y, n) == 0;
    }
    if (error) fail(EXIT_IO, "%s or %s cannot be read: %s", wa->path, wb->path, io_error_text(error));
    return same;
}

/* Returns 1 if two tensors differ. Writes the line about them to text. */
static int differ(const WeightsFile *wa, const SafeTensor *a, const WeightsFile *wb, const SafeTensor *b,
                  char text[512]) {
    char shape[2][200];
    safetensors_shape(shape[0], sizeof shape[0], a);
    safetensors_shape(shape[1], sizeof shape[1], b);
    if (a->dims != b->dims || memcmp(a->dim, b->dim, sizeof a->dim[0] * (size_t)a->dims) != 0)
        return snprintf(text, 512, "shape %.200s | %.200s", shape[0], shape[1]), 1;
    if (!weights_has_values(a) || !weights_has_values(b)) {
        int is_same = a->type == b->type && same_bytes(wa, a, wb, b);
        return snprintf(text, 512, "%-14s %s", shape[0], is_same ? "same bits" : "other bytes"), !is_same;
    }
    WeightsDiff diff = weights_diff(wa, a, wb, b);
    int         is_same = diff.differ == 0 && a->type == b->type;
    char        types[40] = "", nans[60] = "";
    if (a->type != b->type)
        snprintf(types, sizeof types, " %s | %s", safetensors_type_name(a->type), safetensors_type_name(b->type));
    if (diff.nans) snprintf(nans, sizeof nans, ", %" PRId64 " of them not comparable", diff.nans);
    if (is_same) snprintf(text, 512, "%-14s same bits", shape[0]);
    else
        snprintf(text, 512, "%-14s%s max %-9.3g relative %-9.3g in %" PRId64 " of %" PRId64 "%s", shape[0], types,
                 diff.most, weights_diff_relative(&diff), diff.differ, diff.elems, nans);
    return !is_same;
}

static void diff_weights(const char *label, const char *a, const char *b) {
    WeightsSet wa = weights_set_open(a), wb = weights_set_open(b);
    int        same = 0, other = 0, alone = 0, told = 0;
    char       text[512];
    for (int f = 0; f < wa.files; f++)
        for (int i = 0; i < wa.file[f].header.tensors; i++) {
            const SafeTensor *x = &wa.file[f].header.tensor[i];
            WeightsTensor     y = weights_set_find(&wb, x->name);
            if (!y.tensor) alone++, snprintf(text, sizeof text, "only in the first");
            int is_other = !y.tensor || differ(&wa.file[f], x, y.file, y.tensor, text);
            if (y.tensor) other += is_other, same += !is_other;
            if ((is_other && told++ < NAMED) || lists) print_plain(stdout, "  %-42s %s\n", x->name, text);
        }
    for (int f = 0; f < wb.files; f++)
        for (int i = 0; i < wb.file[f].header.tensors; i++) {
            const char *name = wb.file[f].header.tensor[i].name;
            if (weights_set_find(&wa, name).tensor) continue;
            alone++;
            if (told++ < NAMED || lists) print_plain(stdout, "  %-42s %s\n", name, "only in the second");
        }
    if (told > NAMED && !lists) printf("  and %d more; tensors=true lists all\n", told - NAMED);
    printf("%-12s %d tensors with the same bits, %d that differ, %d in one alone\n", label, same, other, alone);
    differs |= other + alone > 0;
    weights_set_close(&wa), weights_set_close(&wb);
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

static void diff_files(const char *a, const char *b) {
    diff_weights("weights", path_of("%s/model.safetensors", a).text, path_of("%s/model.safetensors", b).text);
    diff_weights("moments", path_of("%s/optimizer.safetensors", a).text, path_of("%s/optimizer.safetensors", b).text);
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

/* Reads the next step of a log into *at, and its number into *last. Returns 0 if there is none. */
static int next_step(FILE *f, MetricsLine *at, int64_t *last) {
    int is_found = f && metrics_line_find(f, LINE_TRAIN, at);
    if (is_found) *last = at->step;
    return is_found;
}

/* Compares the metrics of two runs. Skips steps that only one of them has. */
static void diff_steps(void) {
    FILE       *f[2];
    MetricsLine at[2], first[2] = {{0}}, end[2] = {{0}};
    int64_t     common = 0, last[2] = {0, 0};
    int         more[2], is_other = 0;
    for (int k = 0; k < 2; k++) {
        Path metrics = path_of("%s/metrics.jsonl", side[k]);
        f[k] = io_open_stream(metrics.text, IO_READ);
        if (!f[k] && errno != ENOENT) fail(EXIT_IO, "%s cannot be read: %s", metrics.text, io_error_text(errno));
        more[k] = next_step(f[k], &at[k], &last[k]);
    }
    while (more[0] && more[1]) {
        if (at[0].step == at[1].step) {
            common++, end[0] = at[0], end[1] = at[1];
            int is_same = at[0].loss == at[1].loss || (isnan(at[0].loss) && isnan(at[1].loss));
            if (!is_other && !is_same) is_other = 1, first[0] = at[0], first[1] = at[1];
        }
        int64_t step[2] = {at[0].step, at[1].step};
        for (int k = 0; k < 2; k++)
            if (step[k] <= step[!k]) more[k] = next_step(f[k], &at[k], &last[k]);
    }
    for (int k = 0; k < 2; k++) {
        while (next_step(f[k], &at[k], &last[k])) {}
        if (f[k]) fclose(f[k]);
    }
    printf("steps        %" PRId64 " | %" PRId64 "\n", last[0], last[1]);
    differs |= last[0] != last[1] || is_other;
    if (is_other)
        printf("first        step %" PRId64 " is the first whose loss differs: %.9g | %.9g\n", first[0].step,
               first[0].loss, first[1].loss);
    else if (common) printf("losses       the same numbers in all %" PRId64 " common steps\n", common);
    if (common && is_other)
        printf("at the end   step %" PRId64 ": %.9g | %.9g, %.4g apart\n", end[0].step, end[0].loss, end[1].loss,
               fabs(end[0].loss - end[1].loss));
}

static void diff_runs(void) {
    cJSON      *config[2];
    StepFolder *list[2];
    int         count[2];
    int64_t     step = -1; /* newest step of which both runs have a checkpoint */
    for (int k = 0; k < 2; k++)
        if (!(config[k] = inspect_read_json(path_of("%s/config.json", side[k]).text)))
            fail(EXIT_DATA,
                 "%s/config.json is not JSON: it is damaged, or another program wrote it; restore it from a copy",
                 side[k]);
    diff_configs(config[0], config[1]);
    cJSON_Delete(config[0]), cJSON_Delete(config[1]);
    diff_steps();
    for (int k = 0; k < 2; k++)
        if ((count[k] = folders_list(path_of("%s/checkpoints", side[k]).text, &list[k])) < 0)
            fail(EXIT_IO, "%s/checkpoints cannot be read: %s", side[k], io_error_text(count[k]));
    for (int i = 0; i < count[0]; i++)
        for (int k = 0; k < count[1]; k++)
            if (list[0][i].step == list[1][k].step && list[0][i].step > step) step = list[0][i].step;
    free(list[0]), free(list[1]);
    if (step < 0) {
        printf("weights      no step of which both have a checkpoint\n");
        return;
    }
    char name[32];
    folder_name(name, step);
    print_plain(stdout, "checkpoints  %s of both\n", name);
    diff_files(path_of("%s/checkpoints/%s", side[0], name).text, path_of("%s/checkpoints/%s", side[1], name).text);
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

/* What `diff` compares, by kind of path. A file that is no weights is read as a config. */
static const char *const NAMES[] = {[PATH_FILE] = "a config", [PATH_CHECKPOINT] = "a checkpoint",
                                    [PATH_RUN] = "a run", [PATH_WEIGHTS] = "weights", [PATH_FOLDER] = NULL};

static PathKind kind_of(const char *path) {
    PathKind kind = path_kind(path);
    if (kind == PATH_FILE && has_ending(path, ".safetensors")) return PATH_WEIGHTS;
    if (!NAMES[kind])
        fail(EXIT_CONFIG,
             "diff: %s is nothing that diff compares: give the folder of a run, RUN/checkpoints/step_..., a config, or "
             "weights as .safetensors",
             path);
    return kind;
}

static int verb_diff(int words, char **word) {
    (void)words;
    side[0] = word[0], side[1] = word[1];
    PathKind kind[2] = {kind_of(side[0]), kind_of(side[1])};
    if (kind[0] == PATH_CHECKPOINT && kind[1] == PATH_WEIGHTS) kind[0] = PATH_WEIGHTS;
    if (kind[1] == PATH_CHECKPOINT && kind[0] == PATH_WEIGHTS) kind[1] = PATH_WEIGHTS;
    if (kind[0] != kind[1])
        fail(EXIT_CONFIG,
             "diff: %s is %s and %s is %s: give two of the same kind; for one checkpoint of a run give "
             "RUN/checkpoints/step_...",
             side[0], NAMES[kind[0]], side[1], NAMES[kind[1]]);
    if (kind[0] == PATH_RUN) diff_runs();
    else if (kind[0] == PATH_CHECKPOINT) {
        Manifest m[2], *a = &m[0], *b = &m[1];
        for (int k = 0; k < 2; k++) {
            char fault[MANIFEST_FAULT_BYTES] = "";
            if (!inspect_read_manifest(side[k], &m[k], fault)) fail(EXIT_DATA, "%s: %s", side[k], fault);
        }
        diff_configs(a->config, b->config);
        printf("step         %" PRId64 " | %" PRId64 "\n", a->step, b->step);
        if (a->step == b->step && a->samples != b->samples)
            printf("samples      %" PRId64 " | %" PRId64 "\n", a->samples, b->samples);
        differs |= a->step != b->step || a->samples != b->samples;
        diff_files(side[0], side[1]);
        manifest_free(a), manifest_free(b);
    } else if (kind[0] == PATH_WEIGHTS) diff_weights("weights", side[0], side[1]);
    else {
        cJSON *json[2]; /* the two configs, resolved like in a run: with presets, defaults and derived sizes */
        for (int k = 0; k < 2; k++) {
            Config config;
            char  *faults = config_load_elsewhere(side[k], NULL, 0, 0, &config);
            if (faults) fail_lines(EXIT_CONFIG, faults);
            json[k] = config_to_json(&config);
            config_free(&config);
        }
        diff_configs(json[0], json[1]);
        cJSON_Delete(json[0]), cJSON_Delete(json[1]);
    }
    if (!differs) printf("nothing differs\n");
    return differs ? EXIT_DIFFERS : EXIT_DONE;
}

const Verb DIFF_VERB = {
    "diff", "A B [tensors=true]", "where two runs, checkpoints or configs differ",
    "Compares two runs, checkpoints, configs or files of weights. Exit 0: nothing differs; 1: something does.",
    DIFF_KEYS, "./train_gpt diff runs/a runs/b", verb_diff,
    {2, 2, "two runs, checkpoints, configs or files of weights"},
};
