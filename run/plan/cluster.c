/* cluster.c - reads the description of a cluster, and computes times on it: see cluster.h. */
#include "run/plan/cluster.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "model/precision.h"
#include "run/checkpoint/checkpoint_folders.h"

/* --- the keys of a file ------------------------------------------------------------------------------------------- */

typedef enum { KEY_NUMBER, KEY_WHOLE, KEY_NAME, KEY_BOOL } KeyType;
typedef struct {
    const char *path;
    size_t      field;
    KeyType     type;
    int         is_needed;
    double      least, most, otherwise;
} Key;

#define FIELD(name) offsetof(Cluster, name)
static const Key KEYS[] = {
    {"gpus_per_node", FIELD(gpus_per_node), KEY_WHOLE, 1, 1, 1 << 20, 0},
    {"gpu.name", FIELD(gpu), KEY_NAME, 1, 0, 0, 0},
    {"gpu.memory_bytes", FIELD(memory_bytes), KEY_NUMBER, 1, 1, 1e18, 0},
    {"gpu.reserved_bytes", FIELD(reserved_bytes), KEY_NUMBER, 0, 0, 1e18, 0},
    {"gpu.processors", FIELD(processors), KEY_WHOLE, 0, 0, 1 << 20, 0},
    {"gpu.flops.fp32", FIELD(fp32), KEY_NUMBER, 0, 1, 1e24, 0},
    {"gpu.flops.tf32", FIELD(tf32), KEY_NUMBER, 0, 1, 1e24, 0},
    {"gpu.flops.bf16", FIELD(bf16), KEY_NUMBER, 0, 1, 1e24, 0},
    {"gpu.flops.fp16", FIELD(fp16), KEY_NUMBER, 0, 1, 1e24, 0},
    {"gpu.flops.fp8", FIELD(fp8), KEY_NUMBER, 0, 1, 1e24, 0},
    {"gpu.bytes_per_s", FIELD(bytes_per_s), KEY_NUMBER, 1, 1, 1e24, 0},
    {"efficiency.product", FIELD(product), KEY_NUMBER, 1, 1e-6, 1, 0},
    {"efficiency.attention", FIELD(attention), KEY_NUMBER, 0, 1e-6, 1, -1},
    {"efficiency.memory", FIELD(memory), KEY_NUMBER, 1, 1e-6, 1, 0},
    {"efficiency.link", FIELD(link_efficiency), KEY_NUMBER, 1, 1e-6, 1, 0},
    {"efficiency.ramp", FIELD(ramp), KEY_NUMBER, 0, 0, 1e6, 64},
    {"efficiency.op_s", FIELD(op_s), KEY_NUMBER, 0, 0, 1, 0},
    {"attention_passes", FIELD(attention_passes), KEY_NUMBER, 0, 0, 100, 0},
    {"fp8_casts", FIELD(fp8_casts), KEY_BOOL, 0, 0, 1, 0},
    {"overlap.collectives", FIELD(overlaps), KEY_BOOL, 0, 0, 1, 1},
    {"overlap.messages", FIELD(messages_overlap), KEY_BOOL, 0, 0, 1, 1},
    {"checkpoint.copy_bytes_per_s", FIELD(copy_bytes_per_s), KEY_NUMBER, 0, 1, 1e24, 0},
    {"checkpoint.write_bytes_per_s", FIELD(write_bytes_per_s), KEY_NUMBER, 0, 1, 1e24, 0},
    {"checkpoint.restart_s", FIELD(restart_s), KEY_NUMBER, 0, 0, 1e9, 0},
};
enum { KEY_COUNT = sizeof KEYS / sizeof *KEYS };
static const Key LINK_KEYS[] = {{"ranks", offsetof(Link, ranks), KEY_WHOLE, 1, 0, 1 << 20, 0},
                                {"bytes_per_s", offsetof(Link, bytes_per_s), KEY_NUMBER, 1, 1, 1e24, 0},
                                {"latency_s", offsetof(Link, latency_s), KEY_NUMBER, 1, 0, 1, 0}};

/* Returns 1 if a path in the JSON file is a known key, or an object or a list that contains known keys. */
static int is_key(const char *path) {
    const char *last = strrchr(path, '.'), *of_link = strstr(path, "].");
    size_t      length = strlen(path);
    if (strcmp(last ? last + 1 : path, "$comment") == 0 || strcmp(path, "links") == 0) return 1;
    if (strncmp(path, "links[", 6) == 0 && !of_link) return 1;
    for (int i = 0; i < 3 && strncmp(path, "links[", 6) == 0; i++)
        if (strcmp(of_link + 2, LINK_KEYS[i].path) == 0) return 1;
    for (int i = 0; i < KEY_COUNT; i++) {
        char next = KEYS[i].path[strnlen(KEYS[i].path, length)];
        if (strncmp(KEYS[i].path, path, length) == 0 && (next == '.' || next == '\0')) return 1;
    }
    return 0;
}

/* --- reading a file ----------------------------------------------------------------------------------------------- */

PlanFile plan_file_open(const char *key, const char *path) {
    PlanFile  f = {.path = path};
    JsonFault fault;
    int64_t   bytes = io_read_input(path, JSON_LIMIT, &f.text);
    if (bytes < 0) fail(EXIT_CONFIG, "plan: %s%s cannot be read: %s", key, path, io_error_text((int)bytes));
    if (!json_parse(f.text, (size_t)bytes, JSON_LIMIT, &f.json, &fault))
        fail(EXIT_CONFIG, "%s:%d:%d: %s", path, fault.at.line, fault.at.column, fault.text);
    if (!cJSON_IsObject(f.json.root)) fail(EXIT_CONFIG, "%s: a JSON object is expected", path);
    return f;
}

void plan_file_close(PlanFile *f) {
    if (f->faults.count > 0) fail_lines(EXIT_CONFIG, faults_take(&f->faults));
    json_free(&f->json);
    free(f->text);
}

void plan_file_fault(PlanFile *f, const char *key, const char *fmt, ...) {
    const JsonEntry *entry = json_entry(&f->json, key);
    Where            where = {.file = f->path};
    char             text[4 * SHOWN_BYTES];
    va_list          args;
    if (entry) where.at = entry->value;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    faults_add(&f->faults, where, "%s %s", key, text);
}

int plan_file_number(PlanFile *f, const char *key, const cJSON *node, double least, double most, int is_whole,
                     const char *expected, double *out) {
    char   shown[SHOWN_BYTES];
    double value = cJSON_IsNumber(node) ? number_value(node) : NAN;
    int    is_good = value >= least && value <= most && (!is_whole || value == floor(value));
    if (is_good) *out = value;
    else plan_file_fault(f, key, "= %s: %s is expected", value_text(node, shown), expected);
    return is_good;
}

static const cJSON *find(const cJSON *at, const char *path) {
    char name[64];
    while (at && *path) {
        size_t length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        at = json_member(at, name);
        path += length + (path[length] == '.');
    }
    return at;
}

static void take_number(PlanFile *r, const char *path, const cJSON *node, Key key, double *out) {
    char expected[3 * SHOWN_BYTES], least[SHOWN_BYTES], most[SHOWN_BYTES];
    snprintf(expected, sizeof expected, "a %snumber from %s to %s", key.type == KEY_WHOLE ? "whole " : "",
             number_text(key.least, least), number_text(key.most, most));
    plan_file_number(r, path, node, key.least, key.most, key.type == KEY_WHOLE, expected, out);
}

/* Returns 1 if the text can be shown on a terminal. */
static int is_printable(const char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F) return 0;
    return 1;
}

static void take_key(PlanFile *r, Cluster *c, Key key) {
    void        *field = (char *)c + key.field;
    const cJSON *node = find(r->json.root, key.path);
    char         shown[SHOWN_BYTES];
    if (!node) {
        if (key.type == KEY_BOOL) *(int *)field = key.otherwise != 0;
        else if (key.type != KEY_NAME) *(double *)field = key.otherwise;
        if (key.is_needed) plan_file_fault(r, key.path, "is missing");
    } else if (key.type == KEY_NAME) {
        const char *name = cJSON_IsString(node) ? node->valuestring : "";
        if (*name && strlen(name) < CLUSTER_NAME && is_printable(name)) snprintf(field, CLUSTER_NAME, "%s", name);
        else plan_file_fault(r, key.path, "= %s: a string of 1 to %d printable characters is expected",
                             value_text(node, shown), CLUSTER_NAME - 1);
    } else if (key.type == KEY_BOOL) {
        *(int *)field = cJSON_IsTrue(node);
        if (!cJSON_IsBool(node))
            plan_file_fault(r, key.path, "= %s: true or false is expected", value_text(node, shown));
    } else {
        take_number(r, key.path, node, key, field);
    }
}

/* Reads the links of a cluster, from near to far. Each must connect more ranks than the one before, and the last must
 * connect all. */
static void take_links(PlanFile *r, Cluster *c) {
    const cJSON *list = json_member(r->json.root, "links");
    int          count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (count < 1 || count > CLUSTER_LINKS) {
        plan_file_fault(r, "links", "must be a list of 1 to 4 objects {\"ranks\", \"bytes_per_s\", \"latency_s\"}");
        return;
    }
    for (c->links = 0; c->links < count; c->links++) {
        const cJSON *one = cJSON_GetArrayItem(list, c->links);
        Link        *link = &c->link[c->links];
        char         path[64];
        for (int k = 0; k < 3; k++) {
            const cJSON *node = json_member(one, LINK_KEYS[k].path);
            snprintf(path, sizeof path, "links[%d].%s", c->links, LINK_KEYS[k].path);
            if (!node) plan_file_fault(r, path, "is missing");
            else take_number(r, path, node, LINK_KEYS[k], (void *)((char *)link + LINK_KEYS[k].field));
        }
        int is_last = c->links == count - 1;
        snprintf(path, sizeof path, "links[%d].ranks", c->links);
        if (is_last && link->ranks != 0) plan_file_fault(r, path, "must be 0 in the last link: it reaches all ranks");
        if (!is_last && (link->ranks < 1 || (c->links > 0 && link->ranks <= link[-1].ranks)))
            plan_file_fault(r, path, "must grow from link to link");
    }
}

/* Adds a fault for each unknown key, with the nearest known key. */
static void tell_unknown(PlanFile *r) {
    for (int i = 0; i < r->json.entries; i++) {
        const JsonEntry *e = &r->json.entry[i];
        if (is_key(e->path)) continue;
        const char *nearest = KEYS[0].path;
        int         best = 1 << 20;
        for (int k = 0; k < KEY_COUNT; k++) {
            int distance = edit_distance(e->path, KEYS[k].path);
            if (distance < best) best = distance, nearest = KEYS[k].path;
        }
        faults_add(&r->faults, (Where){.file = r->path, .at = e->key}, "%s is no key of a cluster; the nearest is %s",
                   e->path, nearest);
    }
}

/* --- finding the file --------------------------------------------------------------------------------------------- */

/* Returns the folder configs/clusters that has this file: in the current folder, or in a folder above the program. file
 * "": any folder of that name. Returns "" if there is none. */
static Path clusters_folder(const char *file) {
    char    program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    Path    folder = path_of("configs/clusters");
    if (access(path_of("%s/%s", folder.text, file).text, R_OK) == 0) return folder;
    program[length < 0 ? 0 : length] = 0;
    for (char *slash; (slash = strrchr(program, '/'));) {
        *slash = 0;
        folder = path_of("%s/configs/clusters", program);
        if (access(path_of("%s/%s", folder.text, file).text, R_OK) == 0) return folder;
    }
    return (Path){""};
}

static NORETURN void no_such_cluster(const char *name) {
    char names[512] = "";
    Path folder = clusters_folder("");
    DIR *dir = opendir(folder.text);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        char *end = strstr(e->d_name, ".json");
        if (end && strlen(names) + strlen(e->d_name) + 3 < sizeof names)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%.*s", names[0] ? ", " : "",
                     (int)(end - e->d_name), e->d_name);
    }
    if (dir) closedir(dir);
    if (!*folder.text)
        fail(EXIT_CONFIG, "plan: cluster=%s: there is no folder configs/clusters here, nor above the program; name a "
             "file: cluster=./mine.json", name);
    fail(EXIT_CONFIG,
         "plan: cluster=%s: no such cluster%s%s%s%s; a file's path, as in cluster=./mine.json, is taken, too", name,
         names[0] ? ": " : "", names, names[0] ? " are in " : "", names[0] ? folder.text : "");
}

/* Returns the path of a cluster's file, by its name in configs/clusters or by its path. */
static Path file_of(const char *name) {
    if (strchr(name, '/') || (strlen(name) > 5 && has_ending(name, ".json"))) return path_of("%s", name);
    Path folder = clusters_folder(path_of("%s.json", name).text);
    if (!*name || !*folder.text) no_such_cluster(name);
    return path_of("%s/%s.json", folder.text, name);
}

Cluster cluster_load(const char *name_or_file) {
    static const char *const SECTIONS[] = {"gpu", "gpu.flops", "efficiency", "overlap", "checkpoint"};
    Cluster                  c = {.name = ""};
    Path                     path = file_of(name_or_file);
    PlanFile                 r = plan_file_open(path_of("cluster=%s: ", name_or_file).text, path.text);
    for (int k = 0; k < KEY_COUNT; k++) take_key(&r, &c, KEYS[k]);
    for (int i = 0; i < 5; i++) {
        const cJSON *section = find(r.json.root, SECTIONS[i]);
        if (section && !cJSON_IsObject(section)) plan_file_fault(&r, SECTIONS[i], "must be an object");
    }
    take_links(&r, &c);
    tell_unknown(&r);
    if (r.faults.count == 0 && c.fp32 + c.tf32 + c.bf16 + c.fp16 == 0)
        plan_file_fault(&r, "gpu.flops", "needs a rate of fp32, tf32, bf16 or fp16");
    plan_file_close(&r);
    if (c.attention < 0) c.attention = c.product;
    const char *base = basename(path.text);
    size_t      length = strlen(base), ending = length > 5 && has_ending(base, ".json") ? 5 : 0;
    snprintf(c.name, sizeof c.name, "%.*s", (int)(length - ending), base);
    return c;
}

/* --- a cluster by a GPU's name ------------------------------------------------------------------------------------ */

static const struct { const char *gpu, *cluster; } GPUS[] = {
    {"a100", "dgx-a100"}, {"h100", "dgx-h100"}, {"h200", "dgx-h200"}, {"b200", "dgx-b200"}, {"4090", "pcie-4090"}};
enum { GPU_COUNT = sizeof GPUS / sizeof *GPUS };

static const char *cluster_with(const char *gpu) {
    const char *names[GPU_COUNT + 1] = {NULL};
    char        list[128] = "";
    for (int i = 0; i < GPU_COUNT; i++) {
        if (strcasecmp(gpu, GPUS[i].gpu) == 0) return GPUS[i].cluster;
        names[i] = GPUS[i].gpu;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", GPUS[i].gpu);
    }
    Nearest near = nearest_word(gpu, names);
    /* the name of another card, such as 5090, is no spelling mistake for 4090 */
    int     is_near = near.sure && !isdigit((unsigned char)gpu[0]);
    fail(EXIT_CONFIG, "plan: gpu=%s: no such GPU%s%s%s; there are %s, and cluster=FILE takes any other: copy "
         "configs/clusters/pcie-4090.json", gpu, is_near ? " (did you mean " : "", is_near ? near.word : "",
         is_near ? "?)" : "", list);
}

Cluster cluster_of_gpu(const char *gpu, int ranks, int nodes) {
    Cluster c = cluster_load(cluster_with(gpu));
    int     most = (int)c.gpus_per_node;
    if (nodes == 0) return c;
    if (ranks % nodes != 0)
        fail(EXIT_CONFIG,
             "plan: ranks=%d are not the same number on each of nodes=%d: ranks must be a multiple of nodes", ranks,
             nodes);
    if (ranks / nodes > most)
        fail(EXIT_CONFIG, "plan: a node of %s has %d GPUs, and ranks=%d on nodes=%d are %d on each: nodes=%d or more",
             gpu, most, ranks, nodes, ranks / nodes, (ranks + most - 1) / most);
    c.gpus_per_node = c.link[0].ranks = ranks / nodes;
    return c;
}

/* --- durations ---------------------------------------------------------------------------------------------------- */

double cluster_flops(const Cluster *c, DType type, int precision) {
    if (type == F32) return precision == PRECISION_TF32 ? c->tf32 : c->fp32;
    return type == BF16 ? c->bf16 : c->fp16;
}

static double wave_fill(const Cluster *c, int64_t m, int64_t n) {
    double tiles = (double)((m + 127) / 128) * (double)((n + 255) / 256);
    return c->processors > 0 ? tiles / (ceil(tiles / c->processors) * c->processors) : 1.0;
}

double cluster_op_seconds(const Cluster *c, const LedgerEntry *e, double flops, size_t element_bytes) {
    double bytes_per_s = c->bytes_per_s * c->memory, bytes = e->bytes / bytes_per_s;
    if (strncmp(e->op, "matmul", 6) == 0) {
        double most = strncmp(e->op, "matmul, fp8", 11) == 0 ? c->fp8 : flops;
        double k = (double)e->dim[2], fill = wave_fill(c, e->dim[0], e->dim[1]);
        double rate = most * c->product * sqrt(fill) * k / (k + c->ramp);
        return c->op_s + fmax(e->flops / rate, bytes);
    }
    if (strncmp(e->op, "attention_", 10) == 0 && c->attention_passes > 0) {
        double B = (double)e->dim[0], T = (double)e->dim[1], H = (double)e->dim[2];
        double scores = B * H * T * T * (double)element_bytes;
        return c->op_s + 2.0 * e->flops / (flops * c->product) + c->attention_passes * scores / bytes_per_s;
    }
    if (strncmp(e->op, "attention_", 10) == 0) return c->op_s + fmax(e->flops / (flops * c->attention), bytes);
    return c->op_s + bytes;
}

/* Returns the index of the nearest link that connects both ranks. */
static int link_between(const Cluster *c, int rank, int other) {
    int link = 0;
    while (link < c->links - 1 && rank / (int)c->link[link].ranks != other / (int)c->link[link].ranks) link++;
    return link;
}

/* Adds the hop from one rank to another to the reach (farthest link, summed latency) of a group. */
static void reach_on(const Cluster *c, Reach *r, int from, int to) {
    int link = link_between(c, to, from);
    if (link > r->farthest) r->farthest = link;
    r->latency_s += c->link[link].latency_s;
}

/* Computes the reach (farthest link, latency of a ring) of the group of rank 0. The other groups lie on the cluster in
 * the same way. */
Reach cluster_reach(const Cluster *c, Mesh mesh, unsigned axes) {
    int *ranks = xmalloc(sizeof *ranks * (size_t)mesh_ranks(mesh), "a group of ranks");
    Reach r = {.ranks = mesh_group(mesh, 0, axes, ranks)};
    for (int i = 1; i < r.ranks; i++) reach_on(c, &r, ranks[i - 1], ranks[i]);
    free(ranks);
    return r;
}

Reach cluster_every_reach(const Cluster *c, int stride, int ranks) {
    Reach r = {.ranks = ranks};
    for (int i = 1; i < ranks; i++) reach_on(c, &r, (i - 1) * stride, i * stride);
    return r;
}

Reach cluster_pair_reach(const Cluster *c, int rank, int other) {
    int link = link_between(c, rank, other);
    return (Reach){2, link, c->link[link].latency_s};
}

double cluster_collective_seconds(const Cluster *c, Reach r, double bytes, int rounds) {
    const Link *link = &c->link[r.farthest];
    double      tree = ceil(log2(r.ranks > 1 ? r.ranks : 2)) * link->latency_s;
    if (r.ranks == 1) return 0.0;
    double latency_s = rounds > 1 && tree < r.latency_s ? tree : r.latency_s;
    return bytes / (link->bytes_per_s * c->link_efficiency) + rounds * latency_s;
}

double cluster_message_seconds(const Cluster *c, Reach r, double bytes) {
    const Link *link = &c->link[r.farthest];
    return bytes / (link->bytes_per_s * c->link_efficiency) + link->latency_s;
}
