/* ledger.h - the costs of a dry run: operations that a stream was given but did not run, and bytes that ranks would
 * have sent.
 *
 * A stream with a ledger is dry (core/device.h). An op's contract notes its FLOPs and the bytes it reads and writes.
 * The op's own host code still runs and takes its scratch from a dry arena; kernels, loops and library calls are left
 * out. An op made of other ops notes nothing: those do.
 *
 * A ledger adds up equal entries. One `in_order` keeps each by itself, and with them where the host waits for a
 * collective and where parts of a step begin: a step's history, which a simulator runs on clocks.
 */
#ifndef TRAIN_GPT_CORE_LEDGER_H
#define TRAIN_GPT_CORE_LEDGER_H

#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LEDGER_DIMS = 4, LEDGER_GROUP_CHARS = 16 };

typedef enum {
    LEDGER_OP,     /* an operation, or a collective that starts */
    LEDGER_WAIT,   /* for the collective of `group` that started dim[0] collectives of it before the last one */
    LEDGER_MARK    /* `op` begins here: "forward" or "backward" of part dim[0], "finish", "update" */
} LedgerKind;

typedef struct {
    LedgerKind  kind;
    const char *op;                /* "layernorm_forward", "matmul", "all-gather"; a constant */
    char        group[LEDGER_GROUP_CHARS]; /* of ranks that exchange bytes; "": computed here */
    int64_t     dim[LEDGER_DIMS];  /* sizes that differ between calls; unused ones are 0   */
    double      flops, bytes;      /* of one call; bytes read and written, or sent            */
    int64_t     count;             /* calls                                                   */
} LedgerEntry;

typedef struct Ledger {
    LedgerEntry *entry;            /* owned */
    int          entries, room;
    int64_t      times;            /* calls that each note stands for; 0 counts as 1, below 0 nothing is noted */
    int          in_order;         /* every note is an entry of its own; else waits and marks are left out */
    int          is_elsewhere;     /* a plan for another machine: no library here is asked for its scratch */
} Ledger;

void   ledger_note(Ledger *l, LedgerEntry e);     /* e.count calls, 0 counts as 1 */
void   ledger_mark(Ledger *l, const char *what, int64_t part); /* l may be NULL: nothing */
void   ledger_free(Ledger *l);
double ledger_flops(const Ledger *l);
double ledger_bytes(const Ledger *l);             /* read and written here            */
double ledger_sent(const Ledger *l, const char *group); /* by a rank, the mean over the ranks; NULL: in all groups */
/* A line per entry, most FLOPs first, then most bytes. */
void   ledger_print(FILE *out, const Ledger *l);

#ifdef __cplusplus
}
#endif
#endif
