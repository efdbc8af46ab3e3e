/* inspect.c - `train_gpt inspect PATH`: prints what kind of file or folder PATH is, and its numbers. The content
 * decides the kind. Only for bare tokens, which have no header, the name does. Memory does not grow with the files. */
#include "run/verbs/inspect.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json.h"
#include "core/format.h"
#include "core/terminal.h"
#include "core/error.h"
#include "data/shard.h"
#include "data/text_file.h"
#include "data/tokenizer.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/safetensors.h"
#include "run/checkpoint/weights.h"
#include "run/config/config.h"
#include "run/log/run_log.h"
#include "run/plan/plan.h"
#include "run/verbs/verbs.h"

/* --- the report --------------------------------------------------------------------------------------------------- */

/* The results of the verb have short keys. They become lines for people, which are printed at once, or one JSON object
 * for scripts. */
static cJSON *report; /* owned: the JSON object; NULL if lines are printed */
static int    as_json, lists_tensors, status = EXIT_DONE;

/* Returns a number as JSON, or null if it is not finite. */
static cJSON *finite_json(double value) { return isfinite(value) ? number_json(value) : cJSON_CreateNull(); }

/* Returns a copy of a JSON value that keeps all digits of a number. */
static cJSON *exact_copy(const cJSON *value) {
    return cJSON_IsNumber(value) ? finite_json(number_value(value)) : cJSON_Duplicate(value, 1);
}

char *report_value(const cJSON *value, char out[REPORT_VALUE]) {
    char shown[SHOWN_BYTES];
    if (cJSON_IsNumber(value) || cJSON_IsRaw(value)) {
        snprintf(out, REPORT_VALUE, "%.60s", number_text(number_value(value), shown));
        return out;
    }
    char *text = value ? cJSON_PrintUnformatted(value) : NULL;
    int length = snprintf(out, REPORT_VALUE, "%s", text ? text : "-");
    if (length >= REPORT_VALUE) strcpy(out + REPORT_VALUE - 4, "...");
    free(text);
    return out;
}

/* Adds a result: the JSON value, whose ownership it takes, or a printed line "key text". Without a value, the text is
 * the value. Without a key, the line is an indented row of a table, for people only. */
static void PRINTF_LIKE(3, 4) report_item(const char *key, cJSON *item, const char *fmt, ...) {
    char    text[8192];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (report && key) cJSON_AddItemToObject(report, key, item ? item : json_string(text));
    if (report) return;
    cJSON_Delete(item);
    if (key) print_plain(stdout, "%-12s %s\n", key, text);
    else print_plain(stdout, "  %s\n", text);
}
#define report_text(key, ...) report_item(key, NULL, __VA_ARGS__)
#define report_row(...)       report_item(NULL, NULL, __VA_ARGS__)

static void report_count(const char *key, int64_t value) {
    report_item(key, finite_json((double)value), "%lld", (long long)value);
}

/* --- what a path is ----------------------------------------------------------------------------------------------- */

enum { JSON_MOST = 1 << 28, PATH_ROOM = 4200, NAMED = 3 /* NAMED: most data files and checkpoints listed by name */ };

static int holds(const char *folder, const char *pattern) {
    IoPaths found = {NULL, 0};
    io_match(path_of("%s/%s", folder, pattern).text, &found);
    int is_found = found.count > 0;
    io_paths_free(&found);
    return is_found;
}

PathKind path_kind(const char *path) {
    struct stat st;
    char        in_folder[PATH_ROOM];
    if (stat(path, &st) != 0)
        fail(errno == ENOENT || errno == ENOTDIR ? EXIT_DATA : EXIT_IO, "%s cannot be read: %s", path,
             io_error_text(errno));
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        fail(EXIT_DATA, "%s %s", path, io_error_text(io_kind(st.st_mode)));
    if (!S_ISDIR(st.st_mode)) return PATH_FILE;
    if (holds(path, MANIFEST_NAME)) return PATH_CHECKPOINT;
    if (holds(path, "config.json") && (holds(path, "metrics.jsonl") || holds(path, "checkpoints"))) return PATH_RUN;
    if (holds(path, "*.safetensors")) return PATH_WEIGHTS;
    if (holds(path, "*.bin")) return PATH_SHARDS;
    return tokenizer_beside(path_of("%s/", path).text, in_folder, sizeof in_folder) ? PATH_TOKENIZER : PATH_FOLDER;
}

cJSON *inspect_read_json(const char *path) {
    char   *text = NULL;
    int64_t bytes = io_read_file(path, JSON_MOST, &text);
    if (bytes == -EFBIG) return NULL;
    if (bytes < 0) fail(EXIT_IO, "%s cannot be read: %s", path, io_error_text((int)bytes));
    char   fault[TEXT_FILE_FAULT_CHARS];
    size_t clean = (size_t)bytes;
    cJSON *json = text_clean(&text, &clean, JSON_MOST, path, fault) ? NULL : json_of_others(text, clean);
    free(text);
    return json;
}

int inspect_read_manifest(const char *folder, Manifest *m, char *fault) {
    ManifestStatus status = folder_manifest(folder, m, fault);
    if (status == MANIFEST_UNKNOWN) fail(EXIT_IO, "%s: %s", folder, fault);
    return status == MANIFEST_GOOD;
}

/* --- tokens: kind, number, the most frequent ids, the first tokens as text ---------------------------------------- */

enum { COUNTED = 1 << 20, BLOCK = 1 << 20, COMMONEST = 5, FIRST = 32 };

static const char *kind_of(const ShardHeader *h) {
    if (h->data_offset) return h->token_bytes == 2 ? "llm.c token shard, version 1" : "llm.c token shard, version 7";
    if (h->sequences) return "Megatron tokens, with their index";
    return h->token_bytes == 2 ? "tokens without a header, as nanoGPT's" : "uint32 tokens without a header";
}

/* Returns how often each id below COUNTED occurs [COUNTED], malloc'ed, and the largest of all ids. */
static int64_t *count_ids(const Shard *s, uint32_t *largest) {
    int64_t *count = xcalloc(COUNTED, sizeof *count, "the counts of tokens");
    int32_t *tokens = xmalloc(BLOCK * sizeof *tokens, "the counts of tokens");
    *largest = 0;
    for (int64_t at = 0, n; at < s->header.tokens; at += n) {
        n = s->header.tokens - at < BLOCK ? s->header.tokens - at : BLOCK;
        shard_read(s, at, n, tokens);
        for (int64_t i = 0; i < n; i++) {
            uint32_t id = (uint32_t)tokens[i];
            if (id > *largest) *largest = id;
            if (id < COUNTED) count[id]++;
        }
    }
    free(tokens);
    return count;
}

/* Returns the text of some tokens, quoted and malloc'ed. */
static char *text_of(const Tokenizer *t, const int32_t *id, int64_t count) {
    char  *text = NULL;
    size_t bytes = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    for (int64_t i = 0; i < count; i++) tokenizer_decode(t, id[i], out);
    fclose(out);
    size_t room = 6 * bytes + 3;
    char  *quoted = xmalloc(room, "the text of tokens");
    json_quote(quoted, room, text);
    free(text);
    return quoted;
}

static void report_commonest(const Shard *s, int64_t *count, const Tokenizer *t) {
    cJSON *list = cJSON_CreateArray();
    char   line[1024] = "";
    for (int k = 0; k < COMMONEST; k++) {
        int best = 0;
        for (int id = 1; id < COUNTED; id++)
            if (count[id] > count[best]) best = id;
        if (count[best] == 0) break;
        double  share = (double)count[best] / (double)s->header.tokens;
        int32_t id = best;
        char   *text = text_of(t, &id, 1);
        cJSON  *one = cJSON_CreateObject();
        cJSON_AddNumberToObject(one, "id", best);
        cJSON_AddItemToObject(one, "share", finite_json(share));
        cJSON_AddItemToArray(list, one);
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%d%s%.60s %.1f %%", k ? ", " : "", best,
                 t->kind == TOKENIZER_IDS ? "" : " ", t->kind == TOKENIZER_IDS ? "" : text, 100.0 * share);
        free(text);
        count[best] = 0;
    }
    report_item("commonest", list, "%s", line);
}

static void inspect_shard(const char *path) {
    Shard        s = shard_open(path, 0);
    size_t       start = s.file_bytes < SHARD_START_BYTES ? (size_t)s.file_bytes : SHARD_START_BYTES;
    TextEncoding encoding = text_wide_encoding(s.map, start);
    if (s.header.data_offset || s.header.sequences || encoding == ENCODING_FOUND)
        report_text("kind", "%s", kind_of(&s.header));
    else report_text("kind", "%s, or text in %s", kind_of(&s.header), TEXT_ENCODINGS[encoding - 1]);
    report_count("bytes", (int64_t)s.file_bytes);
    report_count("tokens", s.header.tokens);
    report_count("token_bytes", s.header.token_bytes);
    if (s.header.sequences) report_count("sequences", s.header.sequences);
    uint32_t largest;
    int64_t *count = count_ids(&s, &largest);
    report_count("largest_id", largest);
    /* path of a tokenizer in the folder of the file; without one, tokens count as bytes if no id is above 255 */
    char      beside[PATH_ROOM];
    Tokenizer t = tokenizer_beside(path, beside, sizeof beside)
                      ? tokenizer_create(beside, BPE_MOST_IDS)
                      : tokenizer_create("", largest < 256 ? 256 : (int64_t)largest + 1);
    report_commonest(&s, count, &t);
    int32_t first[FIRST];
    int64_t firsts = s.header.tokens < FIRST ? s.header.tokens : FIRST;
    shard_read(&s, 0, firsts, first);
    char *text = text_of(&t, first, firsts);
    report_text("begins", "%s", text);
    free(text);
    free(count);
    tokenizer_destroy(&t);
    shard_close(&s);
}

static void inspect_shards(const char *folder) {
    IoPaths found = {NULL, 0};
    int64_t tokens = 0, files = 0;
    io_match(path_of("%s/*.bin", folder).text, &found);
    if (found.count == 0)
        fail(EXIT_DATA, "%s had token files (.bin) when inspect began, and has none now: type the command again when "
             "they are back", folder);
    report_text("kind", "a folder of token files");
    for (size_t i = 0; i < found.count; i++) {
        Shard s = shard_open(found.path[i], 0);
        report_row("%-40s %14lld tokens, %s", shard_name(&s), (long long)s.header.tokens, kind_of(&s.header));
        tokens += s.header.tokens, files++;
        shard_close(&s);
    }
    io_paths_free(&found);
    report_count("files", files);
    report_item("tokens", finite_json((double)tokens), "%s", plan_count_text((double)tokens).text);
}

/* --- weights: tensors, types, parameters, norm, range, NaN and Inf ------------------------------------------------ */

/* BAD_NAMED: most tensors with NaN or Inf that are listed by name, unless tensors=true */
enum { BAD_NAMED = 5 };

typedef struct {
    WeightsStats all;
    int64_t      tensors, parameters, silent; /* silent: number of tensors of types whose values cannot be read */
    int64_t      of_type[SAFE_TYPES];
    int          named;                       /* tensors with NaN or Inf that were listed */
    cJSON       *list;                        /* borrowed: a JSON list of tensors; NULL if there is none */
} Totals;

static cJSON *stats_json(const WeightsStats *s) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToObject(object, "norm", finite_json(weights_norm(s)));
    cJSON_AddItemToObject(object, "min", finite_json(s->least));
    cJSON_AddItemToObject(object, "max", finite_json(s->most));
    cJSON_AddNumberToObject(object, "nan", (double)s->nans);
    cJSON_AddNumberToObject(object, "inf", (double)s->infs);
    return object;
}

static void tell_line(const char *key, const WeightsStats *s) {
    report_item(key, stats_json(s), "%lld values, norm %.6g, from %.4g to %.4g, %lld NaN, %lld Inf",
                (long long)s->elems, weights_norm(s), s->least, s->most, (long long)s->nans, (long long)s->infs);
}

static void add_file(Totals *t, const char *path) {
    WeightsFile w = weights_open(path);
    char        shape[200];
    for (int i = 0; i < w.header.tensors; i++) {
        const SafeTensor *tensor = &w.header.tensor[i];
        WeightsStats      s = weights_stats_none();
        int               is_read = weights_has_values(tensor);
        if (is_read) s = weights_stats(&w, tensor), weights_stats_add(&t->all, &s);
        t->tensors++, t->silent += !is_read, t->of_type[tensor->type]++, t->parameters += weights_elems(tensor);
        const char *type = safetensors_type_name(tensor->type);
        safetensors_shape(shape, sizeof shape, tensor);
        if (t->list) {
            cJSON *one = is_read ? stats_json(&s) : cJSON_CreateObject();
            cJSON_AddStringToObject(one, "name", tensor->name);
            cJSON_AddStringToObject(one, "type", type);
            cJSON_AddStringToObject(one, "shape", shape);
            cJSON_AddItemToArray(t->list, one);
        }
        int is_bad = is_read && (s.nans || s.infs) && t->named++ < BAD_NAMED;
        if (is_read && (lists_tensors || is_bad))
            report_row("%-42s %-14s %-4s norm %-11.5g %11.4g to %-11.4g %lld NaN, %lld Inf", tensor->name, shape, type,
                       weights_norm(&s), s.least, s.most, (long long)s.nans, (long long)s.infs);
        else if (lists_tensors) report_row("%-42s %-14s %-4s", tensor->name, shape, type);
    }
    weights_close(&w);
}

/* Reports the weights of one file, or of all files of a folder. */
static void inspect_weights(const char *path) {
    Totals  t = {.all = weights_stats_none(), .list = report && lists_tensors ? cJSON_CreateArray() : NULL};
    char    types[256] = ""; /* tensors of each type, such as "148 F32, 2 U8" */
    IoPaths found = {NULL, 0};
    int     is_folder = path_kind(path) != PATH_FILE;
    report_text("kind", is_folder ? "a folder of safetensors weights" : "safetensors weights");
    if (is_folder) io_match(path_of("%s/*.safetensors", path).text, &found);
    if (is_folder && found.count == 0) fail(EXIT_DATA, "%s holds no .safetensors file any more", path);
    if (is_folder) weights_set_check_json(path);
    for (size_t i = 0; i < found.count; i++) add_file(&t, found.path[i]);
    io_paths_free(&found);
    if (!is_folder) add_file(&t, path);
    for (int k = 0; k < SAFE_TYPES; k++)
        if (t.of_type[k])
            snprintf(types + strlen(types), sizeof types - strlen(types), "%s%lld %s", *types ? ", " : "",
                     (long long)t.of_type[k], safetensors_type_name((SafeType)k));
    if (t.list) report_item("tensor", t.list, "%s", "");
    report_item("tensors", finite_json((double)t.tensors), "%lld: %s", (long long)t.tensors, types);
    report_count("parameters", t.parameters);
    if (t.silent)
        report_item("not_read", finite_json((double)t.silent),
                      "values of %lld tensors are of other types than F32, F16 and BF16", (long long)t.silent);
    report_item("norm", finite_json(weights_norm(&t.all)), "%.9g", weights_norm(&t.all));
    report_item("min", finite_json(t.all.least), "%.9g", t.all.least);
    report_item("max", finite_json(t.all.most), "%.9g", t.all.most);
    report_count("nan", t.all.nans);
    report_count("inf", t.all.infs);
    if (!lists_tensors) report_row("tensors=true lists each");
}

/* --- config ------------------------------------------------------------------------------------------------------- */

static void tell_key(void *ctx, const char *key, const cJSON *now, const cJSON *otherwise) {
    char value[REPORT_VALUE], fallback[REPORT_VALUE];
    if (!now) return;
    if (ctx) cJSON_AddItemToObject(ctx, key, exact_copy(now));
    else if (otherwise)
        report_row("%-30s %s (default %s)", key, report_value(now, value), report_value(otherwise, fallback));
    else report_row("%-30s %s", key, report_value(now, value));
}

/* Reports the keys of a config that differ from the defaults. */
static void inspect_config(const cJSON *config) {
    cJSON *keys = report ? cJSON_CreateObject() : NULL;
    if (!report) report_text("config", "what is not the default:");
    config_diff(config, NULL, tell_key, keys);
    if (report) report_item("config", keys, "%s", "");
}

/* --- metrics ------------------------------------------------------------------------------------------------------ */

static void inspect_metrics(const char *path) {
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
    report_item("steps", finite_json((double)last.step), "%" PRId64 ", of which %" PRId64 " have a line", last.step,
                steps);
    if (steps == 0) return;
    report_item("first_loss", finite_json(first.loss), "%.6g at step %" PRId64, first.loss, first.step);
    report_item("last_loss", finite_json(last.loss), "%.6g at step %" PRId64, last.loss, last.step);
    if (evals)
        report_item("best_val", finite_json(best.loss), "%.6g at step %" PRId64 ", of %" PRId64 " evaluations",
                    best.loss, best.step, evals);
}

/* --- checkpoint --------------------------------------------------------------------------------------------------- */

static void tell_verified(int is_good, const char *fault) {
    if (!is_good) status = EXIT_DATA;
    report_item("verified", cJSON_CreateBool(is_good), is_good ? "yes: every byte is as it was saved" : "no: %s",
                fault);
    if (report && !is_good) report_text("fault", "%s", fault);
}

static void tell_run_id(const Manifest *m) {
    report_text("run_id", "%s", m->run_id);
    if (m->parent.run_id[0])
        report_text("parent", "%s at step %lld", m->parent.run_id, (long long)m->parent.step);
}

/* Reports a checkpoint, and whether its files are undamaged. */
static void inspect_checkpoint(const char *folder) {
    Manifest m;
    char     fault[MANIFEST_FAULT_BYTES] = "";
    uint64_t bytes = 0;
    int64_t  data_tokens = 0;
    report_text("kind", "checkpoint");
    if (!inspect_read_manifest(folder, &m, fault)) {
        tell_verified(0, fault);
        return;
    }
    int is_good = manifest_verify(&m, folder, NULL, NULL, fault);
    for (int f = 0; f < MANIFEST_FILES; f++) bytes += m.file[f].bytes;
    for (int i = 0; i < m.data_files; i++) data_tokens += m.data[i].tokens;
    report_count("step", m.step);
    report_count("tokens", m.tokens);
    tell_run_id(&m);
    const cJSON *from = config_value(m.config, "model.init_from");
    if (cJSON_IsString(from) && from->valuestring[0]) report_text("init_from", "%s", from->valuestring);
    report_text("saved_by", "%d rank%s x %d thread%s%s%s, %s, %s", m.ranks, plural(m.ranks), m.threads,
                plural(m.threads), m.grid[0] ? ", " : "", m.grid, m.backend, m.precision);
    report_item("data_files", finite_json(m.data_files), "%d, %s tokens", m.data_files,
                plan_count_text((double)data_tokens).text);
    for (int i = 0; i < m.data_files && i < NAMED; i++)
        report_row("%s, %" PRId64 " tokens", m.data[i].name, m.data[i].tokens);
    if (m.data_files > NAMED) report_row("and %d more", m.data_files - NAMED);
    report_item("bytes", finite_json((double)bytes), "%s", bytes_text((double)bytes).text);
    tell_verified(is_good, fault);
    if (is_good) {
        Totals      t = {.all = weights_stats_none()};
        WeightsFile moments = weights_open(path_of("%s/optimizer.safetensors", folder).text);
        add_file(&t, path_of("%s/model.safetensors", folder).text);
        tell_line("weights", &t.all);
        for (int i = 0; i < moments.header.tensors; i++) {
            const SafeTensor *tensor = &moments.header.tensor[i];
            if (!weights_has_values(tensor)) continue;
            WeightsStats of_one = weights_stats(&moments, tensor);
            tell_line(tensor->name, &of_one);
        }
        weights_close(&moments);
    }
    inspect_config(m.config);
    manifest_free(&m);
}

/* --- run ---------------------------------------------------------------------------------------------------------- */

static void inspect_run(const char *folder) {
    struct stat st;
    Path        config = path_of("%s/config.json", folder), metrics = path_of("%s/metrics.jsonl", folder);
    Path        checkpoints = path_of("%s/checkpoints", folder);
    cJSON      *json = inspect_read_json(config.text);
    report_text("kind", "run");
    if (!json)
        fail(EXIT_DATA, "%s is not JSON: it is damaged, or another program wrote it; restore it from a copy",
             config.text);
    if (stat(metrics.text, &st) == 0) inspect_metrics(metrics.text);

    StepFolder *list = NULL;
    int         count = folders_list(checkpoints.text, &list);
    cJSON      *steps = cJSON_CreateArray();
    char        names[128] = "";
    if (count < 0) fail(EXIT_IO, "%s cannot be read: %s", checkpoints.text, io_error_text(count));
    for (int i = 0; i < count; i++) {
        cJSON_AddItemToArray(steps, cJSON_CreateNumber((double)list[i].step));
        if (i < NAMED)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : ": ", list[i].name);
    }
    report_item("checkpoints", steps, "%d%s%s", count, names, count > NAMED ? ", ..." : "");
    if (count) {
        Manifest m;
        char     fault[MANIFEST_FAULT_BYTES] = "";
        if (inspect_read_manifest(path_of("%s/%s", checkpoints.text, list[0].name).text, &m, fault)) {
            tell_run_id(&m);
            manifest_free(&m);
        }
        report_row("./train_gpt inspect %s verifies the newest",
                   shell_word(path_of("%s/%s", checkpoints.text, list[0].name).text).text);
    }
    free(list);
    inspect_config(json);
    cJSON_Delete(json);
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

/* Reports the strings, numbers and booleans of a JSON object, one line each. */
static void tell_scalars(const cJSON *object) {
    char shown[REPORT_VALUE];
    for (const cJSON *item = object->child; item; item = item->next)
        if (!cJSON_IsObject(item) && !cJSON_IsArray(item))
            report_item(item->string, exact_copy(item), "%s", report_value(item, shown));
}

static void tell_tokenizer(const cJSON *json) {
    const cJSON *model = json_member(json, "model"), *type = json_member(model, "type"),
                *added = json_member(json, "added_tokens"), *item;
    int          entries = cJSON_GetArraySize(json_member(model, "vocab")), special = 0;
    char         names[256] = "";
    report_text("kind", "tokenizer.json of Hugging Face tokenizers, %s",
                cJSON_IsString(type) ? type->valuestring : "of no named type");
    report_count("entries", entries);
    report_count("merges", cJSON_GetArraySize(json_member(model, "merges")));
    cJSON_ArrayForEach(item, added) {
        const cJSON *content = json_member(item, "content");
        if (!cJSON_IsTrue(json_member(item, "special")) || !cJSON_IsString(content)) continue;
        if (special++ < 5)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%.40s", special > 1 ? " " : ": ",
                     content->valuestring);
    }
    report_item("special", finite_json(special), "%d%s%s", special, names, special > 5 ? " ..." : "");
}

/* Reports a vocab.json, which maps texts to ids. Returns 0 if a value is no number. */
static int tell_vocabulary(const cJSON *json) {
    int64_t      entries = 0;
    double       largest = -1;
    const cJSON *item;
    cJSON_ArrayForEach(item, json) {
        if (!cJSON_IsNumber(item)) return 0;
        entries++, largest = item->valuedouble > largest ? item->valuedouble : largest;
    }
    if (entries < 256) return 0;
    report_text("kind", "vocabulary: vocab.json of a byte-pair tokenizer");
    report_count("entries", entries);
    report_item("largest_id", finite_json(largest), "%.0f", largest);
    return 1;
}

/* Reports a JSON file of any known kind. */
static void inspect_json(const char *path, const cJSON *json) {
    const cJSON *map = json_member(json, "weight_map"), *item;
    if (json_member(json, "format") && json_member(json, "run_id")) {
        const char *slash = strrchr(path, '/');
        inspect_checkpoint(slash ? path_of("%.*s", (int)(slash - path), path).text : ".");
    } else if (map) {
        cJSON *files = cJSON_CreateObject(); /* the names of the files, each once */
        cJSON_ArrayForEach(item, map) if (cJSON_IsString(item) && !json_member(files, item->valuestring))
            cJSON_AddTrueToObject(files, item->valuestring);
        double bytes = number_value(json_member(json_member(json, "metadata"), "total_size"));
        report_text("kind", "index of safetensors weights in several files");
        report_count("tensors", cJSON_GetArraySize(map));
        report_count("files", cJSON_GetArraySize(files));
        if (!isnan(bytes)) report_item("total_bytes", finite_json(bytes), "%.0f", bytes);
        cJSON_Delete(files);
    } else if (json_member(json_member(json, "model"), "vocab")) tell_tokenizer(json);
    else if (json_member(json, "train_tokens") || json_member(json, "bytes_per_token")) {
        report_text("kind", "notes of tokenize on the shards beside it");
        tell_scalars(json);
    } else if (json_member(json, "gpus_per_node")) {
        report_text("kind", "cluster for plan cluster=%s", path);
        tell_scalars(json);
    } else if (json_member(json, "model_type") || json_member(json, "architectures")) {
        report_text("kind", "config.json of a Hugging Face model");
        tell_scalars(json);
    } else if (json_member(json, "run") || json_member(json, "batch")) {
        report_text("kind", "config of a run");
        inspect_config(json);
    } else if (!tell_vocabulary(json)) {
        report_text("kind", "JSON of another program, with %d values", cJSON_GetArraySize(json));
        status = EXIT_DATA;
    }
}

/* --- the start of a file ------------------------------------------------------------------------------------------ */

typedef struct {
    char   *text;  /* owned [given]: the first bytes of the file */
    size_t  given; /* number of bytes in `text`, at most SHARD_START_BYTES */
    int64_t bytes; /* bytes of the file */
} Start;

/* Returns int32 number i of the start of a file, or 0 if it is too short. */
static int32_t word_at(const Start *s, int i) {
    return s->given < 4 * ((size_t)i + 1) ? 0 : (int32_t)little_endian(s->text + 4 * i, 4);
}

/* --- JSON Lines --------------------------------------------------------------------------------------------------- */

static int64_t count_lines(const char *path) {
    int64_t lines = 0;
    FILE   *f = io_open_stream(path, IO_READ);
    if (!f) fail(EXIT_IO, "%s cannot be read: %s", path, io_error_text(errno));
    for (int c; (c = fgetc(f)) != EOF;) lines += c == '\n';
    fclose(f);
    return lines;
}

/* --- llm.c's other files ------------------------------------------------------------------------------------------ */

/* Kinds of files that begin with a header of 256 int32: the useful numbers and their index in the header. */
static const struct {
    int32_t     magic;
    const char *kind;
    struct { int at; const char *name; } value[7];
} LLMC[] = {
    {20240522, "llm.c eval file", {{2, "examples"}, {3, "longest_example_bytes"}}},
    {20240326, "llm.c GPT-2 model",
     {{1, "version"}, {2, "positions"}, {3, "vocabulary"}, {4, "layers"}, {5, "heads"}, {6, "width"},
      {7, "padded_vocabulary"}}},
    {20240803, "llm.c Llama 3 model",
     {{1, "version"}, {2, "positions"}, {3, "vocabulary"}, {4, "layers"}, {5, "heads"}}},
    {20240327, "llm.c debug state", {{2, "sequences"}, {3, "seq_len"}}},
    {20240328, "llm.c tokenizer, for decoding", {{2, "entries"}, {3, "end_of_text"}}},
    {20240527, "llm.c optimizer state", {{2, "ranks"}, {3, "rank"}, {4, "has_masters"}, {5, "shuffled"}, {10, "step"}}},
};

/* --- others ------------------------------------------------------------------------------------------------------- */

static const struct { const char *start; size_t bytes; const char *kind; } STARTS[] = {
    {"BIN.TOK\n", 8, "an llmq token file: convert it to llm.c shards"},
    {"MMIDIDX\0", 9, "a Megatron index without its .bin"},
    {"\x93NUMPY", 6, "a NumPy array: write it with tofile() as uint16, and it is read as tokens"},
    {"PK\x03\x04", 4, "a zip archive, as PyTorch's .pt and NumPy's .npz are: save weights as .safetensors"},
    {"\x80\x02", 2, "a Python pickle: save weights as .safetensors"},
    {"\x7f" "ELF", 4, "a program or library"},
    {"\x89PNG", 4, "a PNG picture"},
    {"GGUF", 4, "a GGUF model of llama.cpp"},
};

static void inspect_other(const char *path, const Start *start) {
    const uint8_t *byte = (const uint8_t *)start->text;
    size_t         given = start->given;
    for (size_t i = 0; given >= SHARD_HEADER_BYTES && i < sizeof LLMC / sizeof *LLMC; i++) {
        if (LLMC[i].magic != word_at(start, 0)) continue;
        report_text("kind", "%s", LLMC[i].kind);
        for (int v = 0; v < 7 && LLMC[i].value[v].name; v++)
            report_count(LLMC[i].value[v].name, word_at(start, LLMC[i].value[v].at));
        return;
    }
    if (has_ending(path, ".tiktoken") || (given > 8 && memcmp(byte, "#version", 8) == 0)) {
        int64_t lines = count_lines(path) - !has_ending(path, ".tiktoken");
        report_text("kind",
                    has_ending(path, ".tiktoken") ? "vocabulary of tiktoken" : "merges of a byte-pair tokenizer");
        report_count("entries", lines);
        return;
    }
    const char *text = shard_text_kind(byte, given), *looks = NULL;
    for (size_t i = 0; i < sizeof STARTS / sizeof *STARTS && !looks; i++)
        if (given >= STARTS[i].bytes && memcmp(byte, STARTS[i].start, STARTS[i].bytes) == 0)
            looks = STARTS[i].kind;
    TextEncoding encoding = text_wide_encoding(byte, given);
    if (!text && encoding != ENCODING_FOUND) text = TEXT_ENCODINGS[encoding - 1];
    if (!text && !looks) looks = text_other_kind(byte, given);
    if (start->bytes == 0) report_text("kind", "none of this program's files: it is empty");
    else if (looks) {
        char what[SHARD_SENTENCE_CHARS];
        snprintf(what, sizeof what, "%s", looks);
        shell_name_file(what, sizeof what, path);
        report_text("kind", "none of this program's files: %s", what);
    } else if (text)
        report_text("kind", "none of this program's files: %s; text becomes tokens by ./train_gpt tokenize%s%s",
                    text, encoding != ENCODING_FOUND ? " encoding=" : "", encoding != ENCODING_FOUND ? text : "");
    else if (!has_ending(path, ".bin"))
        report_text("kind",
                    "none of this program's files, of no form that is known here; bare uint16 tokens are named .bin");
    else {
        int               has_negatives;
        const NumberType *type = number_type_find(byte, given, &has_negatives);
        report_text("kind", "none of this program's files: %s; tokens without a header are uint16 or uint32",
                    type ? type->name : "of no form that is known here");
    }
    report_count("bytes", start->bytes);
    status = EXIT_DATA;
}

/* Kinds of JSON Lines files, recognized by a key of the first line. */
static const struct { const char *key, *kind; } LINES[] = {
    {"choices", "questions with choices, a task of eval"},
    {"continuation", "texts to be continued, a task of eval"},
    {"text", "texts: tokens by ./train_gpt tokenize"},
};

static void inspect_lines(const char *path, const Start *start) {
    FILE       *f = io_open_stream(path, IO_READ);
    char       *line = NULL;
    size_t      room = 0;
    MetricsLine metrics;
    if (!f) fail(EXIT_IO, "%s cannot be read: %s", path, io_error_text(errno));
    int     is_metrics = metrics_line_next(f, &metrics) != LINE_OTHER;
    ssize_t bytes = (rewind(f), getline(&line, &room, f));
    cJSON  *json = bytes > 0 ? json_of_others(line, (size_t)bytes) : NULL;
    const char *kind = cJSON_IsObject(json) ? "objects; tokenize field=NAME takes their text" : NULL;
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES && !is_metrics; i++)
        if (json_member(json, LINES[i].key)) { kind = LINES[i].kind; break; }
    cJSON_Delete(json);
    free(line);
    fclose(f);
    if (is_metrics) {
        report_text("kind", "metrics of a run");
        inspect_metrics(path);
    } else if (kind) {
        int64_t count = count_lines(path);
        report_text("kind", "JSON Lines of %s", kind);
        report_count("lines", count);
    } else inspect_other(path, start);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static void inspect_file(const char *path) {
    Start   start = {.bytes = io_file_bytes(path)};
    int64_t rc = start.bytes < 0 ? start.bytes : io_read_start(path, SHARD_START_BYTES, &start.text);
    if (rc < 0) fail(EXIT_IO, "%s cannot be read: %s", path, io_error_text((int)rc));
    start.given = (size_t)rc;
    const uint8_t *byte = (const uint8_t *)start.text;
    size_t         given = start.given;
    int32_t        magic = word_at(&start, 0);
    ShardHeader    header;
    char           fault[SHARD_FAULT_CHARS];
    /* .safetensors: the bytes of its header, which fits into the file and begins with a brace */
    uint64_t header_bytes = given >= 9 && byte[8] == '{' ? little_endian(start.text, 8) : UINT64_MAX;
    int      is_weights = header_bytes <= SAFETENSORS_HEADER_LIMIT && header_bytes <= (uint64_t)start.bytes - 8;
    weights_set_check_json(path);
    if (has_ending(path, ".jsonl") && start.bytes > 0) inspect_lines(path, &start);
    else if (is_weights) inspect_weights(path);
    else if (shard_is_index(byte, given)) { /* a Megatron index is inspected together with its tokens */
        Path bin = path_of("%.*sbin", (int)(strlen(path) - 3), path);
        if (has_ending(path, ".idx") && access(bin.text, R_OK) == 0) inspect_shard(bin.text);
        else inspect_other(path, &start);
    /* The magic numbers of llm.c's token shards. shard_open() reports faults of their headers. */
    } else if (magic == 20240520 || magic == 20240801 ||
               (has_ending(path, ".bin") &&
                shard_parse_header(byte, given, (uint64_t)start.bytes, 0, &header, fault) == 0))
        inspect_shard(path);
    else {
        const char *kind = shard_text_kind(byte, given);
        int may_be_json = kind ? strcmp(kind, "parquet") != 0 : text_wide_encoding(byte, given) != ENCODING_FOUND;
        /* inspect_read_json also reads compressed JSON, and JSON with a byte order mark */
        cJSON *json = may_be_json ? inspect_read_json(path) : NULL;
        int    is_json = json && (cJSON_IsObject(json) || (kind && strcmp(kind, "JSON") == 0));
        if (is_json) inspect_json(path, json);
        else inspect_other(path, &start);
        cJSON_Delete(json);
    }
    free(start.text);
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

static const VerbKey INSPECT_KEYS[] = {
    {"tensors", "true", "false", "list every tensor", .flag = &lists_tensors},
    {"json", "true", "false", "the same as JSON", .flag = &as_json},
    {.name = NULL},
};

static int verb_inspect(int words, char **word) {
    const char *path = word[0];
    char        file[PATH_ROOM];
    (void)words;
    if (as_json) report = cJSON_CreateObject();
    PathKind kind = path_kind(path);
    report_text("path", "%s", path);
    switch (kind) {
        case PATH_CHECKPOINT: inspect_checkpoint(path); break;
        case PATH_RUN: inspect_run(path); break;
        case PATH_WEIGHTS: inspect_weights(path); break;
        case PATH_SHARDS: inspect_shards(path); break;
        case PATH_FILE: inspect_file(path); break;
        case PATH_TOKENIZER: /* reports the file of the folder that a run would read as its tokenizer */
            tokenizer_beside(path_of("%s/", path).text, file, sizeof file);
            report_text("file", "%s", file);
            inspect_file(file);
            break;
        case PATH_FOLDER:
            report_text("kind", "a folder with no file that this program knows");
            status = EXIT_DATA;
    }
    if (report) json_print(report);
    return status;
}

const Verb INSPECT_VERB = {
    "inspect", "PATH [key=value ...]", "what a file or folder is: tokens, weights, a run",
    "Tells what a file or folder is, ours or of other programs: token shards, tokenizers, weights, checkpoints, runs.",
    INSPECT_KEYS, "./train_gpt inspect runs/demo", verb_inspect, {1, 1, "a file or a folder"},
};
