/* manifest.c - writes, parses and verifies state.json, the manifest of a checkpoint; see manifest.h. */
#include "run/checkpoint/manifest.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "core/io.h"
#include "core/json.h"
#include "core/terminal.h"

/* Bytes of the end of a manifest: ,\n"hash":"0123456789abcdef"}\n */
enum { TAIL_BYTES = 29 };
/* Limit of the values in a manifest that describe neither extents (ranges of file bytes) nor data files: the config,
 * recent losses, the table of matrix products. Real manifests have far fewer. */
enum { OTHER_VALUES = 1 << 15 };

const char *const manifest_file_name[MANIFEST_FILES] = {
    "model.safetensors",      "optimizer.safetensors", "config.json",
    "generation_config.json", "tokenizer_config.json", "tokenizer.json"};

uint64_t manifest_hash(const void *data, size_t bytes) { return XXH3_64bits(data, bytes); }

uint64_t manifest_extent_bytes(uint64_t file_bytes) {
    uint64_t bytes = MANIFEST_EXTENT_BYTES;
    while (file_bytes / MANIFEST_EXTENTS >= bytes && bytes < (uint64_t)1 << 40) bytes *= 2;
    return bytes;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Writes a member whose value is a JSON tree. Writes nothing if value is NULL. */
static void write_json(FILE *out, const char *key, const cJSON *value) {
    char *text = value ? cJSON_PrintUnformatted(value) : NULL;
    if (text) fprintf(out, "\"%s\":%s,\n", key, text);
    free(text);
}

static void write_files(FILE *out, const Manifest *m) {
    for (int f = 0; f < MANIFEST_FILES; f++) {
        const ManifestFile *file = &m->file[f];
        if (f >= FILE_GENERATION && file->bytes == 0) continue;
        fprintf(out, "%s\n {\"name\":\"%s\",\"bytes\":\"%" PRIu64 "\",\"runs\":[", f ? "," : "", manifest_file_name[f],
                file->bytes);
        for (int64_t i = 0; i < file->extents; i++) {
            ManifestExtent e = file->extent[i];
            fprintf(out, "%s\n  [\"%" PRIu64 "\",\"%" PRIu64 "\",\"%016" PRIx64 "\"]", i ? "," : "", e.offset, e.bytes,
                    e.hash);
        }
        fprintf(out, "]}");
    }
}

char *manifest_write(const Manifest *m, size_t *bytes) {
    char *text = NULL, shown[SHOWN_BYTES];
    FILE *out = memory_file_open(&text, bytes);
    fprintf(out, "{\"format\":\"train_gpt checkpoint\",\"version\":\"1.1\",\n\"run_id\":\"%s\",\n", m->run_id);
    if (m->parent.run_id[0])
        fprintf(out, "\"parent\":{\"run_id\":\"%s\",\"step\":\"%" PRId64 "\"},\n", m->parent.run_id, m->parent.step);
    if (m->folder) {
        fprintf(out, "\"folder\":");
        json_print_string(out, m->folder);
        fprintf(out, ",\n");
    }
    fprintf(out, "\"step\":\"%" PRId64 "\",\"samples\":\"%" PRId64 "\",\"tokens\":\"%" PRId64 "\",\n", m->step,
            m->samples, m->tokens);
    if (m->missed) fprintf(out, "\"updates\":\"%" PRId64 "\",\n", m->step - m->missed);
    fprintf(out, "\"seed\":\"%" PRId64 "\",\"rng\":\"philox4x32-10 keyed by seed, use and counter; no other state\",\n",
            m->seed);
    fprintf(out,
            "\"ranks\":%d,\"backend\":\"%s\",\"precision\":\"%s\",\"loss_scale\":%s,\"loss_scale_steps\":\"%" PRId64
            "\",\n\"threads\":%d,",
            m->ranks, m->backend, m->precision, number_text(m->loss_scale, shown), m->loss_scale_steps, m->threads);
    if (m->grid[0]) fprintf(out, "\"grid\":\"%s\",", m->grid);
    if (m->session) fprintf(out, "\"session\":\"%016" PRIx64 "\",\"rank\":\"%d\",", m->session, m->rank);
    const Guard *g = &m->guard;
    fprintf(out,
            "\n\"guard\":{\"skips\":\"%" PRId64 "\",\"rollbacks\":\"%" PRId64 "\",\"furthest\":\"%" PRId64
            "\",\"losses\":[",
            g->skips, g->rollbacks, g->furthest);
    for (int i = 0; i < g->spikes.count; i++) fprintf(out, "%s%s", i ? "," : "", number_text(g->spikes.loss[i], shown));
    fprintf(out, "]},\n");
    write_json(out, "gemm", m->gemm);
    write_json(out, "fp8", m->fp8);
    write_json(out, "config", m->config);
    fprintf(out, "\"data\":[");
    for (int i = 0; i < m->data_files; i++) {
        fprintf(out, "%s\n {\"name\":", i ? "," : "");
        json_print_string(out, m->data[i].name);
        fprintf(out, ",\"bytes\":\"%" PRIu64 "\",\"tokens\":\"%" PRId64 "\",\"ends\":\"%016" PRIx64 "\"}",
                m->data[i].bytes, m->data[i].tokens, m->data[i].ends);
    }
    fprintf(out, "],\n\"files\":[");
    write_files(out, m);
    fputc(']', out);
    fprintf(out, ",\n\"hash\":\"%016" PRIx64 "\"}\n", manifest_hash(text, *bytes));
    fclose(out);
    return text;
}

int manifest_has_room(int64_t extents, int64_t data_files) {
    return 4 * extents + 5 * data_files <= MANIFEST_VALUES - OTHER_VALUES;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Reads a 64-bit integer from a string of decimal digits. Returns 0 if value is no such string. */
static int read_u64(const cJSON *value, uint64_t *out) {
    if (!cJSON_IsString(value) || !isdigit((unsigned char)value->valuestring[0])) return 0;
    char *end;
    errno = 0;
    *out = strtoull(value->valuestring, &end, 10);
    return *end == 0 && errno == 0;
}

static int read_i64(const cJSON *value, int64_t *out) {
    uint64_t u;
    if (!read_u64(value, &u) || u > INT64_MAX) return 0;
    *out = (int64_t)u;
    return 1;
}

/* Reads a count of the run, such as its steps, which must be within MANIFEST_COUNT_LIMIT. The seed and the tokens of a
 * data file have no such limit. */
static int read_amount(const cJSON *value, int64_t *out) {
    return read_i64(value, out) && *out <= MANIFEST_COUNT_LIMIT;
}

static int read_count(const cJSON *value, int *out) {
    if (!cJSON_IsNumber(value) || !(value->valuedouble >= 1) || value->valuedouble > 1 << 30) return 0;
    *out = (int)value->valuedouble;
    return (double)*out == value->valuedouble;
}

static int read_hash(const cJSON *value, uint64_t *out) {
    if (!cJSON_IsString(value) || strlen(value->valuestring) != 16 ||
        strspn(value->valuestring, "0123456789abcdef") != 16)
        return 0;
    *out = strtoull(value->valuestring, NULL, 16);
    return 1;
}

static int read_word(const cJSON *value, char *out, size_t capacity) {
    if (!cJSON_IsString(value) || strlen(value->valuestring) >= capacity) return 0;
    strcpy(out, value->valuestring);
    return 1;
}

/* Reads the counters of the guard (which skips bad steps) and its recent losses, in order. Returns 0 if a loss is no
 * number, or if there are too many. */
static int read_guard(const cJSON *object, Guard *g) {
    const cJSON *losses = json_member(object, "losses");
    if (!read_amount(json_member(object, "skips"), &g->skips) ||
        !read_amount(json_member(object, "rollbacks"), &g->rollbacks) ||
        !read_amount(json_member(object, "furthest"), &g->furthest) || !cJSON_IsArray(losses)) return 0;
    for (const cJSON *loss = losses->child; loss; loss = loss->next) {
        if (!cJSON_IsNumber(loss) || g->spikes.count == SPIKES_WINDOW) return 0;
        spikes_add(&g->spikes, loss->valuedouble);
    }
    return 1;
}

static int read_run_id(const cJSON *value, char out[40]) {
    return read_word(value, out, 40) && strlen(out) >= 8 && strspn(out, "0123456789abcdef") == strlen(out);
}

static int valid(int is_valid, const char *key, char *fault) {
    return is_valid || manifest_fault(fault, MANIFEST_NAME " has no valid %s", key);
}

/* Reads all members of a manifest except the lists of data and files. Returns 0 with a fault at the first member that
 * is not valid. */
static int read_head(const cJSON *root, Manifest *m, char *fault) {
    static const char GRID[] = "abcdefghijklmnopqrstuvwxyz0123456789 ";
    const cJSON *parent = json_member(root, "parent"), *folder = json_member(root, "folder"),
                *scale = json_member(root, "loss_scale"), *scale_steps = json_member(root, "loss_scale_steps"),
                *grid = json_member(root, "grid"), *guard = json_member(root, "guard"),
                *updates = json_member(root, "updates");
    int64_t seen = -1; /* steps that the Adam moments have seen; -1: all steps */
    m->folder = cJSON_IsString(folder) ? folder->valuestring : NULL;
    m->loss_scale = cJSON_IsNumber(scale) ? scale->valuedouble : 0.0;
    m->gemm = json_member(root, "gemm");
    m->fp8 = json_member(root, "fp8");
    m->config = json_member(root, "config");
    int good =
        valid(read_run_id(json_member(root, "run_id"), m->run_id), "run_id", fault) &&
        valid(!parent || (read_run_id(json_member(parent, "run_id"), m->parent.run_id) &&
                          read_amount(json_member(parent, "step"), &m->parent.step)), "parent", fault) &&
        valid(!folder || m->folder, "folder", fault) &&
        valid(read_amount(json_member(root, "step"), &m->step), "step", fault) &&
        valid(read_amount(json_member(root, "samples"), &m->samples), "samples", fault) &&
        valid(read_amount(json_member(root, "tokens"), &m->tokens), "tokens", fault) &&
        valid(!updates || read_amount(updates, &seen), "updates", fault) &&
        valid(read_i64(json_member(root, "seed"), &m->seed), "seed", fault) &&
        valid(read_count(json_member(root, "ranks"), &m->ranks), "ranks", fault) &&
        valid(read_count(json_member(root, "threads"), &m->threads), "threads", fault) &&
        valid(read_word(json_member(root, "backend"), m->backend, sizeof m->backend), "backend", fault) &&
        valid(read_word(json_member(root, "precision"), m->precision, sizeof m->precision), "precision", fault) &&
        valid(m->loss_scale > 0, "loss_scale", fault) &&
        valid(!scale_steps || read_amount(scale_steps, &m->loss_scale_steps), "loss_scale_steps", fault) &&
        valid(!grid || (read_word(grid, m->grid, sizeof m->grid) && strspn(m->grid, GRID) == strlen(m->grid)),
              "grid", fault) &&
        valid(!guard || read_guard(guard, &m->guard), "guard", fault) &&
        (cJSON_IsObject(m->config) || manifest_fault(fault, MANIFEST_NAME " has no config"));
    m->missed = seen < 0 ? 0 : m->step - seen;
    return good;
}

/* Reads the members that only the manifest of a copy in memory has: session (its job) and rank. */
static int read_copy(const cJSON *root, Manifest *m, char *fault) {
    int64_t rank = 0;
    int     good = read_hash(json_member(root, "session"), &m->session) && m->session &&
               read_i64(json_member(root, "rank"), &rank) && rank < m->ranks;
    m->rank = (int)rank;
    return valid(good, "session and rank", fault);
}

static int read_data(const cJSON *list, Manifest *m, char *fault) {
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) < 1)
        return manifest_fault(fault, MANIFEST_NAME " names no data files");
    m->data = xcalloc((size_t)cJSON_GetArraySize(list), sizeof *m->data, "the manifest of a checkpoint");
    for (const cJSON *entry = list->child; entry; entry = entry->next) {
        ManifestData *d = &m->data[m->data_files++];
        const cJSON  *name = json_member(entry, "name"), *ends = json_member(entry, "ends");
        if (!cJSON_IsString(name) || !read_u64(json_member(entry, "bytes"), &d->bytes) ||
            !read_i64(json_member(entry, "tokens"), &d->tokens) || (ends && !read_hash(ends, &d->ends)))
            return manifest_fault(fault, MANIFEST_NAME " has no valid data[%d]", m->data_files - 1);
        d->name = name->valuestring;
    }
    return 1;
}

/* Reads the extents (ranges of bytes) of a file. Returns 0 if one is not within the file. Unless is_copy is 1, they
 * must cover the file exactly once. */
static int read_extents(const cJSON *list, ManifestFile *file, int is_copy) {
    uint64_t at = 0;
    if (!cJSON_IsArray(list)) return 0;
    file->extent = xcalloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *file->extent, "the manifest of a checkpoint");
    for (const cJSON *entry = list->child; entry; entry = entry->next) {
        ManifestExtent *e = &file->extent[file->extents++];
        if (!cJSON_IsArray(entry) || cJSON_GetArraySize(entry) != 3) return 0;
        const cJSON *offset = entry->child, *bytes = offset->next, *hash = bytes->next;
        if (!read_u64(offset, &e->offset) || !read_u64(bytes, &e->bytes) || !read_hash(hash, &e->hash)) return 0;
        if ((e->offset != at && !is_copy) || e->bytes < 1 || e->bytes > manifest_extent_bytes(file->bytes) ||
            e->offset > file->bytes || e->bytes > file->bytes - e->offset)
            return 0;
        at += e->bytes;
    }
    return is_copy || at == file->bytes;
}

static int read_files(const cJSON *list, Manifest *m, char *fault) {
    if (!cJSON_IsArray(list)) return manifest_fault(fault, MANIFEST_NAME " does not list the files of a checkpoint");
    const cJSON *entry = list->child;
    for (int f = 0; f < MANIFEST_FILES; f++) {
        const cJSON *name = entry ? json_member(entry, "name") : NULL;
        if (!cJSON_IsString(name) || strcmp(name->valuestring, manifest_file_name[f]) != 0) {
            if (f >= FILE_GENERATION) continue;
            return manifest_fault(fault, MANIFEST_NAME " does not list %s in its place", manifest_file_name[f]);
        }
        if (!read_u64(json_member(entry, "bytes"), &m->file[f].bytes) ||
            !read_extents(json_member(entry, "runs"), &m->file[f], m->session != 0))
            return fault[0] ? 0 : manifest_fault(fault, MANIFEST_NAME " does not cover every byte of %s exactly once",
                                                 manifest_file_name[f]);
        entry = entry->next;
    }
    if (entry) return manifest_fault(fault, MANIFEST_NAME " lists a file that no checkpoint has");
    return 1;
}

/* Checks the hash of a manifest first, because a text that does not match it is damaged. Then parses the JSON. */
static int read_text(const char *text, size_t bytes, Json *json, char *fault) {
    char   tail[TAIL_BYTES + 1];
    size_t body = bytes - TAIL_BYTES, values = 0;
    if (bytes <= TAIL_BYTES) return manifest_fault(fault, MANIFEST_NAME " is cut short (%zu bytes)", bytes);
    snprintf(tail, sizeof tail, ",\n\"hash\":\"%016" PRIx64 "\"}\n", manifest_hash(text, body));
    if (memcmp(text + body, tail, TAIL_BYTES) != 0)
        return manifest_fault(fault, MANIFEST_NAME " is damaged: its hash does not match its %zu bytes", bytes);
    /* one of these characters comes before each value of a JSON text */
    for (size_t i = 0; i < bytes; i++) values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    if (values > MANIFEST_VALUES)
        return manifest_fault(fault, MANIFEST_NAME " has more than %d values", MANIFEST_VALUES);
    JsonFault wrong;
    if (json_parse(text, bytes, MANIFEST_LIMIT, json, &wrong)) return 1;
    return manifest_fault(fault, MANIFEST_NAME " is no valid JSON, line %d column %d: %s", wrong.at.line,
                          wrong.at.column, wrong.text);
}

static ManifestStatus parse(const char *text, size_t bytes, int is_copy, Manifest *m, char *fault) {
    if (!read_text(text, bytes, &m->json, fault)) return MANIFEST_BROKEN;
    const cJSON *root = m->json.root, *format = json_member(root, "format"), *version = json_member(root, "version");
    if (!cJSON_IsString(format) || strcmp(format->valuestring, "train_gpt checkpoint") != 0 ||
        !cJSON_IsString(version)) {
        manifest_fault(fault, MANIFEST_NAME " is not of a train_gpt checkpoint");
        return MANIFEST_BROKEN;
    }
    if (strncmp(version->valuestring, "1.", 2) != 0) {
        manifest_fault(fault, MANIFEST_NAME " has format version %.20s; this program reads 1.x", version->valuestring);
        return MANIFEST_FOREIGN;
    }
    int good = read_head(root, m, fault) && (!is_copy || read_copy(root, m, fault)) &&
               read_data(json_member(root, "data"), m, fault) && read_files(json_member(root, "files"), m, fault);
    return good ? MANIFEST_GOOD : MANIFEST_BROKEN;
}

static ManifestStatus parse_or_clear(const char *text, size_t bytes, int is_copy, Manifest *m, char *fault) {
    memset(m, 0, sizeof *m);
    fault[0] = 0;
    ManifestStatus status = parse(text, bytes, is_copy, m, fault);
    if (status != MANIFEST_GOOD) manifest_free(m);
    return status;
}

ManifestStatus manifest_parse(const char *text, size_t bytes, Manifest *m, char *fault) {
    return parse_or_clear(text, bytes, 0, m, fault);
}

ManifestStatus manifest_parse_copy(const char *text, size_t bytes, Manifest *m, char *fault) {
    return parse_or_clear(text, bytes, 1, m, fault);
}

/* --- comparing with the files ------------------------------------------------------------------------------------- */

int manifest_unread(char *fault, const char *name, int error) {
    switch (error) {
        case ENOENT: case ENOTDIR: return manifest_fault(fault, "%s is missing", name);
        case ENODATA: return manifest_fault(fault, "%s ends too early", name);
        case EFBIG: return manifest_fault(fault, "%s is too long", name);
        default: return manifest_fault(fault, MANIFEST_UNREADABLE "%s: %s", name, io_error_text(error));
    }
}

/* Compares the bytes of one extent (range of a file) with its hash. buffer has MANIFEST_EXTENT_BYTES. Returns 1, or 0
 * with a fault. */
static int extent_ok(int fd, const char *name, ManifestExtent e, char *buffer, char *fault) {
    XXH3_state_t *hash = XXH3_createState();
    int           error = 0;
    if (!hash) fail(EXIT_MEMORY, "no memory to verify %s; free memory on this host", name);
    XXH3_64bits_reset(hash);
    for (uint64_t at = 0, n; !error && at < e.bytes; at += n) {
        n = e.bytes - at < MANIFEST_EXTENT_BYTES ? e.bytes - at : MANIFEST_EXTENT_BYTES;
        error = io_pread(fd, buffer, n, e.offset + at);
        if (!error) XXH3_64bits_update(hash, buffer, n);
    }
    uint64_t got = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    if (error) return manifest_unread(fault, name, -error);
    if (got == e.hash) return 1;
    return manifest_fault(fault, "%s is damaged: the hash of bytes %" PRIu64 " to %" PRIu64 " does not match", name,
                          e.offset, e.offset + e.bytes - 1);
}

/* Compares every n-th extent (range of bytes) of a file with its hash, where n is the number of ranks. */
static int extents_ok(const char *folder, const char *name, const ManifestFile *file, Comm *c, _Atomic int64_t *moved,
                      char *fault) {
    int fd = io_open(path_of("%s/%s", folder, name).text, IO_READ), good = 1;
    if (fd < 0) return manifest_unread(fault, name, -fd);
    int     rank = c ? comm_rank(c) : 0, ranks = c ? comm_size(c) : 1;
    int64_t mine = file->extents > rank ? (file->extents - rank - 1) / ranks + 1 : 0;
    #pragma omp parallel if (mine > 1)
    {
        char  wrong[MANIFEST_FAULT_BYTES] = "";
        char *buffer = xmalloc(MANIFEST_EXTENT_BYTES, "verifying a checkpoint");
        #pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < mine; i++) {
            if (!wrong[0]) extent_ok(fd, name, file->extent[rank + i * ranks], buffer, wrong);
            if (omp_get_thread_num() != 0) continue;
            if (c) world_moved(comm_world(c));
            if (c && rank == 0) say_part("checking the checkpoint", 0, 0);
            if (moved) ++*moved;
        }
        #pragma omp critical(manifest_verify)
        if (wrong[0]) good = manifest_fault(fault, "%s", wrong);
        free(buffer);
    }
    io_close(fd);
    return good;
}

int manifest_verify(const Manifest *m, const char *folder, Comm *c, _Atomic int64_t *moved, char *fault) {
    for (int f = 0; f < MANIFEST_FILES; f++) {
        const char *name = manifest_file_name[f];
        uint64_t    bytes = m->file[f].bytes;
        struct stat st;
        if (m->file[f].extents == 0) continue;
        if (lstat(path_of("%s/%s", folder, name).text, &st) < 0) return manifest_unread(fault, name, errno);
        if (!S_ISREG(st.st_mode)) return manifest_fault(fault, "%s %s", name, io_error_text(io_kind(st.st_mode)));
        if ((uint64_t)st.st_size != bytes)
            return manifest_fault(fault, "%s has %lld bytes instead of %" PRIu64, name, (long long)st.st_size, bytes);
    }
    int good = 1;
    for (int f = 0; good && f < MANIFEST_FILES; f++)
        good = m->file[f].extents == 0 || extents_ok(folder, manifest_file_name[f], &m->file[f], c, moved, fault);
    return good;
}

void manifest_free(Manifest *m) {
    free(m->data);
    for (int f = 0; f < MANIFEST_FILES; f++) free(m->file[f].extent);
    if (m->json.root) json_free(&m->json);
    memset(m, 0, sizeof *m);
}
