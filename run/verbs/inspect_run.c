/* inspect_run.c - runs, checkpoints, configs and metrics for `inspect`. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/io.h"
#include "core/format.h"
#include "run/config/config.h"
#include "run/verbs/inspect.h"
#include "run/log/run_log.h"
#include "run/plan/plan.h"

enum { NAMED = 3 }; /* data files and checkpoints that are named; others are counted */

/* --- config ------------------------------------------------------------------------------------------------------- */

typedef struct { Inspect *in; cJSON *keys; } Differences;

static void tell_key(void *ctx, const char *key, const cJSON *now, const cJSON *otherwise) {
    Differences *d = (Differences *)ctx;
    char         value[REPORT_VALUE], fallback[REPORT_VALUE];
    if (!now) return;
    cJSON_AddItemToObject(d->keys, key, report_copy(now));
    if (otherwise)
        report_row(&d->in->report, "%-30s %s (default %s)", key, report_value(now, value),
                   report_value(otherwise, fallback));
    else report_row(&d->in->report, "%-30s %s", key, report_value(now, value));
}

void inspect_config(Inspect *in, const cJSON *config) {
    Differences d = {in, cJSON_CreateObject()};
    if (!in->report.json) report_text(&in->report, "config", "what is not the default:");
    config_diff(config, NULL, tell_key, &d);
    if (in->report.json) report_item(&in->report, "config", d.keys, "%s", "");
    else cJSON_Delete(d.keys);
}

/* --- metrics ------------------------------------------------------------------------------------------------------ */

void inspect_metrics(Inspect *in, const char *path) {
    Report *r = &in->report;
    MetricsLine line, first = {.loss = NAN}, last = first, best = first;
    int64_t steps = 0, evals = 0;
    FILE   *f = io_open_stream(path, IO_READ);
    if (!f) fail(EXIT_IO, "%s cannot be read: %s", path, io_error_text(errno));
    while (metrics_line_next(f, &line) != LINE_OTHER) {
        if (line.kind == LINE_TRAIN || (line.kind == LINE_OUTER && line.step > last.step)) {
            if (steps++ == 0) first = line;
            last = line;
        } else if (line.kind == LINE_EVAL) {
            evals++;
            if (isnan(best.loss) || line.loss < best.loss) best = line;
        }
    }
    fclose(f);
    report_number(r, "steps", (double)last.step, "%" PRId64 ", of which %" PRId64 " have a line", last.step, steps);
    if (steps == 0) return;
    report_number(r, "first_loss", first.loss, "%.6g at step %" PRId64, first.loss, first.step);
    report_number(r, "last_loss", last.loss, "%.6g at step %" PRId64, last.loss, last.step);
    if (evals)
        report_number(r, "best_val", best.loss, "%.6g at step %" PRId64 ", of %" PRId64 " evaluations", best.loss,
                      best.step, evals);
}

/* --- checkpoint --------------------------------------------------------------------------------------------------- */

static void tell_verified(Report *r, int is_good, const char *fault) {
    report_item(r, "verified", cJSON_CreateBool(is_good), is_good ? "yes: every byte is as it was saved" : "no: %s",
                fault);
    if (r->json && !is_good) report_text(r, "fault", "%s", fault);
}

static void tell_run_id(Inspect *in, const Manifest *m) {
    report_text(&in->report, "run_id", "%s", m->run_id);
    if (m->parent.run_id[0])
        report_text(&in->report, "parent", "%s at step %lld", m->parent.run_id, (long long)m->parent.step);
}

static void tell_origin(Inspect *in, const Manifest *m) {
    Report      *r = &in->report;
    const cJSON *from = json_member(json_member(m->config, "model"), "init_from");
    tell_run_id(in, m);
    if (cJSON_IsString(from) && from->valuestring[0]) report_text(r, "init_from", "%s", from->valuestring);
    report_text(r, "saved_by", "%d rank%s x %d thread%s%s%s, %s, %s", m->ranks, m->ranks == 1 ? "" : "s", m->threads,
                m->threads == 1 ? "" : "s", m->grid[0] ? ", " : "", m->grid, m->backend, m->precision);
    int64_t tokens = 0;
    for (int i = 0; i < m->data_files; i++) tokens += m->data[i].tokens;
    report_number(r, "data_files", m->data_files, "%d, %s tokens", m->data_files, plan_count_text((double)tokens).text);
    for (int i = 0; i < m->data_files && i < NAMED; i++)
        report_row(r, "%s, %" PRId64 " tokens", m->data[i].name, m->data[i].tokens);
    if (m->data_files > NAMED) report_row(r, "and %d more", m->data_files - NAMED);
}

/* Reports a checkpoint whose manifest can be read, and whether its files verify. Returns an exit code. */
static int tell_checkpoint(Inspect *in, const char *folder, const Manifest *m) {
    Report  *r = &in->report;
    char     fault[MANIFEST_FAULT_BYTES] = "";
    uint64_t bytes = 0;
    int      is_good = manifest_verify(m, folder, 0, 1, NULL, NULL, fault);
    for (int f = 0; f < MANIFEST_FILES; f++) bytes += m->file[f].bytes;
    report_number(r, "step", (double)m->step, "%" PRId64, m->step);
    report_number(r, "tokens", (double)m->tokens, "%" PRId64, m->tokens);
    tell_origin(in, m);
    report_number(r, "bytes", (double)bytes, "%s", bytes_text((double)bytes).text);
    tell_verified(r, is_good, fault);
    if (is_good) {
        inspect_weights_line(in, "weights", path_of("%s/model.safetensors", folder).text);
        inspect_states(in, path_of("%s/optimizer.safetensors", folder).text);
    }
    inspect_config(in, m->config);
    return is_good ? EXIT_DONE : EXIT_DATA;
}

int inspect_read_manifest(const char *folder, Manifest *m, char *fault) {
    char   *text = NULL;
    int64_t bytes = io_read_file(path_of("%s/" MANIFEST_NAME, folder).text, MANIFEST_LIMIT, &text);
    if (bytes < 0) manifest_unread(fault, MANIFEST_NAME, (int)-bytes);
    if (bytes == -EIO || bytes == -EACCES || bytes == -ESTALE) fail(EXIT_IO, "%s: %s", folder, fault);
    int is_read = bytes >= 0 && manifest_parse(text, (size_t)bytes, m, fault) == MANIFEST_GOOD;
    free(text);
    return is_read;
}

int inspect_checkpoint(Inspect *in, const char *folder) {
    Manifest m;
    char     fault[MANIFEST_FAULT_BYTES] = "";
    report_text(&in->report, "kind", "checkpoint");
    if (!inspect_read_manifest(folder, &m, fault)) {
        tell_verified(&in->report, 0, fault);
        return EXIT_DATA;
    }
    int status = tell_checkpoint(in, folder, &m);
    manifest_free(&m);
    return status;
}

/* --- run ---------------------------------------------------------------------------------------------------------- */

static void tell_checkpoints(Inspect *in, const char *folder) {
    StepFolder *list = NULL;
    Path        checkpoints = path_of("%s/checkpoints", folder);
    int         count = folders_list(checkpoints.text, &list);
    cJSON      *steps = cJSON_CreateArray();
    char        names[128] = "";
    if (count < 0) fail(EXIT_IO, "%s cannot be read: %s", checkpoints.text, io_error_text(count));
    for (int i = 0; i < count; i++) {
        cJSON_AddItemToArray(steps, cJSON_CreateNumber((double)list[i].step));
        if (i < NAMED)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : ": ", list[i].name);
    }
    report_item(&in->report, "checkpoints", steps, "%d%s%s", count, names, count > NAMED ? ", ..." : "");
    if (count) {
        Manifest m;
        char     fault[MANIFEST_FAULT_BYTES] = "";
        if (inspect_read_manifest(path_of("%s/%s", checkpoints.text, list[0].name).text, &m, fault)) {
            tell_run_id(in, &m);
            manifest_free(&m);
        }
        report_row(&in->report, "./train_gpt inspect %s verifies the newest",
                   shell_word(path_of("%s/%s", checkpoints.text, list[0].name).text).text);
    }
    free(list);
}

int inspect_run(Inspect *in, const char *folder) {
    struct stat st;
    Path        config = path_of("%s/config.json", folder), metrics = path_of("%s/metrics.jsonl", folder);
    cJSON      *json = inspect_read_json(config.text);
    report_text(&in->report, "kind", "run");
    if (!json) fail(EXIT_DATA, "%s is no JSON: damaged, or another program's", config.text);
    if (stat(metrics.text, &st) == 0) inspect_metrics(in, metrics.text);
    tell_checkpoints(in, folder);
    inspect_config(in, json);
    cJSON_Delete(json);
    return EXIT_DONE;
}
