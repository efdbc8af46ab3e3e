/* memory.cpp - the CUDA runtime's memory: allocations, copies and fills. The prototypes are NVIDIA's, so a wrong stand-in does not compile.
 *
 * A copy reads and writes when its stream reaches it. This holds for pinned and managed host memory too. Other host
 * memory is read when the copy is queued, and written before the call returns, as in CUDA.
 *
 * Device memory is filled with 0xFF (NaN) when allocated and, under ASan, closed to the host while no kernel runs.
 * Managed and pinned memory is open to host and device and counts as initialised. Each allocation has unused bytes
 * behind it, so that ASan sees accesses past its end.
 *
 * A large allocation, such as an op's scratch memory, has pages of its own, which use memory only once they are
 * written. The 0xFF of its start are mapped from one file; its zeros are fresh pages of the operating system. Closing
 * it is one call that removes the access rights of the pages. ASan's shadow instead, 160 MiB, would be written twice a
 * kernel.
 */
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "streams.h"

namespace emu {

enum { ALIGN = 256, BEHIND = 256, LARGE_BYTES = 1 << 20, FILL_BYTES = 1 << 21 };

static std::map<const char *, Allocation, std::greater<const char *>> allocations;
static size_t                                                         used_bytes;

Allocation *find_allocation(const void *pointer) {
    const char *p = (const char *)pointer;
    auto        it = allocations.lower_bound(p); /* iterator to the last allocation that begins at or before p */
    return it != allocations.end() && p < it->second.base + it->second.bytes ? &it->second : nullptr;
}
void for_each_allocation(void (*f)(Allocation &)) {
    for (auto &a : allocations) f(a.second);
}
/* --- large allocations: pages of their own ------------------------------------------------------------------------- */

static bool   is_large(size_t bytes, MemoryKind kind) { return kind == DEVICE_ONLY && bytes >= LARGE_BYTES; }
static size_t pages_of(size_t bytes) { return (bytes + BEHIND + 4095) & ~(size_t)4095; }

/* Maps memory that is 0xFF everywhere, from a file of FILL_BYTES that is mapped as often as needed. Returns NULL if
 * there is no memory. */
static char *map_pages(size_t bytes) {
    static int file = -1;
    if (file < 0) {
        std::vector<char> fill(FILL_BYTES, '\xff');
        if ((file = memfd_create("fill", MFD_CLOEXEC)) < 0 || write(file, fill.data(), FILL_BYTES) != FILL_BYTES)
            fail("no memory file for the fill of allocations");
    }
    size_t all = pages_of(bytes);
    char  *base = (char *)mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    for (size_t at = 0; at < all; at += FILL_BYTES)
        if (mmap(base + at, std::min<size_t>(FILL_BYTES, all - at), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED)
            fail("mmap of device memory");
    ASAN_POISON_MEMORY_REGION(base + bytes, all - bytes);
    return base;
}
static void unmap_pages(const Allocation &a) {
    ASAN_UNPOISON_MEMORY_REGION(a.base, pages_of(a.bytes));
    munmap(a.base, pages_of(a.bytes));
}
/* Sets the whole allocation to zero by mapping fresh pages over it. */
static void zero_pages(const Allocation &a) {
    int fresh = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    if (mmap(a.base, pages_of(a.bytes), PROT_READ | PROT_WRITE, fresh, -1, 0) == MAP_FAILED)
        fail("mmap of device memory");
}

/* Protects Allocation.open, the number of kernels and copies that use a large allocation. Kernels and copies may run
 * at once. The last user closes the allocation. */
static std::mutex opening;
static void open_pages(Allocation &a) {
    std::lock_guard<std::mutex> lock(opening);
    if (a.open++ == 0) mprotect(a.base, pages_of(a.bytes), PROT_READ | PROT_WRITE);
}
static void close_pages(Allocation &a) {
    std::lock_guard<std::mutex> lock(opening);
    if (--a.open == 0) mprotect(a.base, pages_of(a.bytes), PROT_NONE);
}

/* --- what the host may touch --------------------------------------------------------------------------------------- */

void forbid_device_memory(bool forbid) {
    if (!EMU_ASAN) return;
    for (auto &each : allocations) {
        Allocation &a = each.second;
        if (a.kind != DEVICE_ONLY) continue;
        if (is_large(a.bytes, a.kind)) forbid ? close_pages(a) : open_pages(a);
        else if (forbid) ASAN_POISON_MEMORY_REGION(a.base, a.bytes);
        else ASAN_UNPOISON_MEMORY_REGION(a.base, a.bytes);
    }
}

static cudaError_t allocate(void **p, size_t bytes, MemoryKind kind) {
    if (cudaError_t error = refuse_while_capturing()) return error;
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (kind != PINNED && bytes > settings.memory_bytes - used_bytes) return remember(cudaErrorMemoryAllocation);
    char  *base = nullptr;
    /* Only device memory gets unused bytes behind it. The host may access the other kinds, and ASan puts its own red
     * zones around them. */
    size_t behind = kind == DEVICE_ONLY ? BEHIND : 0;
    if (is_large(bytes, kind)) {
        if (!(base = map_pages(bytes))) return remember(cudaErrorMemoryAllocation);
        if (EMU_ASAN) mprotect(base, pages_of(bytes), PROT_NONE);
    } else {
        if (posix_memalign((void **)&base, ALIGN, bytes + behind) != 0) return remember(cudaErrorMemoryAllocation);
        memset(base, 0xff, bytes + behind);
        if (kind == DEVICE_ONLY) ASAN_POISON_MEMORY_REGION(base, bytes + behind);
    }
    allocations[base] = Allocation{base, bytes, kind, nullptr, nullptr, false, 0};
    if (kind != PINNED) used_bytes += bytes;
    *p = base;
    return cudaSuccess;
}

static cudaError_t release(void *p, bool pinned, const char *what) {
    if (!p) return cudaSuccess;
    if (cudaError_t error = refuse_while_capturing()) return error;
    drain_all(); /* waits for all work, as cudaFree does */
    auto it = allocations.find((const char *)p);
    if (it == allocations.end() || (it->second.kind == PINNED) != pinned) fail("%s(%p): not an allocation of that kind", what, p);
    Allocation a = it->second;
    race_forget(a);
    allocations.erase(it);
    if (!pinned) used_bytes -= a.bytes;
    if (is_large(a.bytes, a.kind)) return unmap_pages(a), cudaSuccess;
    ASAN_UNPOISON_MEMORY_REGION(a.base, a.bytes + (a.kind == DEVICE_ONLY ? BEHIND : 0));
    free(a.base);
    return cudaSuccess;
}

/* ASan forbids the host to access device memory. The emulated runtime's own accesses lie between open_range and
 * close_range, which permit them. A large allocation is opened and closed as a whole. In a small one, closing begins
 * at a multiple of 8 bytes, ASan's granule. */
static void open_range(const void *p, size_t n) {
    Allocation *a = EMU_ASAN ? find_allocation(p) : nullptr;
    if (!a) return;
    if (is_large(a->bytes, a->kind)) open_pages(*a);
    else ASAN_UNPOISON_MEMORY_REGION(p, n);
}
static void close_range(const void *p, size_t n) {
    Allocation *a = EMU_ASAN ? find_allocation(p) : nullptr;
    if (!a || a->kind != DEVICE_ONLY) return;
    if (is_large(a->bytes, a->kind)) return close_pages(*a);
    const char *start = (const char *)p - (uintptr_t)p % 8;
    ASAN_POISON_MEMORY_REGION(start, (size_t)((const char *)p + n - start));
}

static void check_device_range(const void *p, size_t n, const char *what) {
    const Allocation *a = find_allocation(p);
    if (!a || (const char *)p + n > a->base + a->bytes) fail("%s: %zu bytes at %p are not inside one device allocation", what, n, p);
}
static void check_host_range(const void *p, const char *what) {
    const Allocation *a = find_allocation(p);
    if (a && a->kind == DEVICE_ONLY) fail("%s at %p is device memory, and the kind of copy says host", what, p);
}
static void check_copy(void *to, const void *from, size_t n, cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) {
        if (find_allocation(to)) check_device_range(to, n, "cudaMemcpy: destination");
        if (find_allocation(from)) check_device_range(from, n, "cudaMemcpy: source");
        return;
    }
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to_device) check_device_range(to, n, "cudaMemcpy: destination");
    else check_host_range(to, "cudaMemcpy: destination");
    if (from_device) check_device_range(from, n, "cudaMemcpy: source");
    else check_host_range(from, "cudaMemcpy: source");
}

bool take_library_bytes(size_t bytes) {
    bool fits = bytes <= settings.memory_bytes - used_bytes;
    if (fits) used_bytes += bytes;
    return fits;
}
void give_library_bytes(size_t bytes) { used_bytes -= bytes; }

void copy_now(void *to, const void *from, size_t n) {
    open_range(to, n);
    open_range(from, n);
    memmove(to, from, n);
    close_range(to, n);
    close_range(from, n);
    race_initialised(to, n);
}

}  // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaMalloc(void **p, size_t bytes) { return allocate(p, bytes, DEVICE_ONLY); }
cudaError_t cudaFree(void *p) { return release(p, false, "cudaFree"); }
cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned) { return allocate(p, bytes, MANAGED); }
cudaError_t cudaMallocHost(void **p, size_t bytes) { return allocate(p, bytes, PINNED); }
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) { return allocate(p, bytes, PINNED); }
/* Registers whole pages of host memory, once. A copy from memory that is not registered would run while the host waits.
 * EMU_PINNED=bytes refuses larger ranges. */
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned) {
    if ((uintptr_t)p % 4096 || bytes == 0) return remember(cudaErrorInvalidValue);
    if (find_allocation(p) || find_allocation((char *)p + bytes - 1)) return remember(cudaErrorHostMemoryAlreadyRegistered);
    allocations[(char *)p] = Allocation{(char *)p, bytes, PINNED, nullptr, nullptr, false, 0};
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p) {
    drain_all();
    auto it = allocations.find((const char *)p);
    if (it == allocations.end() || it->second.kind != PINNED) return remember(cudaErrorHostMemoryNotRegistered);
    race_forget(it->second);
    allocations.erase(it);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) { return release(p, true, "cudaFreeHost"); }

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = settings.memory_bytes;
    *free_bytes = settings.memory_bytes - used_bytes;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t stream) {
    if (n == 0) return cudaSuccess;
    check_copy(to, from, n, kind);
    if (const char *most = getenv("EMU_PINNED"))
        if (kind == cudaMemcpyDeviceToHost && !find_allocation(to) && n > strtoull(most, nullptr, 10))
            fail("a copy of %zu bytes to host memory that is not pinned: the host waits for it", n);
    bool is_read_now = !find_allocation(from) && !(stream && stream->capture);
    if (is_read_now) {
        std::vector<char> bytes((const char *)from, (const char *)from + n);
        return enqueue(stream, [to, n, bytes = std::move(bytes)] { copy_now(to, bytes.data(), n); });
    }
    cudaError_t error = enqueue(stream, [=] { copy_now(to, from, n); });
    if (error == cudaSuccess && !find_allocation(to) && !(stream && stream->capture)) drain(stream);
    return error;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind kind) {
    if (cudaError_t error = refuse_while_capturing()) return error;
    cudaError_t error = cudaMemcpyAsync(to, from, n, kind, nullptr);
    drain(nullptr);
    return error;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t stream) {
    if (n == 0) return cudaSuccess;
    check_device_range(to, n, "cudaMemset");
    return enqueue(stream, [=] {
        open_range(to, n);
        Allocation *a = find_allocation(to);
        if (value == 0 && a->bytes == n && is_large(n, a->kind)) zero_pages(*a);
        else memset(to, value, n);
        close_range(to, n);
        race_initialised(to, n);
    });
}
cudaError_t cudaMemset(void *to, int value, size_t n) {
    if (cudaError_t error = refuse_while_capturing()) return error;
    return cudaMemsetAsync(to, value, n, nullptr);
}
}
