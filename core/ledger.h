/* ledger.h - the costs of a dry run: operations that a stream was given but did not run, and bytes that ranks would
 * have sent.
 *
 * A stream with a ledger is dry (core/device.h). An op's contract notes its FLOPs and the bytes it reads and writes.
 * The op's own host code still runs and takes its scratch from a dry arena; kernels, loops and library calls are left
 * out. An op made of other ops notes nothing, because those ops do.
 *
 * A ledger adds up equal entries. With `in_order` it keeps each entry separately, and also where the host waits for a
 * collective and where phases of a step begin. These entries are the history of a step, which the simulator
 * (docs/simulator.md) replays on simulated clocks.
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
    LEDGER_OP,     /* an operation, or the start of a collective that sends bytes */
    LEDGER_WAIT,   /* the host waits for a collective of `group`: the one started dim[0] collectives before the group's
                    * last one */
    LEDGER_MARK    /* a phase of the step begins, named by `op`: "forward", "backward", "finish" or "update". dim[0] is
                    * the part of the model that a forward or backward computes, because a pipeline stage may hold
                    * several parts */
} LedgerKind;

typedef struct {
    LedgerKind  kind;
    const char *op;                /* name of the operation or collective, such as "matmul" or "all-gather"; a string
                                    * constant */
    char        group[LEDGER_GROUP_CHARS]; /* name of the group of ranks that exchange the bytes; "" for an operation on
                                            * this rank */
    int64_t     dim[LEDGER_DIMS];  /* sizes of the operation, such as rows and columns; unused ones are 0 */
    double      flops, bytes;      /* FLOPs of one call; bytes that one call reads and writes, or that a collective
                                    * sends */
    int64_t     count;             /* number of calls */
} LedgerEntry;

typedef struct Ledger {
    LedgerEntry *entry;            /* [entries] operations, waits and phases noted so far; owned */
    int          entries;
    int64_t      times;            /* number of calls that each new note counts for; 0 means 1, and below 0 nothing is
                                    * noted */
    /* 1: each note is an entry of its own; 0: equal notes are added up, and neither waits nor phases are noted */
    int          in_order;
    int          is_elsewhere;     /* 1: the plan is for another machine, so the libraries of this machine are not asked
                                    * how much scratch they need */
} Ledger;

void   ledger_note(Ledger *l, LedgerEntry e);     /* adds e.count calls of e.op to the ledger; a count of 0 means 1 */
void   ledger_mark(Ledger *l, const char *what, int64_t part); /* notes that phase `what` of the step begins, such as
                                                                * "forward" of part number `part` of a pipeline stage; l
                                                                * may be NULL */
void   ledger_free(Ledger *l);
double ledger_flops(const Ledger *l);
double ledger_bytes(const Ledger *l);             /* returns the bytes read and written by operations */
double ledger_sent(const Ledger *l, const char *group); /* returns the bytes that one rank sends in this group, as the
                                                         * mean over the ranks; NULL adds up all groups */
/* Prints a line per entry, sorted by most FLOPs, then most bytes. */
void   ledger_print(FILE *out, const Ledger *l);

#ifdef __cplusplus
}
#endif
#endif
