/* memory_rescue.c - see memory_rescue.h.
 *
 * The ranks of a host divide the files in its folder. Rank 0 gathers the copies found, and chooses the newest step of
 * one session that has copies of all its ranks. Then all ranks hash the chosen copies that they hold. If one is
 * damaged, rank 0 chooses again. The ranks that hold the copies write their extents. Grid and number of ranks may have
 * changed since.
 */
#include "run/checkpoint/memory_rescue.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/terminal.h"
#include "core/error.h"
#include "run/checkpoint/checkpoint_refuse.h"
#include "run/checkpoint/memory_copy.h"

typedef struct {
    MemoryCopy copy;         /* owned */
    char       name[40];
    int        is_checked;   /* the data match their hashes */
} Found;

/* A copy that the rank `holder` has, at `index` of its list found. */
typedef struct { int64_t step; uint64_t session; int32_t rank, ranks, holder, index; } Offer;

typedef struct {
    const CheckpointState *state; /* borrowed */
    Comm   *comm;
    Path    folder;
    char    run_id[40];
    int64_t newest;
    Found  *found;           /* owned */
    int     count;
    Offer  *offer;           /* owned, rank 0: offers of all ranks, the newest first */
    int     offers;
    char   *said;            /* owned: lines about damaged copies on this rank; NULL: none */
    Offer  *chosen;          /* owned [ranks]: one for each rank of the lost job; equal on all ranks */
    int     ranks;
} Rescue;

static Path path_in(const Rescue *r, const char *name) { return path_of("%s/%s", r->folder.text, name); }

static void note(Rescue *r, const Path *path, const char *fault) {
    char *more = NULL;
    if (asprintf(&more, "%sthe copy in memory %s is passed over: %s\n", r->said ? r->said : "", path->text, fault) < 0)
        fail(EXIT_MEMORY, "no memory for a warning");
    free(r->said);
    r->said = more;
}

/* Collective. Rank 0 prints the lines of all ranks as warnings. */
static void warn_of_all(Rescue *r) {
    size_t *bytes = NULL, count = 0;
    char   *all = comm_gather(r->comm, r->said, r->said ? strlen(r->said) : 0, 0, &bytes);
    for (int k = 0; bytes && k < comm_size(r->comm); k++) count += bytes[k];
    for (char *at = all, *end; all && at < all + count; at = end + 1) {
        end = (char *)memchr(at, '\n', (size_t)(all + count - at));
        warn("%.*s", (int)(end - at), at);
    }
    free(all);
    free(bytes);
    free(r->said);
    r->said = NULL;
}

/* --- what there is ------------------------------------------------------------------------------------------------ */

static void look_at(Rescue *r, const char *name) {
    char       fault[MANIFEST_FAULT_BYTES];
    MemoryCopy copy;
    Path       path = path_in(r, name);
    if (!memory_read(path.text, &copy, fault)) {
        if (fault[0]) note(r, &path, fault);
        return;
    }
    if (strcmp(copy.header->run_id, r->run_id) != 0 || copy.header->step <= r->newest) {
        memory_free(&copy);
        return;
    }
    r->found = xrealloc(r->found, sizeof *r->found * (size_t)(r->count + 1), "a list of copies in memory");
    r->found[r->count] = (Found){.copy = copy};
    snprintf(r->found[r->count++].name, sizeof r->found->name, "%.39s", name);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int is_copy(const struct dirent *entry) { return memory_is_name(entry->d_name); }

/* Looks at the copies in the folder of this host. Its ranks divide the files. */
static void look(Rescue *r) {
    MemoryHost      own = memory_host(r->comm, comm_rank(r->comm));
    struct dirent **entry = NULL;
    int             count = scandir(r->folder.text, &entry, is_copy, by_name);
    for (int i = 0; i < count; i++) {
        if (i % own.ranks == own.place) look_at(r, entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    warn_of_all(r);
}

static void drop(Rescue *r, int i) {
    memory_free(&r->found[i].copy);
    r->found[i] = r->found[--r->count];
}

/* --- which step ---------------------------------------------------------------------------------------------------- */

/* Orders offers: the newest step first, then by session, then by rank. */
static int by_age(const void *a, const void *b) {
    const Offer *x = (const Offer *)a, *y = (const Offer *)b;
    if (x->step != y->step) return x->step > y->step ? -1 : 1;
    if (x->session != y->session) return x->session < y->session ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static void gather_offers(Rescue *r) {
    size_t *bytes = NULL, all = 0;
    Offer  *mine = xcalloc((size_t)r->count + 1, sizeof *mine, "a list of copies in memory");
    for (int i = 0; i < r->count; i++) {
        const MemoryHeader *h = r->found[i].copy.header;
        mine[i] = (Offer){h->step, h->session, h->rank, h->ranks, comm_rank(r->comm), i};
    }
    free(r->offer);
    r->offer = (Offer *)(void *)comm_gather(r->comm, mine, sizeof *mine * (size_t)r->count, 0, &bytes);
    free(mine);
    if (comm_rank(r->comm) > 0) return;
    for (int k = 0; k < comm_size(r->comm); k++) all += bytes[k];
    free(bytes);
    r->offers = (int)(all / sizeof *r->offer);
    if (r->offers > 1) qsort(r->offer, (size_t)r->offers, sizeof *r->offer, by_age);
}

/* Collects the offers from index `from` on that have one step and session: one for each rank, into chosen. *next is the
 * index after them. Returns the number of ranks. */
static int take_group(const Rescue *r, int from, int *next, Offer *chosen) {
    const Offer *first = &r->offer[from];
    int          ranks = 0;
    for (*next = from; *next < r->offers; ++*next) {
        const Offer *o = &r->offer[*next];
        if (o->step != first->step || o->session != first->session || o->ranks != first->ranks) break;
        if (ranks > 0 && chosen[ranks - 1].rank == o->rank) continue; /* a second copy, from the neighbour */
        chosen[ranks++] = *o;
    }
    return ranks;
}

/* Collective. Fills in chosen with the newest step that has copies of all its ranks. Sets ranks to 0 if there is
 * none. */
static void choose(Rescue *r) {
    int64_t ranks = 0;
    gather_offers(r);
    if (comm_rank(r->comm) == 0) {
        r->chosen = xrealloc(r->chosen, sizeof *r->chosen * (size_t)(r->offers + 1), "a list of copies in memory");
        for (int at = 0, next; at < r->offers && ranks == 0; at = next) {
            ranks = take_group(r, at, &next, r->chosen);
            if (ranks < r->chosen[0].ranks) ranks = 0;
        }
    }
    comm_broadcast(r->comm, &ranks, sizeof ranks, 0);
    r->ranks = (int)ranks;
    if (comm_rank(r->comm) > 0) r->chosen = xrealloc(r->chosen, sizeof *r->chosen * (size_t)(ranks + 1), "a list of copies in memory");
    comm_broadcast(r->comm, r->chosen, sizeof *r->chosen * (size_t)ranks, 0);
}

/* Collective. Hashes the data of the chosen copies, and drops damaged ones. Returns the number of damaged copies. */
static int64_t check(Rescue *r) {
    int64_t damaged = 0;
    char    fault[MANIFEST_FAULT_BYTES];
    for (int k = 0; k < r->ranks; k++) {
        if (r->chosen[k].holder != comm_rank(r->comm)) continue;
        Found *f = &r->found[r->chosen[k].index];
        Path   path = path_in(r, f->name);
        watchdog_tick(r->state->watchdog, "checking copies in memory");
        if (!f->is_checked && !memory_each_run(path.text, &f->copy, NULL, NULL, fault)) {
            note(r, &path, fault);
            damaged++, f->is_checked = -1;
        } else {
            f->is_checked = 1;
        }
    }
    for (int i = r->count - 1; i >= 0; i--)
        if (r->found[i].is_checked < 0) drop(r, i);
    warn_of_all(r);
    comm_all_reduce_i64(r->comm, &damaged, 1, COMM_SUM);
    return damaged;
}

/* --- its checkpoint ------------------------------------------------------------------------------------------------ */

/* Reads the head of the copy of rank 0 from its holder, on all ranks. *m owns everything it needs. */
static void read_head(Rescue *r, Manifest *m) {
    const Offer *o = &r->chosen[0];
    const Found *f = o->holder == comm_rank(r->comm) ? &r->found[o->index] : NULL;
    char         fault[MANIFEST_FAULT_BYTES];
    int64_t      bytes = f ? (int64_t)f->copy.header->head_bytes : 0;
    comm_broadcast(r->comm, &bytes, sizeof bytes, o->holder);
    char *text = xmalloc((size_t)bytes + 1, "the head of a copy in memory");
    if (f) memcpy(text, f->copy.head, (size_t)bytes);
    comm_broadcast(r->comm, text, (size_t)bytes, o->holder);
    if (manifest_parse(text, (size_t)bytes, m, fault) != MANIFEST_GOOD)
        fail(EXIT_DATA, "the copies in memory of step %" PRId64 ": %s; checkpoint.memory_every=0 leaves them aside", o->step, fault);
    free(text);
}

static void put(void *save, WrittenExtent run, const void *bytes) { save_put((Save *)save, run, bytes); }

static void write_runs(Rescue *r, Save *s) {
    char fault[MANIFEST_FAULT_BYTES];
    save_open(s);
    for (int k = 0; k < r->ranks; k++) {
        if (r->chosen[k].holder != comm_rank(r->comm)) continue;
        const Found *f = &r->found[r->chosen[k].index];
        watchdog_tick(r->state->watchdog, "writing copies in memory to the disk");
        if (!memory_each_run(path_in(r, f->name).text, &f->copy, put, s, fault) && !s->fault[0])
            manifest_fault(s->fault, "%s: %.800s", f->name, fault);
    }
    save_close(s);
}

/* Ends the job if any rank has a fault. */
static void expect_written(Rescue *r, Save *s) {
    if (!any_fault(r->comm, s->fault)) return;
    if (comm_rank(r->comm) == 0) save_drop(s);
    fail(EXIT_IO,
         "the copies in memory of step %" PRId64 " do not become a checkpoint: %s; mend that and start again: they stay; "
         "checkpoint.memory_every=0 leaves them aside",
         s->step, s->fault);
}

static void write_checkpoint(Rescue *r, const Manifest *m, StepFolder *at) {
    size_t *bytes = NULL, all_bytes = 0;
    Save    s = save_prepare(r->state, m->step, NULL, NULL);
    s.rescued = m;
    s.position = (Position){m->step, m->tokens, m->samples};
    if (comm_rank(r->comm) == 0) save_make_folder(&s);
    expect_written(r, &s);
    write_runs(r, &s);
    expect_written(r, &s);
    char *all = comm_gather(r->comm, s.written, sizeof *s.written * s.written_count, 0, &bytes);
    if (comm_rank(r->comm) == 0) {
        for (int k = 0; k < comm_size(r->comm); k++) all_bytes += bytes[k];
        save_commit(&s, (WrittenExtent *)(void *)all, all_bytes / sizeof *s.written);
    }
    expect_written(r, &s);
    at->step = m->step;
    folder_name(at->name, m->step);
    free(all);
    free(bytes);
    save_release(&s);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

static int has_run_id(Rescue *r) {
    int64_t there = comm_rank(r->comm) == 0 && memory_read_run_id(r->state->config->run.dir, r->run_id);
    comm_broadcast(r->comm, &there, sizeof there, 0);
    comm_broadcast(r->comm, r->run_id, sizeof r->run_id, 0);
    return (int)there;
}

static void say_what_lacks(const Rescue *r) {
    if (comm_rank(r->comm) > 0 || r->offers == 0) return;
    int next, ranks = take_group(r, 0, &next, r->chosen);
    warn("the copies in memory of step %" PRId64 " are of no use: %d of %d ranks' are there", r->offer[0].step, ranks, r->offer[0].ranks);
}

int memory_rescue(const CheckpointState *state, int64_t newest, StepFolder *at) {
    Rescue   r = {.state = state, .comm = state->comm, .newest = newest};
    Manifest m;
    if (state->config->checkpoint.memory_every == 0 || !has_run_id(&r)) return 0;
    r.folder = memory_folder(state);
    look(&r);
    do choose(&r);
    while (r.ranks > 0 && check(&r) > 0);
    if (r.ranks > 0) {
        read_head(&r, &m);
        refuse_other_settings(state->config, state->train, path_of("the copy in memory of step %" PRId64, m.step).text, &m);
        write_checkpoint(&r, &m, at);
        if (comm_rank(r.comm) == 0)
            say(stdout, 0, "step %" PRId64 " is taken from the copies in memory of %d rank%s\n", m.step, r.ranks, r.ranks > 1 ? "s" : "");
        manifest_free(&m);
    } else {
        say_what_lacks(&r);
    }
    while (r.count > 0) drop(&r, 0);
    free(r.found);
    free(r.offer);
    free(r.chosen);
    return r.ranks > 0;
}
