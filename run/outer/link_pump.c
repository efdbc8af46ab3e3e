/* link_pump.c - see link_pump.h. */
#include "run/outer/link_pump.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "core/error.h"

static const double LOOK_MS = 100.0; /* longest wait of the thread, so that it sends its PINGs */

/* Moves the link once, then waits for something to do. It holds the lock, but not while it reads, writes or waits. */
static void move(LinkPump *p) {
    thread_unlock(&p->thread);
    link_keep(p->link);
    thread_lock(&p->thread);
    p->has_x = link_has_x(p->link);
    if (p->halts || link_is_idle(p->link) || p->link->is_broken) {
        p->is_on = 0;
        thread_changed(&p->thread);
        return;
    }
    thread_unlock(&p->thread);
    channel_wait(&p->link->server, 1, p->wake, LOOK_MS);
    thread_lock(&p->thread);
}

static void *pump(void *of) {
    LinkPump *p = (LinkPump *)of;
    thread_lock(&p->thread);
    while (!p->thread.stop) {
        if (p->is_on) move(p);
        else thread_wait(&p->thread);
    }
    thread_unlock(&p->thread);
    return NULL;
}

void pump_create(LinkPump *p, Link *link) {
    p->link = link;
    p->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (p->wake < 0) fail(EXIT_MEMORY, "no eventfd for what travels between steps");
    thread_start(&p->thread, pump, p, "what travels between steps");
}

void pump_destroy(LinkPump *p) {
    pump_halt(p);
    thread_stop(&p->thread);
    close(p->wake);
}

void pump_begin(LinkPump *p) {
    thread_lock(&p->thread);
    p->is_on = 1, p->halts = 0;
    p->has_x = link_has_x(p->link);
    thread_changed(&p->thread);
    thread_unlock(&p->thread);
}

static int read_flag(LinkPump *p, const int *flag) {
    thread_lock(&p->thread);
    int value = *flag;
    thread_unlock(&p->thread);
    return value;
}
int pump_is_on(LinkPump *p) { return read_flag(p, &p->is_on); }
int pump_has_x(LinkPump *p) { return read_flag(p, &p->has_x); }

void pump_halt(LinkPump *p) {
    eventfd_t count;
    thread_lock(&p->thread);
    p->halts = 1;
    eventfd_write(p->wake, 1);
    while (p->is_on) thread_wait(&p->thread);
    eventfd_read(p->wake, &count);
    thread_unlock(&p->thread);
}
