/* nvml.c - simulates NVIDIA's management library with one GPU that always has the same load. Built with FAILS, the
 * library does not start. NVML_READ names a file that gets a byte for each reading of the power. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct { unsigned gpu, memory; } Use;
typedef struct { unsigned long long total, free, used; } Memory;

int nvmlInit_v2(void) {
#ifdef FAILS
    return 9; /* NVML's code for a driver that is not loaded */
#else
    return 0;
#endif
}
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return *device = (void *)8, index != 0; }
int nvmlDeviceGetHandleByUUID(const char *name, void **device) { return *device = (void *)8, !*name; }
int nvmlDeviceGetUtilizationRates(void *device, Use *use) { return *use = (Use){87, 40}, device != (void *)8; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    return *memory = (Memory){80, 70, 5368709120}, device != (void *)8;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    return *celsius = 61, device != (void *)8 || sensor;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    const char *path = getenv("NVML_READ");
    int         fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    if (fd >= 0) *milliwatts = (unsigned)write(fd, "x", 1), close(fd);
    return *milliwatts = 312500, device != (void *)8;
}
