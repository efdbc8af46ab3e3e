/* thin_link.c - a thin link between two network namespaces: two TAP devices with this process between them. It replaces
 * `tc netem`, which many kernels lack. Packets leave at a fixed rate, one after the other, and arrive after a delay.
 * Packets that find a full queue are lost, as in a router. The link shares the processors with the programs under test.
 * So it is in C, and while packets are in flight it wakes once a millisecond, not for each packet. This adds up to a
 * millisecond to the delay.
 *
 *   thin_link NAMESPACE_A NAMESPACE_B DEVICE MBIT_PER_S DELAY_MS     until it is killed; needs root
 *
 * The queue holds the packets of a fifth of a second. Prints "ready" when both devices exist; the caller sets their
 * addresses. On SIGUSR1 it prints the bytes that each device has sent.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { FRAME = 1 << 16 };
static const double QUEUE_S = 0.2;
static const long   TICK_NS = 1000000;

typedef struct Packet Packet;
struct Packet {
    Packet *next;
    double  arrives;
    size_t  bytes;
    char    data[];
};

/* One direction of the link: packets from device `source` to device `sink`. */
typedef struct {
    int       source, sink;
    /* free_at: time at which the link has sent the newest packet and can send another */
    double    bytes_per_s, delay_s, free_at;
    Packet   *first, *last;                  /* packets in flight, in order of arrival */
    long long bytes;
} Direction;

static volatile sig_atomic_t is_asked;
static void ask(int signal) { (void)signal, is_asked = 1; }

static void stop(const char *what) {
    fprintf(stderr, "thin_link: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void enter(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) stop(path);
    close(fd);
}

/* Makes a TAP device in a namespace. Returns its file descriptor. */
static int tap(const char *namespace, const char *device) {
    char         path[256];
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    enter(path);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", device);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) stop("/dev/net/tun");
    return fd;
}

static void take(Direction *d, double at) {
    static char frame[FRAME];
    ssize_t     bytes;
    while ((bytes = read(d->source, frame, sizeof frame)) > 0) {
        double start = d->free_at > at ? d->free_at : at;
        if (start - at > QUEUE_S) continue;
        Packet *p = malloc(sizeof *p + (size_t)bytes);
        if (!p) stop("a packet");
        d->free_at = start + (double)bytes / d->bytes_per_s;
        *p = (Packet){.arrives = d->free_at + d->delay_s, .bytes = (size_t)bytes};
        memcpy(p->data, frame, (size_t)bytes);
        if (d->last) d->last->next = p;
        else d->first = p;
        d->last = p;
    }
    if (bytes < 0 && errno != EAGAIN && errno != EIO && errno != EINTR) stop("read");
}

static void deliver(Direction *d, double at) {
    while (d->first && d->first->arrives <= at) {
        Packet *p = d->first;
        if (write(d->sink, p->data, p->bytes) >= 0) d->bytes += (long long)p->bytes;
        /* a packet is lost if its device is down or full */
        else if (errno != EIO && errno != EAGAIN && errno != ENOBUFS) stop("write");
        d->first = p->next;
        if (!d->first) d->last = NULL;
        free(p);
    }
}

/* Waits until a packet arrives, or until a signal asks for the numbers of bytes. With packets in flight it waits at
 * most TICK_NS. */
static void await(const Direction both[2]) {
    struct pollfd fds[2] = {{both[0].source, POLLIN, 0}, {both[1].source, POLLIN, 0}};
    if (both[0].first || both[1].first) nanosleep(&(struct timespec){0, TICK_NS}, NULL);
    else if (poll(fds, 2, 100) < 0 && errno != EINTR) stop("poll");
}

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "thin_link NAMESPACE_A NAMESPACE_B DEVICE MBIT_PER_S DELAY_MS\n"), 64;
    int    home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    double rate = atof(argv[4]) * 1e6 / 8, delay = atof(argv[5]) / 1e3;
    int    a = tap(argv[1], argv[3]), b = tap(argv[2], argv[3]);
    /* returns to the namespace in which the program was started, so that a test may kill all processes in the two
     * others without ending the link */
    if (home < 0 || setns(home, CLONE_NEWNET)) stop("the namespace before");
    Direction both[2] = {{.source = a, .sink = b, .bytes_per_s = rate, .delay_s = delay},
                         {.source = b, .sink = a, .bytes_per_s = rate, .delay_s = delay}};
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = ask}, NULL);
    puts("ready");
    fflush(stdout);
    for (;;) {
        await(both);
        for (int i = 0; i < 2; i++) take(&both[i], now()), deliver(&both[i], now());
        if (is_asked) is_asked = 0, printf("%lld %lld\n", both[0].bytes, both[1].bytes), fflush(stdout);
    }
}
