/* inspect_weights.c - .safetensors files for `inspect`: tensors, types, parameters, norm, range, NaN and Inf. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/io.h"
#include "run/checkpoint/weights.h"
#include "run/verbs/inspect.h"

enum { NAMED = 5 }; /* most tensors with values that are not finite that are named by default */

typedef struct {
    WeightsStats all;
    int64_t      tensors, parameters, silent; /* silent: tensors of types whose values are not read */
    int64_t      of_type[SAFE_TYPES];
    int          named;
    cJSON       *list;                        /* borrowed; NULL: no list */
} Totals;

/* Return the range of the finite values; NaN if there are none. */
static double least_of(const WeightsStats *s) { return s->least > s->most ? NAN : s->least; }
static double most_of(const WeightsStats *s) { return s->least > s->most ? NAN : s->most; }

static cJSON *stats_json(const WeightsStats *s) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToObject(object, "norm", report_json(weights_norm(s)));
    cJSON_AddItemToObject(object, "min", report_json(least_of(s)));
    cJSON_AddItemToObject(object, "max", report_json(most_of(s)));
    cJSON_AddNumberToObject(object, "nan", (double)s->nans);
    cJSON_AddNumberToObject(object, "inf", (double)s->infs);
    return object;
}

static void tell_tensor(Inspect *in, Totals *t, const SafeTensor *tensor, const WeightsStats *s) {
    char shape[200];
    safetensors_shape(shape, sizeof shape, tensor);
    if (t->list) {
        cJSON *one = s ? stats_json(s) : cJSON_CreateObject();
        cJSON_AddStringToObject(one, "name", tensor->name);
        cJSON_AddStringToObject(one, "type", safetensors_type_name(tensor->type));
        cJSON_AddStringToObject(one, "shape", shape);
        cJSON_AddItemToArray(t->list, one);
    }
    int is_bad = s && (s->nans || s->infs) && t->named++ < NAMED;
    if (s && (in->lists_tensors || is_bad))
        report_row(&in->report, "%-42s %-14s %-4s norm %-11.5g %11.4g to %-11.4g %lld NaN, %lld Inf", tensor->name,
                   shape, safetensors_type_name(tensor->type), weights_norm(s), least_of(s), most_of(s), (long long)s->nans,
                   (long long)s->infs);
    else if (in->lists_tensors)
        report_row(&in->report, "%-42s %-14s %-4s", tensor->name, shape, safetensors_type_name(tensor->type));
}

static void add_file(Inspect *in, Totals *t, const char *path) {
    WeightsFile w = weights_open(path);
    for (int i = 0; i < w.header.tensors; i++) {
        const SafeTensor *tensor = &w.header.tensor[i];
        WeightsStats      s = weights_stats_none();
        int               is_read = weights_has_values(tensor);
        if (is_read) s = weights_stats(&w, tensor), weights_stats_add(&t->all, &s);
        t->tensors++, t->silent += !is_read, t->of_type[tensor->type]++, t->parameters += weights_elems(tensor);
        tell_tensor(in, t, tensor, is_read ? &s : NULL);
    }
    weights_close(&w);
}

/* Writes the number of tensors of each type, such as "148 F32, 2 U8". */
static void types_text(const Totals *t, char *out, size_t room) {
    *out = 0;
    for (int k = 0; k < SAFE_TYPES; k++)
        if (t->of_type[k])
            snprintf(out + strlen(out), room - strlen(out), "%s%lld %s", *out ? ", " : "", (long long)t->of_type[k],
                     safetensors_type_name((SafeType)k));
}

static void tell_line(Inspect *in, const char *key, const WeightsStats *s) {
    report_item(&in->report, key, stats_json(s), "%lld values, norm %.6g, from %.4g to %.4g, %lld NaN, %lld Inf",
                (long long)s->elems, weights_norm(s), least_of(s), most_of(s), (long long)s->nans, (long long)s->infs);
}

void inspect_weights_line(Inspect *in, const char *key, const char *path) {
    Totals t = {.all = weights_stats_none()};
    add_file(in, &t, path);
    tell_line(in, key, &t.all);
}

void inspect_states(Inspect *in, const char *path) {
    WeightsFile w = weights_open(path);
    for (int i = 0; i < w.header.tensors; i++) {
        if (!weights_has_values(&w.header.tensor[i])) continue;
        WeightsStats s = weights_stats(&w, &w.header.tensor[i]);
        tell_line(in, w.header.tensor[i].name, &s);
    }
    weights_close(&w);
}

void inspect_weights(Inspect *in, const char *path) {
    Report *r = &in->report;
    Totals  t = {.all = weights_stats_none(), .list = r->json && in->lists_tensors ? cJSON_CreateArray() : NULL};
    char    types[256];
    IoPaths found = {NULL, 0};
    int     is_folder = path_kind(path) != PATH_FILE;
    report_text(r, "kind", is_folder ? "a folder of safetensors weights" : "safetensors weights");
    if (is_folder && (io_match(path_of("%s/*.safetensors", path).text, &found) < 0 || found.count == 0))
        fail(EXIT_DATA, "%s holds no .safetensors file any more", path);
    if (is_folder) weights_set_check_json(path);
    for (size_t i = 0; i < found.count; i++) add_file(in, &t, found.path[i]);
    io_paths_free(&found);
    if (!is_folder) add_file(in, &t, path);
    types_text(&t, types, sizeof types);
    if (t.list) report_item(r, "tensor", t.list, "%s", "");
    report_number(r, "tensors", (double)t.tensors, "%lld: %s", (long long)t.tensors, types);
    report_number(r, "parameters", (double)t.parameters, "%lld", (long long)t.parameters);
    if (t.silent)
        report_number(r, "not_read", (double)t.silent,
                      "values of %lld tensors are of other types than F32, F16 and BF16", (long long)t.silent);
    report_number(r, "norm", weights_norm(&t.all), "%.9g", weights_norm(&t.all));
    report_number(r, "min", least_of(&t.all), "%.9g", least_of(&t.all));
    report_number(r, "max", most_of(&t.all), "%.9g", most_of(&t.all));
    report_number(r, "nan", (double)t.all.nans, "%lld", (long long)t.all.nans);
    report_number(r, "inf", (double)t.all.infs, "%lld", (long long)t.all.infs);
    if (!in->lists_tensors) report_row(r, "tensors=true lists each");
}
