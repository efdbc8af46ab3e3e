/* device.h - the seam to the hardware: device.c is the CPU, device.cu an NVIDIA GPU; the build links one of them.
 *
 * A Stream is an ordered queue of operations; on the CPU each has finished when its call returns. Only this seam
 * knows where memory lives. The rest of the program uses plain pointers for host memory alone.
 */
#ifndef TRAIN_GPT_CORE_DEVICE_H
#define TRAIN_GPT_CORE_DEVICE_H

#include <stddef.h>

#include "core/arena.h"
#include "core/ledger.h"
#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The arithmetic of fp32 matrix products: strict, or operands rounded to TF32 first (NVIDIA, 10 bits of fraction). */
typedef enum { MATH_STRICT, MATH_TF32 } MathMode;

typedef struct Stream {
    Arena    scratch; /* a stack for the operations of this stream; sized before the first of them */
    void    *queue;   /* the GPU's queue (cudaStream_t); NULL on the CPU                           */
    MathMode math;
    int      any_threads; /* the CPU's products give the same bits for any number of threads: in tiles fixed by their shape */
    Ledger  *ledger;  /* borrowed; not NULL: the stream is dry, it runs nothing and costs are noted here */
} Stream;

/* Opens the device of this process. The CPU: sets the thread count (OMP_NUM_THREADS, else threads). CUDA: picks GPU
 * local_rank modulo the number of GPUs. Exit 69 with the reason where there is no usable one. DEVICE_NONE: this process
 * uses no GPU, and needs none: its device memory is host memory, and it runs no operation of layers.h but those of the host. */
enum { DEVICE_NONE = -1 };
void device_open(int local_rank, int threads);

int         device_count(void);       /* devices that device_open can choose among: visible GPUs, 0 without a driver; the CPU is one */
int         device_is_host(void);     /* device memory is host memory: the CPU, DEVICE_NONE */
const char *device_backend(void);     /* "cpu", "cuda", "emu"                                         */
const char *device_name(void);        /* processor or GPU, as the machine calls it                    */
const char *device_id(void);          /* the GPU's global name: "GPU-<uuid>", as in nvidia-smi -L; "" on the CPU */
const char *device_isa(void);         /* "avx512bf16", "avx512", "avx2", "sse2", "sm_90", ...         */
int         device_threads(void);     /* threads that an operation uses; 1 on CUDA                    */
int         device_has_bf16(void);    /* computes bf16 matrix products natively                       */
int         device_has_quick_bf16(void); /* and quicker than in fp32; else they go by way of f32       */
/* From here on kernels whose blocks stay leave so many multiprocessors to other kernels: a block that finds none would start
 * when the first ones have ended, and the kernel take twice its time. Nothing on the CPU. */
void        device_leave_multiprocessors(int count);
size_t      device_memory_free(void); /* free bytes now; 0 = unknown (the CPU)             */
size_t      device_memory_total(void);/* bytes                                                        */
size_t      device_memory_peak(void); /* bytes this process has used at most (CPU: resident set)      */

Stream stream_create(size_t scratch_bytes);
/* A dry stream. Its scratch grows with each use; stream.scratch.peak_bytes is the size that a real stream needs.
 * Nothing to destroy. */
static inline Stream stream_dry(Ledger *ledger) {
    Stream s = {arena_dry("scratch"), NULL, MATH_STRICT, 0, ledger};
    return s;
}
/* Returns whether the stream is dry; notes the operation of these sizes if so. */
static inline int stream_note(Stream *s, const char *op, int64_t a, int64_t b, int64_t c, int64_t d, double flops, double bytes) {
    if (!s->ledger) return 0;
    LedgerEntry e = {LEDGER_OP, op, "", {a, b, c, d}, flops, bytes, 1};
    ledger_note(s->ledger, e);
    return 1;
}
void   stream_destroy(Stream *s);

/* Zeroed device memory, aligned to ARENA_ALIGN. Without memory exit 71; `what` names its purpose in the message. */
void *device_alloc(size_t bytes, const char *what);
void  device_free(void *memory, size_t bytes);
/* Zeroed memory that host and device both reach with plain pointers, for tests: the host reads it after device_sync. */
void *device_alloc_shared(size_t bytes);
void  device_free_shared(void *memory);
/* Zeroed pinned host memory: copies from it to the device run without the host. Exit 71 without memory. */
void *device_alloc_host(size_t bytes, const char *what);
void  device_free_host(void *memory);
/* Pins host memory that the caller has mapped, to the same end; `bytes` in whole pages. Returns whether it did. Where the system
 * refuses (`ulimit -l`), copies to it go by way of pinned memory of the driver. device_unpin_host comes before it is unmapped. */
int   device_pin_host(void *memory, size_t bytes);
void  device_unpin_host(void *memory);

void device_zero(Stream *s, Tensor t);
void device_to_host(Stream *s, void *host, Tensor t);         /* returns when the bytes are there */
void device_from_host(Stream *s, Tensor t, const void *host); /* the host bytes may be reused on return */
void device_sync(Stream *s);

/* An event is a place in a stream. A queued copy leaves its host bytes (device_alloc_host) in use until an event after
 * it has passed. */
typedef struct { void *handle; } Event;
Event event_create(void);
void  event_destroy(Event *e);
void  event_record(Event e, Stream *s);
int   event_is_past(Event e);                                        /* 1 also if never recorded */
void  event_wait(Event e);                                           /* the host waits; at once if never recorded */
void  device_from_host_queued(Stream *s, Tensor t, const void *host);
void  device_to_host_queued(Stream *s, void *host, Tensor t);

/* Operations of a stream, recorded once and then launched as one: the host pays for one launch, not for one a kernel.
 * Between begin and end everything queued on s is recorded and nothing runs. Its memory must stay in place. The CPU
 * has no graphs: graph_begin returns 0 and records nothing. */
typedef struct { void *handle; } Graph;
int   graph_begin(Stream *s);
Graph graph_end(Stream *s);
void  graph_launch(Graph g, Stream *s);
void  graph_destroy(Graph *g);           /* NULL handle: nothing */

/* A named range on the timeline of a profiler (NVTX); free where none watches. */
void device_range_begin(const char *name);
void device_range_end(void);

/* Bytes taken on the device besides our allocations, for plan.
 *   GPU   measured at the call: CUDA's context, loaded code, NCCL's buffers, other processes; 0 before device_open
 *   CPU   the program and its libraries, as once measured */
size_t device_overhead_bytes(void);
/* An estimate of the further bytes that CUDA and cuBLASLt take on a GPU during training. 0 on the CPU. */
size_t device_reserve_bytes(void);

/* The versions of driver and library, and the reason why device_open would find no GPU, "" where it would. The CPU: "" and
 * "". */
void device_describe(char text[256], char fault[256]);

#ifdef __cplusplus
}
#endif
#endif
