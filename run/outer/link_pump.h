/* link_pump.h - a thread that keeps a Link moving while its rank trains (outer.stream). While the pump is on the Link
 * is the thread's, and nobody else touches it; the thread calls no MPI. For island.c and island_turns.c.
 */
#ifndef TRAIN_GPT_RUN_OUTER_LINK_PUMP_H
#define TRAIN_GPT_RUN_OUTER_LINK_PUMP_H

#include "core/thread.h"
#include "run/outer/island_link.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Thread thread;
    Link  *link;    /* borrowed */
    int    is_on;   /* guarded by the thread's lock */
    int    halts;   /* the same: the link is wanted back */
} LinkPump;

/* The pump stays where it is until it is destroyed. */
void pump_create(LinkPump *p, Link *link);
void pump_destroy(LinkPump *p);

void pump_begin(LinkPump *p);             /* until link_has_x, or the connection breaks */
int  pump_is_on(LinkPump *p);
void pump_wait(LinkPump *p, double ms);   /* until it is off, for at most ms */
void pump_halt(LinkPump *p);              /* off, wherever it stands */

#ifdef __cplusplus
}
#endif
#endif
