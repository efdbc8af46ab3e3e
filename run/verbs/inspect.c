/* inspect.c - `train_gpt inspect PATH`: prints the kind of a file or a folder, and its numbers. The content decides the
 * kind. Only for bare tokens, which have no header, the name does. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json.h"
#include "data/shard.h"
#include "data/text_file.h"
#include "data/tokenizer.h"
#include "run/checkpoint/safetensors.h"
#include "run/checkpoint/weights.h"
#include "run/config/nearest.h"
#include "run/verbs/inspect.h"
#include "run/verbs/arguments.h"
#include "run/verbs/verbs.h"

enum { JSON_MOST = 1 << 28, PATH_ROOM = 4200 };

static int holds(const char *folder, const char *pattern) {
    IoPaths found = {NULL, 0};
    int     is_found = io_match(path_of("%s/%s", folder, pattern).text, &found) == 0 && found.count > 0;
    io_paths_free(&found);
    return is_found;
}

PathKind path_kind(const char *path) {
    struct stat st;
    char        in_folder[PATH_ROOM];
    if (stat(path, &st) != 0)
        fail(errno == ENOENT || errno == ENOTDIR ? EXIT_DATA : EXIT_IO, "%s cannot be looked at: %s", path,
             io_error_text(errno));
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) fail(EXIT_DATA, "%s %s", path, io_error_text(io_kind(st.st_mode)));
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
    cJSON *json = text_clean(&text, &clean, JSON_MOST, path, fault) ? NULL : json_of_others(text, clean, path, NULL);
    free(text);
    return json;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Returns 1 if the header fits into the file and begins with a brace. */
static int is_safetensors(const uint8_t *start, size_t bytes, uint64_t file_bytes) {
    uint64_t header = 0;
    for (int i = 0; bytes >= 9 && i < 8; i++) header |= (uint64_t)start[i] << (8 * i);
    return bytes >= 9 && start[8] == '{' && header <= SAFETENSORS_HEADER_LIMIT && header <= file_bytes - 8;
}

static int is_shard(const char *path, const uint8_t *start, size_t bytes, uint64_t file_bytes) {
    ShardHeader header;
    char        fault[SHARD_FAULT_CHARS];
    int32_t     magic = 0;
    memcpy(&magic, start, bytes < 4 ? bytes : 4);
    if (magic == 20240520 || magic == 20240801) return 1; /* opening it reports a fault of its header */
    return has_ending(path, ".bin") && shard_parse_header(start, bytes, file_bytes, 0, &header, fault) == 0;
}

/* Inspects a Megatron index together with its tokens. */
static int inspect_index(Inspect *in, const char *path) {
    Path bin = path_of("%.*sbin", (int)(strlen(path) - 3), path);
    if (!has_ending(path, ".idx") || access(bin.text, R_OK) != 0) return inspect_other(in, path);
    inspect_shard(in, bin.text);
    return EXIT_DONE;
}

static int inspect_file(Inspect *in, const char *path) {
    uint8_t start[SHARD_START_BYTES];
    int64_t bytes = io_file_bytes(path);
    size_t  start_bytes = bytes < (int64_t)sizeof start ? (size_t)(bytes < 0 ? 0 : bytes) : sizeof start;
    int fd = bytes < 0 ? (int)bytes : io_open(path, IO_READ), rc = fd < 0 ? fd : io_pread(fd, start, start_bytes, 0);
    if (rc < 0) fail(EXIT_IO, "%s cannot be read: %s", path, io_error_text(rc));
    io_close(fd);
    weights_set_check_json(path);
    if (has_ending(path, ".jsonl") && bytes > 0) return inspect_lines(in, path);
    if (is_safetensors(start, start_bytes, (uint64_t)bytes)) return inspect_weights(in, path), EXIT_DONE;
    if (shard_is_index(start, start_bytes)) return inspect_index(in, path);
    if (is_shard(path, start, start_bytes, (uint64_t)bytes)) return inspect_shard(in, path), EXIT_DONE;
    const char *kind = shard_text_kind(start, start_bytes);
    int         may_be_json = kind ? strcmp(kind, "parquet") != 0 : text_wide_encoding(start, start_bytes) != ENCODING_FOUND;
    cJSON      *json = may_be_json ? inspect_read_json(path) : NULL; /* reads packed JSON, and JSON with a mark */
    if (json && !cJSON_IsObject(json) && strcmp(kind ? kind : "", "JSON") != 0) cJSON_Delete(json), json = NULL;
    int         status = json ? inspect_json(in, path, json) : inspect_other(in, path);
    cJSON_Delete(json);
    return status;
}

/* Inspects the file that would be read in a folder of tokenizer files. */
static int inspect_tokenizer(Inspect *in, const char *folder) {
    char file[PATH_ROOM];
    tokenizer_beside(path_of("%s/", folder).text, file, sizeof file);
    report_text(&in->report, "file", "%s", file);
    return inspect_file(in, file);
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

static int inspect_path(Inspect *in, const char *path) {
    PathKind kind = path_kind(path);
    report_text(&in->report, "path", "%s", path);
    switch (kind) {
        case PATH_CHECKPOINT: return inspect_checkpoint(in, path);
        case PATH_RUN:        return inspect_run(in, path);
        case PATH_WEIGHTS:    return inspect_weights(in, path), EXIT_DONE;
        case PATH_SHARDS:     return inspect_shards(in, path), EXIT_DONE;
        case PATH_FILE:       return inspect_file(in, path);
        case PATH_TOKENIZER:  return inspect_tokenizer(in, path);
        default: break;
    }
    report_text(&in->report, "kind", "a folder with no file that this program knows");
    return EXIT_DATA;
}

enum { TENSORS, JSON };
const VerbKey INSPECT_KEYS[] = {
    [TENSORS] = {"tensors", "true", "false", "list every tensor"},
    [JSON] = {"json", "true", "false", "the same as JSON"},
    {.name = NULL},
};

int verb_inspect(int argc, char **argv) {
    const char *path = NULL;
    int         as_json = 0, lists = 0;
    for (int i = 1; i < argc; i++) {
        VerbArgument a = verb_argument("inspect", argv[i]);
        if (a.row == JSON) as_json = verb_flag(&a);
        else if (a.row == TENSORS) lists = verb_flag(&a);
        else if (path) verb_misused("inspect", "\"%s\" is one too many", argv[i]);
        else path = argv[i];
    }
    if (!path) verb_misused("inspect", "it needs a file or a folder");
    Inspect in = {report_begin(as_json), lists};
    int status = inspect_path(&in, path);
    report_end(&in.report);
    return status;
}
