/* gpu_meter.c - reads a GPU's use, power, memory and temperature by NVML (gpu_meter.h). The prototypes of NVML's
 * functions are written here, because not every CUDA has its header. NVML has not changed them since its first
 * versions. Each NVML function returns 0 on success. */
#include "core/gpu_meter.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device.h"
#include "core/thread.h"

static const double FRESH_MS = 1000; /* age in ms at which a reading is replaced by a new one; NVML itself averages GPU
                                      * use over 1/6 s to 1 s */
enum { SENSOR_OF_GPU = 0 };

typedef struct { unsigned gpu, memory; } Use;                       /* share of time in use, in percent: GPU and its
                                                                     * memory */
typedef struct { unsigned long long total, free, used; } Memory;    /* bytes of GPU memory */

struct GpuMeter {
    void *library, *device;
    int (*start)(void);
    int (*stop)(void);
    int (*by_index)(unsigned index, void **device);
    int (*by_name)(const char *name, void **device);
    int (*use)(void *device, Use *use);
    int (*power)(void *device, unsigned *milliwatts);
    int (*memory)(void *device, Memory *memory);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int        is_started;
    double     read_ms;
    GpuReading last;
};

static void keep(GpuReading *r, GpuReadingKind kind, double value) { r->has |= 1u << kind, r->value[kind] = value; }

static GpuReading read_all(const GpuMeter *m) {
    GpuReading r = {.has = 0};
    Use        use;
    Memory     memory;
    unsigned   milliwatts, celsius;
    if (m->use && m->use(m->device, &use) == 0) keep(&r, GPU_USE, use.gpu / 100.0);
    if (m->power && m->power(m->device, &milliwatts) == 0) keep(&r, GPU_POWER, milliwatts / 1000.0);
    if (m->memory && m->memory(m->device, &memory) == 0) keep(&r, GPU_MEMORY, (double)memory.used);
    if (m->temperature && m->temperature(m->device, SENSOR_OF_GPU, &celsius) == 0) keep(&r, GPU_TEMPERATURE, celsius);
    return r;
}

GpuMeter *gpu_meter_open(const char *device, char fault[GPU_METER_FAULT_CHARS]) {
    const char *path = getenv("TRAIN_GPT_NVML");
    if (!path || !*path) path = device_is_host() ? NULL : "libnvidia-ml.so.1";
    fault[0] = 0;
    GpuMeter *m = path ? calloc(1, sizeof *m) : NULL;
    if (!m) return NULL;
    const struct { const char *name; void *function; } FUNCTIONS[] = {
        {"nvmlInit_v2", &m->start}, {"nvmlShutdown", &m->stop},
        {"nvmlDeviceGetHandleByIndex_v2", &m->by_index}, {"nvmlDeviceGetHandleByUUID", &m->by_name},
        {"nvmlDeviceGetUtilizationRates", &m->use}, {"nvmlDeviceGetPowerUsage", &m->power},
        {"nvmlDeviceGetMemoryInfo", &m->memory}, {"nvmlDeviceGetTemperature", &m->temperature}};
    m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!m->library) {
        snprintf(fault, GPU_METER_FAULT_CHARS, "%.400s", dlerror());
        free(m);
        return NULL;
    }
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        void *found = dlsym(m->library, FUNCTIONS[i].name);
        memcpy(FUNCTIONS[i].function, &found, sizeof found);
    }
    int error = m->start ? m->start() : -1; /* -1 means that the library lacks the function */
    m->is_started = error == 0;
    if (error == 0 && *device) error = m->by_name ? m->by_name(device, &m->device) : -1;
    else if (error == 0)       error = m->by_index ? m->by_index(0, &m->device) : -1;
    if (error == 0) m->last = read_all(m);
    m->read_ms = clock_ms();
    if (error > 0) snprintf(fault, GPU_METER_FAULT_CHARS, "%.300s answers with NVML's error %d", path, error);
    else if (error < 0 || !m->last.has)
        snprintf(fault, GPU_METER_FAULT_CHARS, "%.300s has no reading of this GPU", path);
    if (!fault[0]) return m;
    gpu_meter_close(m);
    return NULL;
}

GpuReading gpu_meter_read(GpuMeter *m) {
    if (!m) return (GpuReading){.has = 0};
    double now = clock_ms();
    if (now - m->read_ms >= FRESH_MS) m->last = read_all(m), m->read_ms = now;
    return m->last;
}

void gpu_meter_close(GpuMeter *m) {
    if (!m) return;
    if (m->is_started && m->stop) m->stop();
    if (m->library) dlclose(m->library);
    free(m);
}

const char *gpu_reading_key(GpuReadingKind kind) {
    static const char *const KEYS[] = {[GPU_USE] = "gpu_use", [GPU_POWER] = "gpu_power_w",
                                       [GPU_MEMORY] = "gpu_memory_bytes", [GPU_TEMPERATURE] = "gpu_temperature_c"};
    return KEYS[kind];
}
