/* leases.c - gives ranges of samples to islands (training jobs), and keeps the state of each island; see leases.h.
 * Reading the file and giving leases change the free ranges through the same two functions: take and release. */
#include "run/outer/leases.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/format.h"

enum { LINE_BYTES = 512 };
typedef enum { IS_GIVEN, IS_DONE, IS_RETURNED } Is;
static const char *const IS_WORDS[] = {[IS_GIVEN] = "given", [IS_DONE] = "done", [IS_RETURNED] = "returned"};

/* A line of the leases file. used: number of samples that an island trained on and whose result is in the model. */
typedef struct { Lease lease; int64_t used; Is is; } Line;

/* --- ranges of samples -------------------------------------------------------------------------------------------- */

static int64_t end_of(SampleRange r) { return r.first + r.samples; }

static void remove_free(Leases *l, int64_t i) {
    memmove(l->free + i, l->free + i + 1, sizeof *l->free * (size_t)(l->frees - i - 1));
    l->frees--;
}

/* Adds samples to the ranges of free samples, and joins them with adjacent ranges. Returns 0 if some of them are free
 * already, or were never given. */
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
    l->free = xrealloc(l->free, sizeof *l->free * (size_t)(l->frees + 1), "the leases of samples");
    memmove(l->free + i + 1, l->free + i, sizeof *l->free * (size_t)(l->frees - i));
    l->free[i] = r, l->frees++;
    return 1;
}

/* Removes the samples r from the free ones. They must be samples that were never given, or the first of a free range;
 * otherwise returns 0. If r begins after the first sample never given, the samples between are skipped. They were given
 * before, by a leases.jsonl that was lost. */
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

/* Adds a lease (range of samples) to the list of given leases, and increments the number of the next lease. */
static void add_given(Leases *l, Lease lease) {
    l->given = xrealloc(l->given, sizeof *l->given * (size_t)(l->givens + 1), "the leases of samples");
    l->given[l->givens++] = lease;
    l->next_number++;
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
                          line->lease.number, line->lease.range.first, line->lease.range.samples, line->lease.island,
                          line->lease.round, IS_WORDS[line->is], line->used);
    fault_of_file(l, io_write(l->fd, text, (size_t)bytes), "write");
    l->is_dirty = 1;
}

static int read_count(const cJSON *root, const char *name, int64_t *out) {
    double value = number_value(json_member(root, name));
    int    is_count = value >= 0 && value <= (double)MESSAGE_COUNT_LIMIT && value == (double)(int64_t)value;
    if (is_count) *out = (int64_t)value;
    return is_count;
}

/* Reads one line of the leases file, text [bytes] without its '\n'. Returns 0 if it does not describe a lease. */
static int read_line(const char *text, size_t bytes, Line *out) {
    Json      json;
    JsonFault fault;
    Lease    *of = &out->lease;
    if (bytes >= LINE_BYTES || !json_parse(text, bytes, LINE_BYTES, &json, &fault)) return 0;
    const cJSON *island = json_member(json.root, "island"), *is = json_member(json.root, "is");
    int good = cJSON_IsString(island) && strlen(island->valuestring) == ISLAND_ID_BYTES - 1 && cJSON_IsString(is) &&
               read_count(json.root, "lease", &of->number) && read_count(json.root, "first", &of->range.first) &&
               read_count(json.root, "samples", &of->range.samples) && read_count(json.root, "round", &of->round) &&
               read_count(json.root, "used", &out->used) && of->range.samples > 0 && out->used <= of->range.samples;
    if (good) memcpy(of->island, island->valuestring, ISLAND_ID_BYTES);
    int word = 0;
    while (good && word < 3 && strcmp(is->valuestring, IS_WORDS[word]) != 0) word++;
    out->is = (Is)word;
    json_free(&json);
    return good && word < 3;
}

/* Changes l by what a line of the leases file records. Returns 0 if the line contradicts the lines before it. */
static int replay(Leases *l, const Line *line) {
    SampleRange range = line->lease.range;
    if (line->is == IS_GIVEN) {
        if (line->lease.number != l->next_number || !take(l, range)) return 0;
        add_given(l, line->lease);
        return 1;
    }
    int64_t i = find(l, line->lease.number);
    Lease  *of = i < 0 ? NULL : &l->given[i];
    if (!of || of->range.first != range.first || of->range.samples != range.samples) return 0;
    if (line->is == IS_RETURNED) return forget(l, i), release(l, range);
    if (of->is_done || line->used == 0) return 0;
    of->range.samples = line->used, of->round = line->lease.round, of->is_done = 1;
    return release(l, (SampleRange){range.first + line->used, range.samples - line->used});
}

static void read_file(Leases *l) {
    char  *text = NULL;
    int64_t all = io_read_file(l->path, SIZE_MAX / 2, &text), number = 1;
    if (all == -ENOENT) return;
    fault_of_file(l, (int)(all < 0 ? all : 0), "read");
    for (char *at = text, *end; (end = memchr(at, '\n', (size_t)(text + all - at))); at = end + 1, number++) {
        Line line = {0};
        if (!read_line(at, (size_t)(end - at), &line) || !replay(l, &line))
            fail(EXIT_DATA,
                 "%s:%" PRId64
                 ": this line contradicts the lines before: restore the file from a copy, or rename the file "
                 "(mv %s %s.broken); after a rename, samples that stopped jobs gave back are not trained",
                 l->path, number, l->path, l->path);
        l->bytes = (uint64_t)(end + 1 - text);
    }
    free(text);
}

/* --- giving and ending leases ------------------------------------------------------------------------------------- */

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
    Lease given = {.number = l->next_number, .range = {l->next_sample, samples}, .round = round};
    snprintf(given.island, sizeof given.island, "%s", island);
    if (l->frees > 0) given.range = (SampleRange){l->free[0].first, smaller_of(l->free[0].samples, samples)};
    CHECK(take(l, given.range), "samples from %lld on are not free", (long long)given.range.first);
    add_given(l, given);
    write_line(l, &(Line){given, 0, IS_GIVEN});
    return given;
}

void leases_done(Leases *l, int64_t number, int64_t used, int64_t round) {
    int64_t i = find(l, number);
    CHECK(i >= 0, "lease %lld is not given", (long long)number);
    Lease lease = l->given[i];
    CHECK(used >= 0 && used <= lease.range.samples, "%lld samples of a lease of %lld", (long long)used,
          (long long)lease.range.samples);
    if (used > 0) lease.round = round;
    write_line(l, &(Line){lease, used, used > 0 ? IS_DONE : IS_RETURNED});
    forget(l, i);
    CHECK(release(l, (SampleRange){lease.range.first + used, lease.range.samples - used}),
          "samples of lease %lld are free already", (long long)number);
}

void leases_return(Leases *l, int64_t number) { leases_done(l, number, 0, 0); }

void leases_sync(Leases *l) {
    if (!l->is_dirty) return;
    fault_of_file(l, io_fsync(l->fd), "sync");
    l->is_dirty = 0;
}

/* --- members ------------------------------------------------------------------------------------------------------ */

Members members_create(const Config *c, int64_t round) {
    return (Members){.wait = (OuterWait)c->outer.wait,
                     .least = c->outer.least_islands,
                     .step_samples = c->batch.global_tokens / c->batch.seq_len,
                     .seq_len = c->batch.seq_len,
                     .parts = 1,
                     .round = round};
}

void members_destroy(Members *ms) {
    for (int i = 0; i < ms->count; i++) {
        free(ms->member[i]->received);
        free(ms->member[i]->delta);
        held_forget(&ms->member[i]->held);
        free(ms->member[i]);
    }
    free(ms->member);
    *ms = (Members){0};
}

int members_count(const Members *ms, MemberState state) {
    int count = 0;
    for (int i = 0; i < ms->count; i++) count += ms->member[i]->state == state;
    return count;
}

int members_here(const Members *ms) {
    int count = 0;
    for (int i = 0; i < ms->count; i++) count += ms->member[i]->state >= MEMBER_WAITS && !ms->member[i]->leaves;
    return count;
}

/* --- joining and leaving ------------------------------------------------------------------------------------------ */

/* Returns the island with this id, or a new one. If deltas of an old island with this id are still to be counted, the
 * old one stays in the list, beside the new one, until they are. Returns NULL if there are too many islands. */
static Member *find_member(Members *ms, const char *id) {
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (strcmp(m->id, id) == 0 && m->state != MEMBER_ENDED) return m;
        if (strcmp(m->id, id) == 0) m->leaves = 1;
    }
    if (ms->count == MEMBERS_MOST) return NULL;
    Member *m = xcalloc(1, sizeof *m, "one more island");
    ms->member = xrealloc(ms->member, sizeof *ms->member * (size_t)(ms->count + 1), "one more island");
    m->number = ms->count;
    m->last_round = -1;
    ms->member[ms->count++] = m;
    return m;
}

Member *members_join(Members *ms, const Hello *hello, double now_ms, int64_t *was, char fault[MESSAGE_FAULT_BYTES]) {
    Member *m = find_member(ms, hello->island);
    *was = -1;
    if (!m)
        return message_fault(fault, "is one too many: %d have joined already; start the server again", MEMBERS_MOST),
               NULL;
    int is_again = m->state != MEMBER_GONE && (m->ranks != hello->ranks || m->received[hello->rank]);
    if (is_again) *was = members_lose(m);
    if (m->state == MEMBER_GONE) {
        free(m->received);
        m->received = calloc((size_t)hello->ranks, 1);
        held_forget(&m->held);
        m->ranks = hello->ranks, m->joined = m->leaves = m->knows_end = 0;
        snprintf(m->id, sizeof m->id, "%s", hello->island);
        if (!m->received) return message_fault(fault, "is one too many: the server has no memory for it"), NULL;
        m->state = MEMBER_GATHERS;
    }
    m->received[hello->rank] = 1;
    m->heard_ms = now_ms;
    if (++m->joined == m->ranks) m->state = MEMBER_WAITS;
    return m;
}

int64_t members_lose(Member *m) {
    int64_t lease = m->state == MEMBER_TRAINS ? m->lease.number : -1;
    m->leaves = 1;
    if (m->state != MEMBER_ENDED) m->state = MEMBER_GONE;
    return lease;
}

Member *members_silent(const Members *ms, double now_ms, double patience_ms) {
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (m->state != MEMBER_GONE && (!m->leaves || m->state == MEMBER_TRAINS) && now_ms - m->heard_ms > patience_ms)
            return m;
    }
    return NULL;
}

/* --- rounds ------------------------------------------------------------------------------------------------------- */

int members_may_open(const Members *ms) {
    int waits = members_count(ms, MEMBER_WAITS);
    if (waits == 0 || (!ms->has_begun && waits < ms->least)) return 0;
    return ms->wait == WAIT_NONE || members_count(ms, MEMBER_TRAINS) + members_count(ms, MEMBER_ENDED) == 0;
}

int members_may_close(const Members *ms) {
    return ms->wait == WAIT_ALL && members_count(ms, MEMBER_TRAINS) == 0 && members_count(ms, MEMBER_ENDED) > 0;
}

void members_give(Members *ms, Member *m, Lease lease) {
    m->state = MEMBER_TRAINS;
    m->lease = lease;
    m->arrivals = ms->arrivals;
    m->ended = 0, m->elems = 0, m->parts_in = 0;
    m->squares = (Exact){{0}};
    memset(m->received, 1, (size_t)m->ranks);
    ms->has_begun = 1;
}

int members_end(Members *ms, Member *m, int rank, const End *end, int64_t elems, char fault[MESSAGE_FAULT_BYTES]) {
    int64_t samples = m->lease.range.samples, step_samples = ms->step_samples;
    int     is_good = 0;
    if (m->state != MEMBER_TRAINS || m->received[rank] != 1)
        message_fault(fault, "sent an END that belongs to no lease");
    else if (end->round != m->lease.round)
        message_fault(fault, "sent the END of round %lld, and its lease is of round %lld", (long long)end->round,
                      (long long)m->lease.round);
    else if (end->lease != m->lease.number)
        message_fault(fault, "sent the END of lease %lld, and it has lease %lld", (long long)end->lease,
                      (long long)m->lease.number);
    else if (end->samples > samples || end->samples % step_samples || end->tokens != end->samples * ms->seq_len)
        message_fault(fault, "sent an END of %lld samples and %lld tokens, which are no steps of %lld samples of its "
                      "lease of %lld", (long long)end->samples, (long long)end->tokens, (long long)step_samples,
                      (long long)samples);
    else is_good = 1;
    if (!is_good) return -1;
    if (rank == 0) m->end = *end;
    m->received[rank] = 2;
    if (++m->ended < m->ranks) return 0;
    if (m->end.samples == 0) {
        m->state = MEMBER_WAITS;
        return 1;
    }
    if (m->elems != elems) {
        message_fault(fault, "sent %lld of the %lld elements of its delta", (long long)m->elems, (long long)elems);
        return -1;
    }
    if (++m->parts_in == ms->parts) m->state = MEMBER_ENDED;
    return 1;
}

Member *members_of_lease(const Members *ms, int64_t lease) {
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if ((m->state == MEMBER_TRAINS || m->state == MEMBER_ENDED) && m->lease.number == lease) return m;
    }
    return NULL;
}

int members_part_in(Members *ms, int64_t lease, const Exact *squares) {
    Member *m = members_of_lease(ms, lease);
    if (!m || m->parts_in == ms->parts) return 0;
    exact_merge(&m->squares, squares);
    if (++m->parts_in == ms->parts) m->state = MEMBER_ENDED;
    return 1;
}

int members_judge(const Members *ms, const Member *m, char fault[MESSAGE_FAULT_BYTES]) {
    if (!isfinite(m->norm))
        return message_fault(fault, "the delta of round %lld is not finite: the training of this island has diverged",
                             (long long)m->lease.round);
    double *norm = xmalloc(sizeof(double) * (size_t)(2 * ms->count), "the norms of the islands");
    int     count = 0;
    for (int i = 0; i < ms->count; i++) {
        const Member *o = ms->member[i];
        if (o == m) continue;
        if (o->state == MEMBER_ENDED && isfinite(o->norm)) norm[count++] = o->norm;
        if (o->last_round >= 0 && o->last_round >= ms->round - 1) norm[count++] = o->last_norm;
    }
    qsort(norm, (size_t)count, sizeof *norm, ascending_doubles);
    double median = count ? (norm[(count - 1) / 2] + norm[count / 2]) / 2 : 0.0;
    free(norm);
    if (median == 0.0 || m->norm <= MEMBERS_FAR * median) return 1;
    return message_fault(fault,
                         "the delta of round %lld has the norm %.3g, over %.0f times the other islands' %.3g: the "
                         "training of this island has diverged",
                         (long long)m->lease.round, m->norm, MEMBERS_FAR, median);
}

void members_counted(Members *ms, Member *m) {
    m->last_norm = m->norm, m->last_round = ms->round;
    m->state = m->leaves ? MEMBER_GONE : MEMBER_WAITS;
    ms->arrivals++, ms->of_round++;
}

/* outer.wait=none: returns the number of deltas (weight changes of training jobs) that make a round. */
static int64_t deltas_of_round(const Members *ms) { return larger_of(members_here(ms), 1); }

int  members_round_is_full(const Members *ms) { return ms->of_round >= deltas_of_round(ms); }
void members_next_round(Members *ms) { ms->round++, ms->of_round = 0; }

int64_t members_staleness(const Members *ms, const Member *m) {
    return (ms->arrivals - m->arrivals) / deltas_of_round(ms);
}
