/* link_pump.h - a thread that keeps a Link moving while its rank trains (outer.stream). While the pump is on, only its
 * thread uses the Link. The thread calls no MPI. For island.c and island_turns.c.
 */
#ifndef TRAIN_GPT_RUN_OUTER_LINK_PUMP_H
#define TRAIN_GPT_RUN_OUTER_LINK_PUMP_H

#include "core/thread.h"
#include "run/outer/island_link.h"

typedef struct {
    Thread thread;
    Link  *link;    /* borrowed */
    int    wake;    /* an eventfd that ends the thread's wait; owned */
    int    is_on, halts; /* the thread uses the link; another thread wants it back. Guarded by the thread's lock */
    int    has_x;   /* link_has_x when the pump last looked. Guarded by the thread's lock */
} LinkPump;

/* Starts the thread. p must not move in memory before pump_destroy. */
void pump_create(LinkPump *p, Link *link);
void pump_destroy(LinkPump *p);

void pump_begin(LinkPump *p);  /* runs until link_is_idle or the connection breaks */
int  pump_is_on(LinkPump *p);
int  pump_has_x(LinkPump *p);
void pump_halt(LinkPump *p);   /* waits until the thread has left the link, whatever is under way */

#endif
