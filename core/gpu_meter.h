/* gpu_meter.h - what this process's GPU is doing: use, power, memory, temperature, by NVIDIA's management library.
 *
 * The library comes with the driver and is opened at run time, so that no build needs it. Where it is missing, lacks a
 * function or fails, that reading is left out and nothing is said; `doctor` says why.
 */
#ifndef TRAIN_GPT_CORE_GPU_METER_H
#define TRAIN_GPT_CORE_GPU_METER_H

typedef enum { GPU_USE, GPU_POWER, GPU_MEMORY, GPU_TEMPERATURE, GPU_READINGS } GpuReadingKind;
typedef struct {
    unsigned has;                 /* bit kind: that value is known */
    double   value[GPU_READINGS]; /* use from 0 to 1, watts, bytes of all processes, degrees Celsius */
} GpuReading;

typedef struct GpuMeter GpuMeter;
enum { GPU_METER_FAULT_CHARS = 512 };

/* The GPU of that name (device_id), "": the first. Asks libnvidia-ml.so.1, in a build for the CPU nobody;
 * TRAIN_GPT_NVML=FILE names another library. NULL: nobody to ask, with fault "", or no reading, with the reason. */
GpuMeter  *gpu_meter_open(const char *device, char fault[GPU_METER_FAULT_CHARS]);
GpuReading gpu_meter_read(GpuMeter *m); /* at most a second old; NULL: nothing is known */
void       gpu_meter_close(GpuMeter *m);

const char *gpu_reading_key(GpuReadingKind kind); /* as metrics.jsonl has it: "gpu_use", ... */

#endif
