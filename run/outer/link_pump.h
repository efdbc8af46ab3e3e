/* link_pump.h - a thread that keeps a Link moving while its rank trains (outer.stream). While the pump is on the Link
 * is the thread's, and nobody else touches it; the thread calls no MPI. For island.c and island_turns.c.
 */
#ifndef TRAIN_GPT_RUN_OUTER_LINK_PUMP_H
#define TRAIN_GPT_RUN_OUTER_LINK_PUMP_H

#include "core/thread.h"
#include "run/outer/island_link.h"

typedef struct {
    Thread thread;
    Link  *link;    /* borrowed */
    int    wake;    /* owned: an eventfd that ends its wait */
    int    is_on, halts; /* guarded by the thread's lock; the link is wanted back */
    int    has_x;   /* the same: link_has_x, as the pump saw it last */
} LinkPump;

/* The pump stays where it is until it is destroyed. */
void pump_create(LinkPump *p, Link *link);
void pump_destroy(LinkPump *p);

void pump_begin(LinkPump *p);  /* until link_is_idle, or the connection breaks */
int  pump_is_on(LinkPump *p);
int  pump_has_x(LinkPump *p);
void pump_halt(LinkPump *p);   /* off, wherever it stands */

#endif
