/* leases.c - see leases.h. Reading the file and giving leases change the ranges in the same way: take and release. */
#include "run/outer/leases.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"

enum { LINE_BYTES = 512 };
typedef enum { IS_GIVEN, IS_DONE, IS_RETURNED } Is;
static const char *const IS_WORDS[] = {[IS_GIVEN] = "given", [IS_DONE] = "done", [IS_RETURNED] = "returned"};

typedef struct {
    int64_t     number, used, round;
    SampleRange range;
    char        island[ISLAND_ID_BYTES];
    Is          is;
} Line;

/* --- ranges of samples -------------------------------------------------------------------------------------------- */

static int64_t end_of(SampleRange r) { return r.first + r.samples; }

static void *grown(void *list, int64_t count, size_t bytes) {
    if (count & (count - 1)) return list; /* a power of two: the list is full */
    return xrealloc(list, bytes * (size_t)(count ? 2 * count : 1), "the leases of samples");
}

static void remove_free(Leases *l, int64_t i) {
    memmove(l->free + i, l->free + i + 1, sizeof *l->free * (size_t)(l->frees - i - 1));
    l->frees--;
}

/* Frees the samples, and joins them with the free ranges that they touch. Returns 0 if some of them are free already,
 * or were never given. */
static int release(Leases *l, SampleRange r) {
    int64_t i = 0;
    if (r.samples == 0) return 1;
    while (i < l->frees && end_of(l->free[i]) < r.first) i++;
    if (i < l->frees && end_of(l->free[i]) == r.first) {
        r = (SampleRange){l->free[i].first, l->free[i].samples + r.samples};
        remove_free(l, i);
    }
    if (i < l->frees && l->free[i].first == end_of(r)) {
        r.samples += l->free[i].samples;
        remove_free(l, i);
    }
    if (i < l->frees && l->free[i].first < end_of(r)) return 0;
    if (end_of(r) > l->next_sample) return 0;
    l->free = grown(l->free, l->frees, sizeof *l->free);
    memmove(l->free + i + 1, l->free + i, sizeof *l->free * (size_t)(l->frees - i));
    l->free[i] = r, l->frees++;
    return 1;
}

/* Takes the samples: new ones, or the first of a free range. Returns 0 if they are neither. If r begins behind the
 * first new sample, those between are left out: a file that was lost had them. */
static int take(Leases *l, SampleRange r) {
    if (r.first >= l->next_sample) return l->next_sample = end_of(r), 1;
    for (int64_t i = 0; i < l->frees; i++) {
        SampleRange *f = &l->free[i];
        if (f->first != r.first || f->samples < r.samples) continue;
        f->first += r.samples, f->samples -= r.samples;
        if (f->samples == 0) remove_free(l, i);
        return 1;
    }
    return 0;
}

static int64_t find(const Leases *l, int64_t number) {
    for (int64_t i = l->givens; i-- > 0;)
        if (l->given[i].number == number) return i;
    return -1;
}

static void forget(Leases *l, int64_t i) { l->given[i] = l->given[--l->givens]; }

/* --- lines of the file -------------------------------------------------------------------------------------------- */

static void fault_of_file(const Leases *l, int error, const char *what) {
    if (error < 0) fail(EXIT_IO, "%s: cannot %s: %s", l->path, what, io_error_text(error));
}

static void write_line(Leases *l, const Line *line) {
    char text[LINE_BYTES];
    int  bytes = snprintf(text, sizeof text,
                          "{\"lease\":%" PRId64 ",\"first\":%" PRId64 ",\"samples\":%" PRId64
                          ",\"island\":\"%s\",\"round\":%" PRId64 ",\"is\":\"%s\",\"used\":%" PRId64 "}\n",
                          line->number, line->range.first, line->range.samples, line->island, line->round,
                          IS_WORDS[line->is], line->used);
    fault_of_file(l, io_write(l->fd, text, (size_t)bytes), "write");
    l->is_dirty = 1;
}

static int read_count(const cJSON *root, const char *name, int64_t *out) {
    double value = number_value(json_member(root, name));
    int    is_count = value >= 0 && value <= (double)MESSAGE_COUNT_LIMIT && value == (double)(int64_t)value;
    if (is_count) *out = (int64_t)value;
    return is_count;
}

/* Reads the line text [bytes], without its '\n'. Returns 0 if it is not a line of a lease. */
static int read_line(const char *text, size_t bytes, Line *out) {
    Json      json;
    JsonFault fault;
    if (bytes >= LINE_BYTES || !json_parse(text, bytes, LINE_BYTES, &json, &fault)) return 0;
    const cJSON *island = json_member(json.root, "island"), *is = json_member(json.root, "is");
    int good = cJSON_IsString(island) && strlen(island->valuestring) == ISLAND_ID_BYTES - 1 && cJSON_IsString(is) &&
               read_count(json.root, "lease", &out->number) && read_count(json.root, "first", &out->range.first) &&
               read_count(json.root, "samples", &out->range.samples) && read_count(json.root, "round", &out->round) &&
               read_count(json.root, "used", &out->used) && out->range.samples > 0 && out->used <= out->range.samples;
    if (good) memcpy(out->island, island->valuestring, ISLAND_ID_BYTES);
    int word = 0;
    while (good && word < 3 && strcmp(is->valuestring, IS_WORDS[word]) != 0) word++;
    out->is = (Is)word;
    json_free(&json);
    return good && word < 3;
}

/* Repeats what a line of the file records. Returns 0 if the line does not fit those before it. */
static int replay(Leases *l, const Line *line) {
    if (line->is == IS_GIVEN) {
        if (line->number != l->next_number || !take(l, line->range)) return 0;
        l->given = grown(l->given, l->givens, sizeof *l->given);
        l->given[l->givens++] = (Lease){.number = l->next_number++, .range = line->range, .round = line->round};
        memcpy(l->given[l->givens - 1].island, line->island, ISLAND_ID_BYTES);
        return 1;
    }
    int64_t i = find(l, line->number);
    Lease  *of = i < 0 ? NULL : &l->given[i];
    if (!of || of->range.first != line->range.first || of->range.samples != line->range.samples) return 0;
    if (line->is == IS_RETURNED) return forget(l, i), release(l, line->range);
    SampleRange rest = {of->range.first + line->used, of->range.samples - line->used};
    if (of->is_done || line->used == 0) return 0;
    of->range.samples = line->used, of->round = line->round, of->is_done = 1;
    return release(l, rest);
}

static void read_file(Leases *l) {
    char  *text = NULL;
    int64_t all = io_read_file(l->path, SIZE_MAX / 2, &text), number = 1;
    if (all == -ENOENT) return;
    fault_of_file(l, (int)(all < 0 ? all : 0), "read");
    for (char *at = text, *end; (end = memchr(at, '\n', (size_t)(text + all - at))); at = end + 1, number++) {
        Line line;
        if (!read_line(at, (size_t)(end - at), &line) || !replay(l, &line))
            fail(EXIT_DATA,
                 "%s:%" PRId64
                 ": this line does not fit those before it: restore the file, or move it away: then samples that were returned stay unused",
                 l->path, number);
        l->bytes = (uint64_t)(end + 1 - text);
    }
    free(text);
}

/* --- the functions of leases.h ------------------------------------------------------------------------------------ */

Leases leases_open(const char *path, int64_t round, int64_t next_sample) {
    Leases l = {.fd = -1};
    snprintf(l.path, sizeof l.path, "%s", path);
    read_file(&l);
    if (l.next_sample < next_sample) l.next_sample = next_sample;
    l.fd = io_open(path, IO_APPEND);
    fault_of_file(&l, l.fd, "open");
    fault_of_file(&l, io_truncate(l.fd, l.bytes), "cut");
    for (int64_t i = l.givens; i-- > 0;) {
        if (!l.given[i].is_done || l.given[i].round >= round) leases_return(&l, l.given[i].number);
        else forget(&l, i);
    }
    leases_sync(&l);
    return l;
}

void leases_close(Leases *l) {
    if (l->fd >= 0) leases_sync(l), io_close(l->fd);
    free(l->given);
    free(l->free);
    *l = (Leases){.fd = -1};
}

Lease leases_give(Leases *l, int64_t samples, const char *island, int64_t round) {
    Lease given = {.number = l->next_number++, .range = {l->next_sample, samples}, .round = round};
    snprintf(given.island, sizeof given.island, "%s", island);
    if (l->frees > 0) {
        given.range = l->free[0];
        if (given.range.samples > samples) given.range.samples = samples;
    }
    CHECK(take(l, given.range), "samples from %lld on are not free", (long long)given.range.first);
    l->given = grown(l->given, l->givens, sizeof *l->given);
    l->given[l->givens++] = given;
    Line line = {given.number, 0, round, given.range, "", IS_GIVEN};
    memcpy(line.island, given.island, ISLAND_ID_BYTES);
    write_line(l, &line);
    return given;
}

static void end_lease(Leases *l, int64_t number, Is is, int64_t used, int64_t round) {
    int64_t i = find(l, number);
    CHECK(i >= 0, "lease %lld is not given", (long long)number);
    Lease lease = l->given[i];
    Line  line = {number, used, round < 0 ? lease.round : round, lease.range, "", is};
    CHECK(used >= 0 && used <= lease.range.samples, "%lld samples of a lease of %lld", (long long)used,
          (long long)lease.range.samples);
    memcpy(line.island, lease.island, ISLAND_ID_BYTES);
    write_line(l, &line);
    forget(l, i);
    CHECK(release(l, (SampleRange){lease.range.first + used, lease.range.samples - used}),
          "samples of lease %lld are free already", (long long)number);
}

void leases_done(Leases *l, int64_t number, int64_t used, int64_t round) {
    if (used == 0) leases_return(l, number);
    else end_lease(l, number, IS_DONE, used, round);
}
void leases_return(Leases *l, int64_t number) { end_lease(l, number, IS_RETURNED, 0, -1); }

void leases_sync(Leases *l) {
    if (!l->is_dirty) return;
    fault_of_file(l, io_fsync(l->fd), "sync");
    l->is_dirty = 0;
}
