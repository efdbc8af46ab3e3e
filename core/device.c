/* device.c - implements device.h on the CPU: device memory is host memory, operations run at once and in order, with
 * OpenMP threads. */
#include "core/device.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/simd.h"
#include "core/thread.h"

static char processor[128]; /* name of the processor, set by device_open */

/* Makes results below 2^-126 (subnormals) zero from now on, as an accelerator does. An operation with a subnormal
 * result takes a processor some hundred times as long as an ordinary one. Models make such results by the million
 * (GELU's derivative at inputs below -10, squares of small gradients). Subnormal operands, as from a file, keep their
 * value. Threads that start later inherit the mode. */
static void flush_subnormals(void) {
#if defined(__x86_64__)
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
#endif
}

void device_open(int local_rank, int threads) {
    (void)local_rank; /* the number of this rank on its host is not used, because `threads` is already this rank's share
                       * of the processors */
    FILE *f = fopen("/proc/cpuinfo", "r");
    char  line[256];
    int   is_found = 0;
    strcpy(processor, "CPU");
    while (f && !is_found && fgets(line, sizeof line, f))
        is_found = sscanf(line, "model name%*[ \t]: %120[^\n]", processor) == 1;
    if (f) fclose(f);
    flush_subnormals();
    omp_set_dynamic(0);
    thread_share(threads);
    thread_start_team();
}

int         device_count(void) { return 1; }
int         device_is_host(void) { return 1; }
const char *device_backend(void) { return "cpu"; }
const char *device_name(void) { return processor; }
const char *device_id(void) { return ""; }
const char *device_isa(void) { return simd_name(); }
int         device_threads(void) { return omp_get_max_threads(); }
int         device_has_bf16(void) { return simd_has_bf16(); }
int         device_has_quick_bf16(void) { return simd_has_quick_bf16(); }

DeviceMemory device_memory(void) {
    return (DeviceMemory){.total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE),
                          .overhead = 64u << 20};
}

size_t device_memory_peak(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss * 1024;
}

/* The operating system maps pages that are zero already, so nothing is written. A page takes no memory before its first
 * use. */
void *device_alloc(size_t bytes, const char *what) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail(EXIT_MEMORY,
             "no memory for %s: %.1f MiB wanted; free memory on this host, raise the job's limit (sbatch --mem=, "
             "ulimit -v), or lower batch.micro_batch", what, (double)bytes / 1048576.0);
    madvise(memory, bytes, MADV_HUGEPAGE); /* requests huge pages for fewer TLB misses; only a hint */
    return memory;
}

void device_free(void *memory, size_t bytes) { munmap(memory, bytes); }

void *device_alloc_shared(size_t bytes) { return device_alloc_host(bytes, "a test's tensor"); }
void  device_free_shared(void *memory) { free(memory); }

void *device_alloc_host(size_t bytes, const char *what) { return memset(xaligned(bytes, what), 0, bytes); }
void device_free_host(void *memory) { free(memory); }

Stream stream_create(size_t scratch_bytes) {
    return (Stream){arena_create("scratch", scratch_bytes), NULL, MATH_STRICT, 0, NULL};
}
void   stream_destroy(Stream *s) { arena_destroy(&s->scratch); }

void device_zero(Stream *s, Tensor t) {
    if (stream_note(s, "device_zero", tensor_elems(t), 0, 0, 0, 0.0, (double)tensor_bytes(t))) return;
    size_t      bytes = tensor_bytes(t);
    const size_t block = 1 << 20;
    #pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += block)
        memset((char *)t.data + at, 0, bytes - at < block ? bytes - at : block);
}

/* Copies with several threads, because one thread does not reach the memory's whole bandwidth. */
static void copy(void *to, const void *from, size_t bytes) {
    const size_t block = 1 << 20;
    #pragma omp parallel for schedule(static) if (bytes > 4 * block)
    for (size_t at = 0; at < bytes; at += block)
        memcpy((char *)to + at, (const char *)from + at, bytes - at < block ? bytes - at : block);
}

void device_to_host(Stream *s, void *host, Tensor t) { (void)s, copy(host, t.data, tensor_bytes(t)); }
void device_from_host(Stream *s, Tensor t, const void *host) { (void)s, copy(t.data, host, tensor_bytes(t)); }
void device_sync(Stream *s) { (void)s; }

/* CPU events do nothing: every operation has finished when its call returns, so an event is always past. */
Event event_create(void) { return (Event){NULL}; }
void  event_destroy(Event *e) { (void)e; }
void  event_record(Event e, Stream *s) { (void)e, (void)s; }
int   event_is_past(Event e) { return (void)e, 1; }
void  event_wait(Event e) { (void)e; }
void  device_from_host_queued(Stream *s, Tensor t, const void *host) { device_from_host(s, t, host); }
void  device_to_host_queued(Stream *s, void *host, Tensor t) { device_to_host(s, host, t); }

int   graph_begin(Stream *s) { return (void)s, 0; }
Graph graph_end(Stream *s) { return (void)s, (Graph){NULL}; }
void  graph_launch(Graph g, Stream *s) { (void)g, (void)s; }
void  graph_destroy(Graph *g) { (void)g; }

void device_range_begin(const char *name) { (void)name; }
void device_range_end(void) {}

int  device_pin_host(void *memory, size_t bytes) { return (void)memory, (void)bytes, 0; }
void device_unpin_host(void *memory) { (void)memory; }
void device_leave_multiprocessors(int count) { (void)count; }

void device_describe(char text[256], char fault[256]) { text[0] = fault[0] = 0; }
