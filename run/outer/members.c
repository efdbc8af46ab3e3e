/* members.c - see members.h. */
#include "run/outer/members.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

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
        free(ms->member[i]->said);
        free(ms->member[i]->delta);
        held_forget(&ms->member[i]->held);
        members_forget_turns(ms->member[i]);
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

static int refuse(char fault[MEMBER_FAULT_BYTES], const char *fmt, ...) PRINTF_LIKE(2, 3);
static int refuse(char fault[MEMBER_FAULT_BYTES], const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault, MEMBER_FAULT_BYTES, fmt, args);
    va_end(args);
    return 0;
}

static Member *new_member(Members *ms) {
    Member *m = xcalloc(1, sizeof *m, "one more island");
    ms->member = xrealloc(ms->member, sizeof *ms->member * (size_t)(ms->count + 1), "one more island");
    m->number = ms->count;
    m->last_round = -1;
    ms->member[ms->count++] = m;
    return m;
}

/* Returns the member with this id, or a new one. A member whose deltas are still to count stays, and leaves then. */
static Member *find_member(Members *ms, const char *id) {
    for (int i = 0; i < ms->count; i++) {
        Member *m = ms->member[i];
        if (strcmp(m->id, id) == 0 && m->state != MEMBER_ENDED) return m;
        if (strcmp(m->id, id) == 0) m->leaves = 1;
    }
    return ms->count < MEMBERS_MOST ? new_member(ms) : NULL;
}

static int take_place(Member *m, const Hello *hello) {
    free(m->said);
    m->said = calloc((size_t)hello->ranks, 1);
    held_forget(&m->held);
    m->ranks = hello->ranks, m->joined = m->leaves = m->knows_end = 0;
    m->state = m->said ? MEMBER_GATHERS : MEMBER_GONE;
    snprintf(m->id, sizeof m->id, "%s", hello->island);
    return m->said != NULL;
}

Member *members_join(Members *ms, const Hello *hello, double now_ms, int64_t *was, char fault[MEMBER_FAULT_BYTES]) {
    Member *m = find_member(ms, hello->island);
    *was = -1;
    if (!m) return refuse(fault, "%d islands have come already", MEMBERS_MOST), NULL;
    int is_again =
        m->state != MEMBER_GONE && (m->said[hello->rank < m->ranks ? hello->rank : 0] || m->ranks != hello->ranks);
    if (is_again) *was = members_lose(m);
    if (m->state == MEMBER_GONE && !take_place(m, hello))
        return refuse(fault, "the server has no memory for one more island"), NULL;
    m->said[hello->rank] = 1;
    m->heard_ms = now_ms;
    m->has_moments = hello->updates > 0, m->wants_moments = hello->wants_moments, m->takes_moments = 0;
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
    m->squares = (Exact){{0}}, m->turn_squares = 0.0;
    memset(m->said, 1, (size_t)m->ranks);
    ms->has_begun = 1;
}

int members_end(Members *ms, Member *m, int rank, const End *end, int64_t elems, char fault[MEMBER_FAULT_BYTES]) {
    int64_t unit = ms->step_samples;
    if (m->state != MEMBER_TRAINS || m->said[rank] != 1)
        return refuse(fault, "sent an END that belongs to no lease"), -1;
    if (end->round != m->lease.round)
        return refuse(fault, "sent the END of round %lld, and its lease is of round %lld", (long long)end->round,
                      (long long)m->lease.round),
               -1;
    if (end->lease != m->lease.number)
        return refuse(fault, "sent the END of lease %lld, and it has lease %lld", (long long)end->lease,
                      (long long)m->lease.number),
               -1;
    if (end->samples > m->lease.range.samples || end->samples % unit || end->tokens != end->samples * ms->seq_len)
        return refuse(fault,
                      "sent an END of %lld samples and %lld tokens, which are no steps of %lld samples of its lease of %lld",
                      (long long)end->samples, (long long)end->tokens, (long long)unit,
                      (long long)m->lease.range.samples),
               -1;
    if (rank == 0) m->end = *end;
    m->said[rank] = 2;
    if (++m->ended < m->ranks) return 0;
    if (m->end.samples > 0 && m->elems != elems)
        return refuse(fault, "sent %lld of the %lld elements of its delta", (long long)m->elems, (long long)elems), -1;
    if (m->end.samples == 0) {
        m->state = MEMBER_WAITS;
        return 1;
    }
    m->has_moments = 1;
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

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Compares the norm `own` with the median of the others' norms [count], in any order; sorts them. */
static int judge(const Member *m, double own, double *norms, int count, char fault[MEMBER_FAULT_BYTES]) {
    qsort(norms, (size_t)count, sizeof *norms, by_size);
    double median = count ? (norms[(count - 1) / 2] + norms[count / 2]) / 2 : 0.0;
    if (median == 0.0 || own <= MEMBERS_FAR * median) return 1;
    return refuse(fault, "the delta of round %lld has the norm %.3g, over %.0f times the other islands' %.3g",
                  (long long)m->lease.round, own, MEMBERS_FAR, median);
}

static int refuse_infinite(const Member *m, char fault[MEMBER_FAULT_BYTES]) {
    return refuse(fault, "the delta of round %lld is not finite", (long long)m->lease.round);
}

static double *room_for_norms(const Members *ms) {
    return xmalloc(sizeof(double) * (size_t)(2 * ms->count), "the norms of the islands");
}

int members_judge(const Members *ms, const Member *m, char fault[MEMBER_FAULT_BYTES]) {
    if (!isfinite(m->norm)) return refuse_infinite(m, fault);
    double *norm = room_for_norms(ms);
    int     count = 0;
    for (int i = 0; i < ms->count; i++) {
        const Member *o = ms->member[i];
        if (o == m) continue;
        if (o->state == MEMBER_ENDED && isfinite(o->norm)) norm[count++] = o->norm;
        if (o->last_round >= 0 && o->last_round >= ms->round - 1) norm[count++] = o->last_norm;
    }
    int is_good = judge(m, m->norm, norm, count, fault);
    free(norm);
    return is_good;
}

int members_has_turn(const Member *m, int f) {
    return m->state >= MEMBER_TRAINS && arriving_is_whole(&m->turn[f % TURNS_AHEAD], m->ranks);
}

void members_forget_turns(Member *m) {
    for (int i = 0; i < TURNS_AHEAD; i++) arriving_forget(&m->turn[i]);
    arriving_forget(&m->rest);
}

int members_judge_turn(const Members *ms, const Member *m, int f, char fault[MEMBER_FAULT_BYTES]) {
    if (!isfinite(m->turn_norm)) return refuse_infinite(m, fault);
    double *norm = room_for_norms(ms);
    int     count = 0;
    for (int i = 0; i < ms->count; i++) {
        const Member *o = ms->member[i];
        if (o != m && members_has_turn(o, f) && isfinite(o->turn_norm))
            norm[count++] = o->turn_norm;
    }
    int is_good = judge(m, m->turn_norm, norm, count, fault);
    free(norm);
    return is_good;
}

void members_counted(Members *ms, Member *m) {
    m->last_norm = m->norm, m->last_round = ms->round;
    m->state = m->leaves ? MEMBER_GONE : MEMBER_WAITS;
    ms->arrivals++, ms->of_round++;
}

int members_round_is_full(const Members *ms) {
    int here = members_here(ms);
    return ms->of_round >= (here ? here : 1);
}

void members_next_round(Members *ms) { ms->round++, ms->of_round = 0; }

int64_t members_staleness(const Members *ms, const Member *m) {
    int here = members_here(ms);
    return (ms->arrivals - m->arrivals) / (here ? here : 1);
}
