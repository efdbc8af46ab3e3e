/* cluster.c - reads the description of a cluster, and computes times on it: see cluster.h. */
#include "run/plan/cluster.h"

#include <ctype.h>
#include <glob.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/error.h"
#include "core/format.h"
#include "core/io.h"
#include "core/json.h"
#include "model/precision.h"

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

/* --- reading a file ----------------------------------------------------------------------------------------------- */

PlanFile plan_file_open(const char *key, const char *path) {
    PlanFile  f = {.path = path};
    JsonFault fault;
    int64_t   bytes = io_read_input(path, JSON_LIMIT, &f.text);
    if (bytes < 0) fail(EXIT_CONFIG, "plan: %s%s cannot be read: %s", key, path, io_error_text((int)bytes));
    if (!json_parse(f.text, (size_t)bytes, JSON_LIMIT, &f.json, &fault)) {
        char why[2 * PATH_MAX];
        snprintf(why, sizeof why, "%s", fault.text);
        shell_name_file(why, sizeof why, path);
        fail(EXIT_CONFIG, "%s:%d:%d: %s", path, fault.at.line, fault.at.column, why);
    }
    if (!cJSON_IsObject(f.json.root)) fail(EXIT_CONFIG, "%s: a JSON object {...} is expected", path);
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

/* Returns 1 if the text can be shown on a terminal. */
static int is_printable(const char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F) return 0;
    return 1;
}

/* Reads the value of a key into its field, or adds a fault. path: name of the key in messages. */
static void take_value(PlanFile *f, const char *path, const cJSON *node, const Key *key, void *field) {
    char        expected[3 * SHOWN_BYTES], shown[SHOWN_BYTES], least[SHOWN_BYTES], most[SHOWN_BYTES];
    const char *name = cJSON_IsString(node) ? node->valuestring : "";
    if (key->type == KEY_NAME) {
        if (*name && strlen(name) < CLUSTER_NAME && is_printable(name)) snprintf(field, CLUSTER_NAME, "%s", name);
        else plan_file_fault(f, path, "= %s: a string of 1 to %d printable characters is expected",
                             value_text(node, shown), CLUSTER_NAME - 1);
    } else if (key->type == KEY_BOOL) {
        *(int *)field = cJSON_IsTrue(node);
        if (!cJSON_IsBool(node)) plan_file_fault(f, path, "= %s: true or false is expected", value_text(node, shown));
    } else {
        snprintf(expected, sizeof expected, "a %snumber from %s to %s", key->type == KEY_WHOLE ? "whole " : "",
                 number_text(key->least, least), number_text(key->most, most));
        plan_file_number(f, path, node, key->least, key->most, key->type == KEY_WHOLE, expected, field);
    }
}

/* An object of a file, and the table of its keys. */
typedef struct {
    PlanFile   *file;
    const Key  *key;    /* borrowed [keys]: the keys that the object may have */
    int         keys;
    char       *target; /* struct with the fields of the keys */
    const char *name;   /* beginning of the names of its keys in messages: "", or "links[1]." */
    unsigned    found;  /* bit 1 << k: the object has key k */
} Table;

/* Reads the members of a section of the object, such as "gpu.flops."; section "" is the whole object. Adds a fault for
 * each member that is no key, with the nearest key. */
static void take_members(Table *t, const cJSON *object, const char *section) {
    for (const cJSON *node = cJSON_IsObject(object) ? object->child : NULL; node; node = node->next) {
        /* 0 if the name has a dot, which separates a section from its key and is in no name */
        int    is_one = !strchr(node->string, '.');
        char   name[JSON_PATH_BYTES + 2], path[JSON_PATH_BYTES + 64];
        int    row = -1, is_section = 0, nearest = 0, least = 1 << 20;
        size_t length = (size_t)snprintf(name, sizeof name, "%s%s", section, node->string);
        snprintf(path, sizeof path, "%s%s", t->name, name);
        if (strcmp(node->string, "$comment") == 0 || strcmp(path, "links") == 0) continue;
        for (int k = 0; k < t->keys; k++) {
            const char *key = t->key[k].path;
            int         distance = edit_distance(name, key);
            if (is_one && strcmp(key, name) == 0) row = k;
            if (distance < least) least = distance, nearest = k;
            is_section |= is_one && strncmp(key, name, length) == 0 && key[length] == '.';
        }
        if (row >= 0) {
            t->found |= 1u << row;
            take_value(t->file, path, node, &t->key[row], t->target + t->key[row].field);
        } else if (is_section && cJSON_IsObject(node)) {
            strcat(name, ".");
            take_members(t, node, name);
        } else if (is_section) {
            plan_file_fault(t->file, path, "must be an object");
        } else {
            plan_file_fault(t->file, path, "is no key of a cluster; the nearest is %s%s", t->name,
                            t->key[nearest].path);
        }
    }
}

/* Reads an object with a table of keys. A key that the file does not have gets its default, or a fault if it is
 * needed. */
static void take_object(const cJSON *object, Table t) {
    take_members(&t, object, "");
    for (int k = 0; k < t.keys; k++) {
        void *field = t.target + t.key[k].field;
        if (t.found >> k & 1) continue;
        if (t.key[k].is_needed) plan_file_fault(t.file, path_of("%s%s", t.name, t.key[k].path).text, "is missing");
        else if (t.key[k].type == KEY_BOOL) *(int *)field = t.key[k].otherwise != 0;
        else *(double *)field = t.key[k].otherwise;
    }
}

/* Reads the links of a cluster, from near to far. Each must connect more ranks than the one before, and the last must
 * connect all. */
static void take_links(PlanFile *f, Cluster *c) {
    const cJSON *list = json_member(f->json.root, "links");
    int          count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (count < 1 || count > CLUSTER_LINKS) {
        plan_file_fault(f, "links", "must be a list of 1 to 4 objects {\"ranks\", \"bytes_per_s\", \"latency_s\"}");
        return;
    }
    for (c->links = 0; c->links < count; c->links++) {
        Link *link = &c->link[c->links];
        char  name[32], ranks[40];
        snprintf(name, sizeof name, "links[%d].", c->links);
        snprintf(ranks, sizeof ranks, "%sranks", name);
        take_object(cJSON_GetArrayItem(list, c->links), (Table){f, LINK_KEYS, 3, (char *)link, name, 0});
        int is_last = c->links == count - 1;
        if (is_last && link->ranks != 0) plan_file_fault(f, ranks, "must be 0 in the last link: it reaches all ranks");
        if (!is_last && (link->ranks < 1 || (c->links > 0 && link->ranks <= link[-1].ranks)))
            plan_file_fault(f, ranks, "must grow from link to link: at least 1 in the first, more in each further one");
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
    char   names[512] = "";
    Path   folder = clusters_folder("");
    glob_t files = {0};
    if (*folder.text) glob(path_of("%s/*.json", folder.text).text, 0, NULL, &files);
    for (size_t i = 0, used = 0; i < files.gl_pathc && used < sizeof names; i++) {
        const char *file = basename(files.gl_pathv[i]);
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%.*s", used ? ", " : "",
                                 (int)(strlen(file) - strlen(".json")), file);
    }
    if (!*folder.text)
        fail(EXIT_CONFIG,
             "plan: cluster=%s: there is no folder configs/clusters here, nor above the program; give "
             "the path of a file, as in cluster=./mine.json",
             name);
    fail(EXIT_CONFIG,
         "plan: cluster=%s: no such cluster%s%s%s%s; give one of them, or the path of a file, as in "
         "cluster=./mine.json",
         name, names[0] ? ": " : "", names, names[0] ? " are in " : "", names[0] ? folder.text : "");
}

/* Returns the path of a cluster's file, by its name in configs/clusters or by its path. */

Cluster cluster_load(const char *name_or_file) {
    Cluster     c = {.name = ""};
    const char *name = name_or_file;
    Path        path = path_of("%s", name);
    if (!strchr(name, '/') && !(strlen(name) > 5 && has_ending(name, ".json"))) {
        Path folder = clusters_folder(path_of("%s.json", name).text);
        if (!*name || !*folder.text) no_such_cluster(name);
        path = path_of("%s/%s.json", folder.text, name);
    }
    PlanFile r = plan_file_open(path_of("cluster=%s: ", name_or_file).text, path.text);
    take_object(r.json.root, (Table){&r, KEYS, KEY_COUNT, (char *)&c, "", 0});
    take_links(&r, &c);
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
    {"a100", "dgx-a100"}, {"h100", "dgx-h100"}, {"h200", "dgx-h200"}, {"b200", "dgx-b200"},
    {"3090", "pcie-3090"}, {"4090", "pcie-4090"}, {"5090", "pcie-5090"}};
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
    /* the name of another card, such as 4080, is no spelling mistake for 4090 */
    int     is_near = near.sure && !isdigit((unsigned char)gpu[0]);
    fail(EXIT_CONFIG,
         "plan: gpu=%s: no such GPU%s%s%s; there are %s. For another GPU copy "
         "configs/clusters/pcie-4090.json, edit the copy and give cluster=COPY",
         gpu, is_near ? " (did you mean " : "", is_near ? near.word : "", is_near ? "?)" : "", list);
}

Cluster cluster_of_gpu(const char *gpu, int ranks, int nodes) {
    Cluster c = cluster_load(cluster_with(gpu));
    int     most = (int)c.gpus_per_node;
    if (nodes == 0) return c;
    if (ranks % nodes != 0)
        fail(EXIT_CONFIG,
             "plan: ranks=%d cannot be divided evenly among nodes=%d: give ranks= as a multiple of nodes=", ranks,
             nodes);
    if (ranks / nodes > most)
        fail(EXIT_CONFIG,
             "plan: a node of %s has %d GPUs, and ranks=%d on nodes=%d are %d on each: give nodes=%d or more", gpu,
             most, ranks, nodes, ranks / nodes, (ranks + most - 1) / most);
    c.gpus_per_node = c.link[0].ranks = ranks / nodes;
    return c;
}

/* --- durations ---------------------------------------------------------------------------------------------------- */

double cluster_flops(const Cluster *c, DType type, int precision) {
    if (type == F32) return precision == PRECISION_TF32 ? c->tf32 : c->fp32;
    return type == BF16 ? c->bf16 : c->fp16;
}

double cluster_op_seconds(const Cluster *c, const LedgerEntry *e, double flops, size_t element_bytes) {
    double bytes_per_s = c->bytes_per_s * c->memory, bytes = e->bytes / bytes_per_s;
    if (strncmp(e->op, "matmul", 6) == 0) {
        double most = strncmp(e->op, "matmul, fp8", 11) == 0 ? c->fp8 : flops;
        double k = (double)e->dim[2], fill = 1.0; /* fill: share of the processors that a wave of tiles keeps busy */
        double tiles = (double)((e->dim[0] + 127) / 128) * (double)((e->dim[1] + 255) / 256);
        if (c->processors > 0) fill = tiles / (ceil(tiles / c->processors) * c->processors);
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
