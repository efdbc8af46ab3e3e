/* inspect_files.c - JSON files, llm.c's other files, vocabularies, and files of other programs for `inspect`. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"
#include "core/format.h"
#include "data/shard.h"
#include "data/text_file.h"
#include "run/verbs/inspect.h"
#include "run/log/run_log.h"

/* --- JSON --------------------------------------------------------------------------------------------------------- */

/* Reports the strings, numbers and booleans of an object, one line each. */
static void tell_scalars(Inspect *in, const cJSON *object) {
    char shown[REPORT_VALUE];
    for (const cJSON *item = object->child; item; item = item->next)
        if (!cJSON_IsObject(item) && !cJSON_IsArray(item))
            report_item(&in->report, item->string, report_copy(item), "%s", report_value(item, shown));
}

static void tell_tokenizer(Inspect *in, const cJSON *json) {
    Report      *r = &in->report;
    const cJSON *model = json_member(json, "model"), *type = json_member(model, "type"),
                *added = json_member(json, "added_tokens"), *item;
    int          entries = cJSON_GetArraySize(json_member(model, "vocab")), special = 0;
    char         names[256] = "";
    report_text(r, "kind", "tokenizer.json of Hugging Face tokenizers, %s",
                cJSON_IsString(type) ? type->valuestring : "of no named type");
    report_number(r, "entries", entries, "%d", entries);
    report_number(r, "merges", cJSON_GetArraySize(json_member(model, "merges")), "%d",
                  cJSON_GetArraySize(json_member(model, "merges")));
    cJSON_ArrayForEach(item, added) {
        const cJSON *content = json_member(item, "content");
        if (!cJSON_IsTrue(json_member(item, "special")) || !cJSON_IsString(content)) continue;
        if (special++ < 5)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%.40s", special > 1 ? " " : ": ",
                     content->valuestring);
    }
    report_number(r, "special", special, "%d%s%s", special, names, special > 5 ? " ..." : "");
}

static void tell_index(Inspect *in, const cJSON *json) {
    const cJSON *map = json_member(json, "weight_map"), *item;
    cJSON       *files = cJSON_CreateObject();
    cJSON_ArrayForEach(item, map) if (cJSON_IsString(item) && !json_member(files, item->valuestring))
        cJSON_AddTrueToObject(files, item->valuestring);
    int count = cJSON_GetArraySize(files);
    cJSON_Delete(files);
    double bytes = number_value(json_member(json_member(json, "metadata"), "total_size"));
    report_text(&in->report, "kind", "index of safetensors weights in several files");
    report_number(&in->report, "tensors", cJSON_GetArraySize(map), "%d", cJSON_GetArraySize(map));
    report_number(&in->report, "files", count, "%d", count);
    if (!isnan(bytes)) report_number(&in->report, "total_bytes", bytes, "%.0f", bytes);
}

/* Reports a vocab.json, which maps texts to ids. Returns 0 if a value is no number. */
static int tell_vocabulary(Inspect *in, const cJSON *json) {
    int64_t      entries = 0;
    double       largest = -1;
    const cJSON *item;
    cJSON_ArrayForEach(item, json) {
        if (!cJSON_IsNumber(item)) return 0;
        entries++, largest = item->valuedouble > largest ? item->valuedouble : largest;
    }
    if (entries < 256) return 0;
    report_text(&in->report, "kind", "vocabulary: vocab.json of a byte-pair tokenizer");
    report_number(&in->report, "entries", (double)entries, "%lld", (long long)entries);
    report_number(&in->report, "largest_id", largest, "%.0f", largest);
    return 1;
}

static int has(const cJSON *json, const char *key) { return json_member(json, key) != NULL; }

int inspect_json(Inspect *in, const char *path, const cJSON *json) {
    Report *r = &in->report;
    if (has(json, "format") && has(json, "run_id")) {
        const char *slash = strrchr(path, '/');
        return inspect_checkpoint(in, slash ? path_of("%.*s", (int)(slash - path), path).text : ".");
    }
    if (has(json, "weight_map")) return tell_index(in, json), EXIT_DONE;
    if (has(json_member(json, "model"), "vocab")) return tell_tokenizer(in, json), EXIT_DONE;
    if (has(json, "train_tokens") || has(json, "bytes_per_token")) {
        report_text(r, "kind", "notes of tokenize on the shards beside it");
        return tell_scalars(in, json), EXIT_DONE;
    }
    if (has(json, "gpus_per_node")) {
        report_text(r, "kind", "cluster for plan cluster=%s", path);
        return tell_scalars(in, json), EXIT_DONE;
    }
    if (has(json, "model_type") || has(json, "architectures")) {
        report_text(r, "kind", "config.json of a Hugging Face model");
        return tell_scalars(in, json), EXIT_DONE;
    }
    if (has(json, "run") || has(json, "batch")) {
        report_text(r, "kind", "config of a run");
        return inspect_config(in, json), EXIT_DONE;
    }
    if (tell_vocabulary(in, json)) return EXIT_DONE;
    report_text(r, "kind", "JSON of another program, with %d values", cJSON_GetArraySize(json));
    return EXIT_DATA;
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

/* Kinds of JSON Lines, by a key of the first line. */
static const struct { const char *key, *kind; } LINES[] = {
    {"choices", "questions with choices, a task of eval"},
    {"continuation", "texts to be continued, a task of eval"},
    {"text", "texts: tokens by ./train_gpt tokenize"},
};

int inspect_lines(Inspect *in, const char *path) {
    FILE       *f = io_open_stream(path, IO_READ);
    char       *line = NULL;
    size_t      room = 0;
    MetricsLine metrics;
    if (!f) fail(EXIT_IO, "%s cannot be read: %s", path, io_error_text(errno));
    int     is_metrics = metrics_line_next(f, &metrics) != LINE_OTHER;
    ssize_t bytes = (rewind(f), getline(&line, &room, f));
    cJSON  *json = bytes > 0 ? json_of_others(line, (size_t)bytes, path, NULL) : NULL;
    const char *kind = cJSON_IsObject(json) ? "objects; tokenize field=NAME takes their text" : NULL;
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES && !is_metrics; i++)
        if (has(json, LINES[i].key)) { kind = LINES[i].kind; break; }
    cJSON_Delete(json);
    free(line);
    fclose(f);
    if (is_metrics) return report_text(&in->report, "kind", "metrics of a run"), inspect_metrics(in, path), EXIT_DONE;
    if (!kind) return inspect_other(in, path);
    int64_t lines = count_lines(path);
    report_text(&in->report, "kind", "JSON Lines of %s", kind);
    report_number(&in->report, "lines", (double)lines, "%lld", (long long)lines);
    return EXIT_DONE;
}

/* --- llm.c's other files ------------------------------------------------------------------------------------------ */

/* Files with a header of 256 int32: the useful numbers and their index. */
static const struct {
    int32_t     magic;
    const char *kind;
    struct { int at; const char *name; } value[7];
} LLMC[] = {
    {20240522, "llm.c eval file", {{2, "examples"}, {3, "longest_example_bytes"}}},
    {20240326,
     "llm.c GPT-2 model",
     {{1, "version"},
      {2, "positions"},
      {3, "vocabulary"},
      {4, "layers"},
      {5, "heads"},
      {6, "width"},
      {7, "padded_vocabulary"}}},
    {20240803,
     "llm.c Llama 3 model",
     {{1, "version"}, {2, "positions"}, {3, "vocabulary"}, {4, "layers"}, {5, "heads"}}},
    {20240327, "llm.c debug state", {{2, "sequences"}, {3, "seq_len"}}},
    {20240328, "llm.c tokenizer, for decoding", {{2, "entries"}, {3, "end_of_text"}}},
    {20240527, "llm.c optimizer state", {{2, "ranks"}, {3, "rank"}, {4, "has_masters"}, {5, "shuffled"}, {10, "step"}}},
};

static int tell_llmc(Inspect *in, const int32_t *header) {
    for (size_t i = 0; i < sizeof LLMC / sizeof *LLMC; i++) {
        if (LLMC[i].magic != header[0]) continue;
        report_text(&in->report, "kind", "%s", LLMC[i].kind);
        for (int v = 0; v < 7 && LLMC[i].value[v].name; v++)
            report_number(&in->report, LLMC[i].value[v].name, header[LLMC[i].value[v].at], "%d",
                          header[LLMC[i].value[v].at]);
        return 1;
    }
    return 0;
}

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

int inspect_other(Inspect *in, const char *path) {
    Report *r = &in->report;
    union { uint8_t byte[SHARD_START_BYTES]; int32_t word[256]; } start = {{0}};
    int64_t bytes = io_file_bytes(path);
    size_t  given = bytes < (int64_t)sizeof start ? (size_t)(bytes < 0 ? 0 : bytes) : sizeof start;
    int     fd = io_open(path, IO_READ), rc = fd < 0 ? fd : io_pread(fd, start.byte, given, 0);
    if (rc < 0) fail(EXIT_IO, "%s cannot be read: %s", path, io_error_text(rc));
    io_close(fd);
    if (given >= SHARD_HEADER_BYTES && tell_llmc(in, start.word)) return EXIT_DONE;
    if (has_ending(path, ".tiktoken") || (given > 8 && memcmp(start.byte, "#version", 8) == 0)) {
        int64_t lines = count_lines(path) - !has_ending(path, ".tiktoken");
        report_text(r, "kind",
                    has_ending(path, ".tiktoken") ? "vocabulary of tiktoken" : "merges of a byte-pair tokenizer");
        report_number(r, "entries", (double)lines, "%lld", (long long)lines);
        return EXIT_DONE;
    }
    const char *text = shard_text_kind(start.byte, given), *looks = NULL;
    for (size_t i = 0; i < sizeof STARTS / sizeof *STARTS && !looks; i++)
        if (given >= STARTS[i].bytes && memcmp(start.byte, STARTS[i].start, STARTS[i].bytes) == 0)
            looks = STARTS[i].kind;
    TextEncoding encoding = text_wide_encoding(start.byte, given);
    if (!text && encoding != ENCODING_FOUND) text = TEXT_ENCODINGS[encoding - 1];
    if (!text && !looks) looks = text_other_kind(start.byte, given);
    if (bytes == 0) report_text(r, "kind", "none of this program's files: it is empty");
    else if (looks) {
        char what[SHARD_SENTENCE_CHARS];
        snprintf(what, sizeof what, "%s", looks);
        shell_name_file(what, sizeof what, path);
        report_text(r, "kind", "none of this program's files: %s", what);
    }
    else if (text)
        report_text(r, "kind", "none of this program's files: %s; text becomes tokens by ./train_gpt tokenize%s%s", text,
                    encoding != ENCODING_FOUND ? " encoding=" : "", encoding != ENCODING_FOUND ? text : "");
    else if (!has_ending(path, ".bin"))
        report_text(r, "kind",
                    "none of this program's files, of no form that is known here; bare uint16 tokens are named .bin");
    else {
        int               has_negatives;
        const NumberType *type = number_type_find(start.byte, given, &has_negatives);
        report_text(r, "kind", "none of this program's files: %s; tokens without a header are uint16 or uint32",
                    type ? type->name : "of no form that is known here");
    }
    report_number(r, "bytes", (double)bytes, "%lld", (long long)bytes);
    return EXIT_DATA;
}
