/* ledger.c - notes, adds up and prints the costs of a dry run (ledger.h). */
#include "core/ledger.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

void ledger_note(Ledger *l, LedgerEntry e) {
    if (l->times < 0 || (e.kind != LEDGER_OP && !l->in_order)) return;
    int64_t count = (e.count ? e.count : 1) * (l->times ? l->times : 1);
    for (int i = l->entries - 1; i >= 0 && !l->in_order; i--) {
        LedgerEntry *same = &l->entry[i];
        if (strcmp(same->group, e.group) != 0 || same->flops != e.flops || same->bytes != e.bytes ||
            memcmp(same->dim, e.dim, sizeof e.dim) != 0 || strcmp(same->op, e.op) != 0) continue;
        same->count += count;
        return;
    }
    l->entry = xgrow(l->entry, l->entries, sizeof e, "a plan of operations");
    e.count = count;
    l->entry[l->entries++] = e;
}

void ledger_mark(Ledger *l, const char *what, int64_t part) {
    if (l) ledger_note(l, (LedgerEntry){.kind = LEDGER_MARK, .op = what, .dim = {part}});
}

void ledger_free(Ledger *l) {
    free(l->entry);
    memset(l, 0, sizeof *l);
}

double ledger_flops(const Ledger *l) {
    double sum = 0.0;
    for (int i = 0; i < l->entries; i++) sum += l->entry[i].flops * (double)l->entry[i].count;
    return sum;
}

static double bytes_where(const Ledger *l, int is_sent, const char *group) {
    double sum = 0.0;
    for (int i = 0; i < l->entries; i++) {
        const LedgerEntry *e = &l->entry[i];
        if ((*e->group != 0) == is_sent && (!group || strcmp(e->group, group) == 0)) sum += e->bytes * (double)e->count;
    }
    return sum;
}
double ledger_bytes(const Ledger *l) { return bytes_where(l, 0, NULL); }
double ledger_sent(const Ledger *l, const char *group) { return bytes_where(l, 1, group); }

static int by_cost(const void *a, const void *b) {
    const LedgerEntry *x = (const LedgerEntry *)a, *y = (const LedgerEntry *)b;
    double             flops = y->flops * (double)y->count - x->flops * (double)x->count,
           bytes = y->bytes * (double)y->count - x->bytes * (double)x->count;
    return flops > 0 ? 1 : flops < 0 ? -1 : bytes > 0 ? 1 : bytes < 0 ? -1 : 0;
}

void ledger_print(FILE *out, const Ledger *l) {
    LedgerEntry *sorted = xmalloc(sizeof *sorted * (size_t)(l->entries + 1), "a plan of operations");
    for (int i = 0; i < l->entries; i++) sorted[i] = l->entry[i];
    qsort(sorted, (size_t)l->entries, sizeof *sorted, by_cost);
    fprintf(out, "  %-28s %-30s %10s %12s %12s\n", "operation", "sizes", "calls", "GFLOP", "MiB");
    for (int i = 0; i < l->entries; i++) {
        const LedgerEntry *e = &sorted[i];
        char sizes[4 * 22] = "";
        int  used = 0;
        for (int d = 0; d < LEDGER_DIMS && e->dim[d]; d++)
            used += snprintf(sizes + used, sizeof sizes - (size_t)used, "%s%lld", d ? " x " : "", (long long)e->dim[d]);
        if (*e->group) snprintf(sizes + used, sizeof sizes - (size_t)used, " sent in %s", e->group);
        fprintf(out, "  %-28s %-30s %10lld %12.3f %12.2f\n", e->op, sizes, (long long)e->count,
                e->flops * (double)e->count * 1e-9, e->bytes * (double)e->count / 1048576.0);
    }
    free(sorted);
}
