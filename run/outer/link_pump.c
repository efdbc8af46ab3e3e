/* link_pump.c - see link_pump.h. */
#include "run/outer/link_pump.h"

static const double MOVE_MS = 100.0;

static void *pump(void *of) {
    LinkPump *p = (LinkPump *)of;
    thread_lock(&p->thread);
    while (!p->thread.stop) {
        if (!p->is_on) {
            thread_wait(&p->thread);
            continue;
        }
        thread_unlock(&p->thread);
        link_wait(p->link, link_has_x, MOVE_MS);
        int is_over = link_has_x(p->link) || p->link->is_broken;
        thread_lock(&p->thread);
        if (!is_over && !p->halts) continue;
        p->is_on = 0;
        thread_changed(&p->thread);
    }
    thread_unlock(&p->thread);
    return NULL;
}

void pump_create(LinkPump *p, Link *link) {
    p->link = link;
    thread_start(&p->thread, pump, p, "what travels between steps");
}
void pump_destroy(LinkPump *p) { thread_stop(&p->thread); }

void pump_begin(LinkPump *p) {
    thread_lock(&p->thread);
    p->is_on = 1, p->halts = 0;
    thread_changed(&p->thread);
    thread_unlock(&p->thread);
}

int pump_is_on(LinkPump *p) {
    thread_lock(&p->thread);
    int is_on = p->is_on;
    thread_unlock(&p->thread);
    return is_on;
}

void pump_wait(LinkPump *p, double ms) {
    thread_lock(&p->thread);
    if (p->is_on) thread_wait_for(&p->thread, ms);
    thread_unlock(&p->thread);
}

void pump_halt(LinkPump *p) {
    thread_lock(&p->thread);
    p->halts = 1;
    while (p->is_on) thread_wait(&p->thread);
    thread_unlock(&p->thread);
}
