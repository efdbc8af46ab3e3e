/* device.h - the interface to the hardware. device.c implements it for the CPU, device.cu for an NVIDIA GPU. The build
 * links one of them.
 *
 * A Stream is an ordered queue of operations. On the CPU each has finished when its call returns. Only device.c and
 * device.cu know where memory lives. The rest of the program uses plain pointers for host memory only.
 */
#ifndef TRAIN_GPT_CORE_DEVICE_H
#define TRAIN_GPT_CORE_DEVICE_H

#include <stddef.h>

#include "core/tensor.h"
#include "core/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How fp32 matrix products are computed: strictly, or with operands rounded to TF32 first (NVIDIA, 10 bits of
 * fraction). */
typedef enum { MATH_STRICT, MATH_TF32 } MathMode;

typedef struct Stream {
    Arena    scratch; /* stack of temporary memory for this stream's operations; sized before the first operation */
    void    *queue;   /* cudaStream_t that runs the operations; NULL on the CPU */
    MathMode math;
    int      any_threads; /* CPU: 1 if matrix products give the same bits for any number of threads, because the shape
                           * alone fixes the tiles */
    /* borrowed; NULL: an ordinary stream. Otherwise the stream is dry: it runs nothing, and notes the cost of each
     * operation in this ledger */
    Ledger  *ledger;
} Stream;

/* Opens the device of this process. CPU: sets the number of threads to OMP_NUM_THREADS, or to `threads` if that is not
 * set. CUDA: picks GPU local_rank modulo the number of GPUs. Exit 69 with the reason if no device is usable. A
 * local_rank of DEVICE_NONE means that this process needs no GPU. Device memory is then host memory, and only those
 * operations of layers.h that run on the host may be called. */
enum { DEVICE_NONE = -1 };
void device_open(int local_rank, int threads);

int         device_count(void);       /* number of devices that device_open can choose among. GPU: visible GPUs, 0
                                       * without a driver. CPU: 1 */
int         device_is_host(void);     /* returns 1 if device memory is host memory: on the CPU, and with DEVICE_NONE */
const char *device_backend(void);     /* name of the backend that was built: "cpu", "cuda", "emu" (CUDA kernels emulated
                                       * on the CPU) */
const char *device_name(void);        /* name of the processor or GPU, as the machine reports it */
const char *device_id(void);          /* the GPU's global name, "GPU-<uuid>" as in nvidia-smi -L; "" on the CPU */
const char *device_isa(void);         /* instruction set or GPU architecture in use: "avx512bf16", "avx512", "avx2",
                                       * "sse2", "sm_90", ... */
int         device_threads(void);     /* CPU threads that an operation uses; 1 on CUDA */
int         device_has_bf16(void);    /* returns 1 if the device computes bf16 matrix products natively */
int         device_has_quick_bf16(void); /* returns 1 if the device computes bf16 matrix products faster than fp32; if
                                          * not, bf16 operands are converted to f32 */
/* Sets how many multiprocessors persistent kernels leave to other kernels from now on. A block without a free
 * multiprocessor starts only when the first blocks end, and doubles the kernel's time. Does nothing on the CPU. */
void        device_leave_multiprocessors(int count);
size_t      device_memory_peak(void); /* largest number of bytes this process has used (CPU: resident set) */

/* Memory of the device in bytes, at this moment. On a GPU before device_open only `reserve` is known; the others are
 * 0. */
typedef struct {
    size_t free;     /* bytes that are free now; 0 on the CPU, where this is not known */
    size_t total;
    size_t overhead; /* bytes in use besides this program's own allocations; `plan` adds them. GPU: measured, for CUDA's
                      * context, loaded code, NCCL's buffers, other processes. CPU: a constant for the program and its
                      * libraries */
    size_t reserve;  /* estimated bytes that CUDA and cuBLASLt will allocate later, during training; 0 on the CPU */
} DeviceMemory;
DeviceMemory device_memory(void);

Stream stream_create(size_t scratch_bytes);
/* Returns a dry stream, which runs nothing and notes the costs of operations in the ledger. Its scratch grows with each
 * use, and stream.scratch.peak_bytes is the size that a real stream needs. It need not be destroyed. */
static inline Stream stream_dry(Ledger *ledger) {
    Stream s = {arena_dry("scratch"), NULL, MATH_STRICT, 0, ledger};
    return s;
}
/* Returns whether the stream is dry (runs nothing). If it is, notes an operation of these sizes in its ledger. */
static inline int stream_note(Stream *s, const char *op, int64_t a, int64_t b, int64_t c, int64_t d, double flops,
                              double bytes) {
    if (!s->ledger) return 0;
    LedgerEntry e = {LEDGER_OP, op, "", {a, b, c, d}, flops, bytes, 1};
    ledger_note(s->ledger, e);
    return 1;
}
void   stream_destroy(Stream *s);

/* Returns zeroed device memory, aligned to ARENA_ALIGN. Exit 71 if it does not fit; `what` names its purpose in the
 * message. */
void *device_alloc(size_t bytes, const char *what);
void  device_free(void *memory, size_t bytes);
/* Returns zeroed memory that host and device both reach with plain pointers, for tests. The host may read it after
 * device_sync. */
void *device_alloc_shared(size_t bytes);
void  device_free_shared(void *memory);
/* Returns zeroed pinned host memory: copies from it to the device run without the host. Exit 71 if it does not fit. */
void *device_alloc_host(size_t bytes, const char *what);
void  device_free_host(void *memory);
/* Pins host memory that the caller has mapped, so that copies to the device run without the host. `bytes` are whole
 * pages. Returns 1 if it is pinned, or 0 if the system refuses (`ulimit -l`): copies then pass through the driver's
 * pinned memory. Call device_unpin_host before the memory is unmapped. */
int   device_pin_host(void *memory, size_t bytes);
void  device_unpin_host(void *memory);

void device_zero(Stream *s, Tensor t);
void device_to_host(Stream *s, void *host, Tensor t);         /* copies the tensor to host memory, and returns when all
                                                               * bytes have arrived */
void device_from_host(Stream *s, Tensor t, const void *host); /* copies host bytes to the tensor; on return the caller
                                                               * may reuse `host` */
void device_sync(Stream *s);

/* An event is a position in a stream. After a queued copy the caller records an event. The host bytes of the copy (from
 * device_alloc_host) are in use until that event has passed. */
typedef struct { void *handle; } Event;
Event event_create(void);
void  event_destroy(Event *e);
void  event_record(Event e, Stream *s);
int   event_is_past(Event e);                                        /* returns 1 if the stream has passed the event, or
                                                                      * if the event was never recorded */
void  event_wait(Event e);                                           /* the host waits until the stream has passed the
                                                                      * event; returns at once if it was never
                                                                      * recorded */
void  device_from_host_queued(Stream *s, Tensor t, const void *host);
void  device_to_host_queued(Stream *s, void *host, Tensor t);

/* A graph holds operations of a stream, recorded once and launched together: the host pays for one launch instead of
 * one per kernel. Between graph_begin and graph_end everything queued on s is recorded and nothing runs. Memory that
 * the operations use must stay at the same address. The CPU has no graphs: graph_begin returns 0 and records
 * nothing. */
typedef struct { void *handle; } Graph;
int   graph_begin(Stream *s);
Graph graph_end(Stream *s);
void  graph_launch(Graph g, Stream *s);
void  graph_destroy(Graph *g);           /* frees a graph; does nothing if its handle is NULL */

/* A named range on the timeline of a profiler (NVTX). Costs nothing when no profiler runs. */
void device_range_begin(const char *name);
void device_range_end(void);

/* Writes the versions of driver and library to text. Writes the reason why device_open would find no GPU to fault, or
 * "" if it would find one. On the CPU both texts are "". */
void device_describe(char text[256], char fault[256]);

#ifdef __cplusplus
}
#endif
#endif
