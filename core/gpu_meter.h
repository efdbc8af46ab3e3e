/* gpu_meter.h - what this process's GPU is doing: use, power, memory, temperature, by NVIDIA's management library.
 *
 * The library is part of the driver and is opened at run time, so that no build needs it. A reading that the library
 * cannot give is left out without a message; ./train_gpt doctor prints the reason.
 */
#ifndef TRAIN_GPT_CORE_GPU_METER_H
#define TRAIN_GPT_CORE_GPU_METER_H

typedef enum { GPU_USE, GPU_POWER, GPU_MEMORY, GPU_TEMPERATURE, GPU_READINGS } GpuReadingKind;
typedef struct {
    unsigned has;                 /* bit k is set if value[k] is known */
    double   value[GPU_READINGS]; /* [kind] readings: use from 0 to 1, power in watts, memory in bytes used by all
                                   * processes, temperature in degrees Celsius */
} GpuReading;

typedef struct GpuMeter GpuMeter;
enum { GPU_METER_FAULT_CHARS = 512 };

/* Opens the meter of the GPU named `device` (as device_id() returns it); "" is the first GPU. It uses
 * libnvidia-ml.so.1, or the library that TRAIN_GPT_NVML=FILE names; a CPU build uses only the latter. Returns NULL with
 * an empty fault if there is no such library to use. Returns NULL with the reason in fault if the library gives no
 * reading. */
GpuMeter  *gpu_meter_open(const char *device, char fault[GPU_METER_FAULT_CHARS]);
GpuReading gpu_meter_read(GpuMeter *m); /* returns a reading at most a second old; if m is NULL, no value is known */
void       gpu_meter_close(GpuMeter *m);

const char *gpu_reading_key(GpuReadingKind kind); /* returns the key of a reading in metrics.jsonl, such as "gpu_use" */

#endif
