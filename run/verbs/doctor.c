/* doctor.c - `train_gpt doctor [FOLDER]`: prints a line for each thing that training needs on this machine: ok, or
 * what to do. It runs other programs only for their versions, for a few seconds at most.
 *
 *   ok     nothing to do
 *   warn   training works, but slower, or with one process only
 *   mend   training does not work: exit 69
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "core/thread.h"
#include "core/device.h"
#include "core/error.h"
#include "core/gpu_meter.h"
#include "core/io.h"
#include "core/simd.h"
#include "core/terminal.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/verbs/verbs.h"

typedef enum { FINE, WARN, MEND } Verdict;
static const char *const WORDS[] = {"ok", "warn", "mend"};
static const double GIB = 1024.0 * 1024 * 1024;

static Verdict worst = FINE;

/* Prints a line with the verdict on one thing. Sets `worst` to it if it is worse. */
static void PRINTF_LIKE(3, 4) tell(Verdict verdict, const char *what, const char *fmt, ...) {
    char    text[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    print_plain(stdout, "%-5s %-10s %s\n", WORDS[verdict], what, text);
    if (verdict > worst) worst = verdict;
}

/* --- the processor ------------------------------------------------------------------------------------------------ */

static void check_processor(void) {
    cpu_set_t   mine;
    int         online = (int)sysconf(_SC_NPROCESSORS_ONLN), usable = online, threads = thread_asked();
    double      load;
    Launch      launch = launch_detect();
    const char *text = getenv("OMP_NUM_THREADS"), *cap = getenv("TRAIN_GPT_ISA");
    tell(simd_isa() == ISA_BASE ? WARN : FINE, "CPU", "%s%s%s%s", simd_name(),
         cap ? ", capped by TRAIN_GPT_ISA=" : "", cap ? cap : "",
         simd_isa() == ISA_BASE ? ": without AVX2 matrix products are several times slower" : "");
    if (simd_has_bf16())
        tell(FINE, "CPU bf16", "native (AVX512-BF16 or AMX): precision=auto is bf16%s",
             simd_has_quick_bf16() ? ""
                                   : "; without AMX its products are slower than fp32's here, and go by way of fp32");
    else tell(FINE, "CPU bf16", "none: precision=auto is fp32, and bf16 is computed by way of fp32");
    if (sched_getaffinity(0, sizeof mine, &mine) == 0) usable = CPU_COUNT(&mine);
    if (usable < online)
        tell(WARN, "binding", "%d of %d processors are this process's%s", usable, online,
             launch.launched ? ": the launcher bound it; mpirun --bind-to none gives it all"
                             : ": taskset, a container or a job's limits keep the others from it");
    else tell(FINE, "binding", "all %d processor%s", online, plural(online));
    if (!text) tell(FINE, "threads", "as many as a rank has cores; OMP_NUM_THREADS is not set");
    else if (threads < 1) tell(WARN, "threads", "OMP_NUM_THREADS=%s is no number of threads: unset it", text);
    else if (threads > usable)
        tell(WARN, "threads", "OMP_NUM_THREADS=%d on %d processors: unset it, or set it to %d", threads, usable,
             usable);
    else if (threads < usable && !launch.launched)
        tell(WARN, "threads", "OMP_NUM_THREADS=%d leaves %d of %d processors idle to a run of one process: unset it",
             threads, usable - threads, usable);
    else tell(FINE, "threads", "OMP_NUM_THREADS=%d", threads);
    if (getloadavg(&load, 1) != 1) return;
    if (load > 0.25 * online + 0.5)
        tell(WARN, "load",
             "%.1f on %d processors: other programs compute; steps are slower, and measured rates too low", load,
             online);
    else tell(FINE, "load", "%.1f on %d processor%s", load, online, plural(online));
}

/* --- memory and files --------------------------------------------------------------------------------------------- */

/* Returns the number after a word in a file, or -1 if it is missing. */
static double number_in(const char *path, const char *word) {
    char   line[256];
    double value = -1;
    FILE  *f = fopen(path, "r");
    while (f && value < 0 && fgets(line, sizeof line, f)) {
        char *end;
        if (strncmp(line, word, strlen(word)) != 0) continue;
        double found = strtod(line + strlen(word), &end);
        if (end != line + strlen(word)) value = found;
    }
    if (f) fclose(f);
    return value;
}

static void check_memory(void) {
    double available = number_in("/proc/meminfo", "MemAvailable:") * 1024,
           limit = number_in("/sys/fs/cgroup/memory.max", ""), all = (double)device_memory().total;
    if (device_is_host() == 0) all = number_in("/proc/meminfo", "MemTotal:") * 1024;
    if (limit > 0 && limit < all) {
        double used = number_in("/sys/fs/cgroup/memory.current", "");
        all = limit;
        if (used >= 0 && limit - used < available) available = limit - used;
    }
    if (available < 0) return;
    tell(available < GIB ? WARN : FINE, "memory", "%s free of %s%s%s", bytes_text(available).text,
         bytes_text(all).text, limit > 0 && limit <= all ? ", a container's limit" : "",
         available < GIB ? ": `plan` says what a run takes" : "");
}

static void check_shared_memory(void) {
    struct statvfs fs;
    if (statvfs("/dev/shm", &fs) != 0) {
        tell(WARN, "/dev/shm",
             "not there: ranks of this machine exchange by way of it; mount a tmpfs, or docker run --shm-size=1g");
        return;
    }
    double room = (double)fs.f_bavail * (double)fs.f_frsize;
    tell(room < 0.25 * GIB ? WARN : FINE, "/dev/shm", "%s free%s", bytes_text(room).text,
         room < 0.25 * GIB ? ": ranks of this machine need more; docker run --shm-size=1g" : "");
}

/* Checks the free space of the disk that holds dir, or its nearest parent that exists. A run makes missing folders. */
static void check_disk(const char *dir) {
    char           path[4096];
    struct statvfs fs;
    StepFolder    *list = NULL;
    Path           checkpoints = path_of("%s/checkpoints", dir);
    double         one = 16 << 20; /* bytes of the newest checkpoint of the run, or of one of a small model */
    if (folders_list(checkpoints.text, &list) > 0) one = (double)folder_bytes(checkpoints.text, list[0].name);
    free(list);
    snprintf(path, sizeof path, "%s", dir);
    while (access(path, F_OK) != 0 && strrchr(path, '/') && strrchr(path, '/') != path) *strrchr(path, '/') = 0;
    if (access(path, F_OK) != 0) snprintf(path, sizeof path, "%s", path[0] == '/' ? "/" : ".");
    if (access(path, W_OK | X_OK) != 0) {
        tell(MEND, "disk", "%s cannot be written: %s; run.dir=FOLDER takes another", path, strerror(errno));
        return;
    }
    if (statvfs(path, &fs) != 0) return;
    double room = (double)fs.f_bavail * (double)fs.f_frsize;
    if (room < one) {
        tell(MEND, "disk", "%s free under %s, and a checkpoint takes %s: make room; run.dir=FOLDER takes another",
             bytes_text(room).text, path, bytes_text(one).text);
        return;
    }
    tell(room < GIB ? WARN : FINE, "disk", "%s free under %s%s", bytes_text(room).text, path,
         room < GIB ? ": `plan` says what checkpoints take" : "");
}

/* --- the GPU ------------------------------------------------------------------------------------------------------ */

static void check_gpu(void) {
    char text[256], fault[256], version[128] = "";
    device_describe(text, fault);
    if (!device_is_host()) {
        if (fault[0]) tell(MEND, "GPU", "%s; `make BACKEND=cpu` builds a program that needs none", fault);
        else tell(FINE, "GPU", "%d here", device_count());
        tell(FINE, "CUDA", "%s", text);
        tell(FINE, "NCCL", "%s", world_nccl());
    } else {
        FILE *f = fopen("/proc/driver/nvidia/version", "r");
        if (f && fgets(version, sizeof version, f)) {
            version[strcspn(version, "\n")] = 0;
            tell(WARN, "GPU", "%.100s, and this build computes on the processor: make BACKEND=cuda", version);
        } else tell(FINE, "GPU", "no NVIDIA driver; this build computes on the processor, without CUDA and NCCL");
        if (f) fclose(f);
    }
    char      meter_fault[GPU_METER_FAULT_CHARS];
    GpuMeter *m = gpu_meter_open("", meter_fault);
    if (meter_fault[0])
        tell(WARN, "NVML", "%s: metrics.jsonl gets no use, power and temperature of the GPU", meter_fault);
    if (!m) return;
    GpuReading r = gpu_meter_read(m);
    tell(FINE, "NVML", "%s%s%s%sin metrics.jsonl", r.has >> GPU_USE & 1 ? "use, " : "",
         r.has >> GPU_POWER & 1 ? "power, " : "", r.has >> GPU_MEMORY & 1 ? "memory, " : "",
         r.has >> GPU_TEMPERATURE & 1 ? "temperature, " : "");
    gpu_meter_close(m);
}

/* --- other programs ----------------------------------------------------------------------------------------------- */

/* PROBE_ABSENT: the program is not in PATH. PROBE_HANGS: it was killed with its children after PROBE_SECONDS */
enum { PROBE_SECONDS = 3, PROBE_ABSENT = -1, PROBE_HANGS = 128 + SIGKILL };

/* Runs a command, whose program is in PATH. Writes the first bytes of its output and errors to out [room]. Returns its
 * exit code, 128 + the signal that ended it, PROBE_ABSENT or PROBE_HANGS. The output goes to a file in memory, because
 * the end of a pipe would have to be waited for as long as any child of the program has it open. */
static int probe(const char *command, char *out, size_t room) {
    char line[200];
    int  file = memfd_create("output", 0);
    snprintf(line, sizeof line, "command -v %.*s > /dev/null", (int)strcspn(command, " "), command);
    if (file < 0 || system(line) != 0) return close(file), PROBE_ABSENT;
    snprintf(line, sizeof line, "timeout -s KILL %d %s > /proc/%d/fd/%d 2>&1 < /dev/null", PROBE_SECONDS, command,
             (int)getpid(), file);
    int     status = system(line);
    ssize_t bytes = pread(file, out, room - 1, 0);
    out[bytes > 0 ? bytes : 0] = 0;
    close(file);
    if (status < 0) return PROBE_ABSENT;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* --- MPI ---------------------------------------------------------------------------------------------------------- */

static void check_pmix(void) {
    char text[4096];
    int  slurm = probe("srun --mpi=list", text, sizeof text);
    if (slurm == PROBE_HANGS)
        tell(WARN, "PMIx",
             "srun gives no answer within %d s: its controller is away; mpirun starts ranks without it",
             PROBE_SECONDS);
    else if (slurm == 0 && !strstr(text, "pmix"))
        tell(WARN, "PMIx", "srun has none: start ranks by mpirun inside the job (scripts/train.sbatch)");
    else if (slurm == 0) tell(FINE, "PMIx", "srun has it: srun --mpi=pmix ./train_gpt config.json");
    else if (probe("ompi_info --param pmix all", text, sizeof text) == 0)
        tell(strstr(text, "MCA pmix") ? FINE : WARN, "PMIx",
             strstr(text, "MCA pmix") ? "Open MPI's own; no SLURM here"
                                      : "Open MPI was built without: mpirun alone starts ranks");
    else tell(FINE, "PMIx", "no SLURM here");
}

static void check_mpi(void) {
    const char *library = world_library();
    char        text[4096];
    if (strcmp(library, "none") == 0) {
        tell(FINE, "MPI", "this build has none: one process; make MPI=ompi-c builds one for more");
        return;
    }
    int code = probe("mpirun --version", text, sizeof text), is_open = strncmp(library, "Open MPI", 8) == 0;
    int fits = code == 0 && (is_open ? strstr(text, "Open MPI") || strstr(text, "OpenRTE")
                                     : !strstr(text, "Open MPI") && !strstr(text, "OpenRTE"));
    text[strcspn(text, "\n")] = 0; /* keeps only the first line of the output */
    if (code == PROBE_ABSENT)
        tell(WARN, "MPI",
             "built with %s, and there is no mpirun in PATH: one process alone; apt-get install openmpi-bin", library);
    else if (code == PROBE_HANGS)
        tell(WARN, "MPI", "mpirun --version gives no answer within %d s: is its folder on a lost disk?",
             PROBE_SECONDS);
    else if (code != 0) tell(WARN, "MPI", "mpirun --version ends with %d: %.200s", code, text);
    else if (!fits)
        tell(WARN, "MPI",
             "built with %s, and mpirun in PATH is of another MPI (%.100s): each rank would run alone; take the mpirun "
             "of %s",
             library, text, library);
    else if (is_open && geteuid() == 0 &&
             (!getenv("OMPI_ALLOW_RUN_AS_ROOT") || !getenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")))
        tell(WARN, "MPI", "mpirun refuses root: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1");
    else tell(FINE, "MPI", "%s; %.100s", library, text);
    check_pmix();
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

static const char *dir;
static const VerbKey DOCTOR_KEYS[] = {
    {"run.dir", "runs/mine", NULL, "where checkpoints would go: its disk is looked at", .text = &dir,
     .unset = "this folder"},
    {.name = NULL},
};

static int verb_doctor(int words, char **word) {
    if (words > 0) dir = word[0];
    if (words > 0 && !io_is_folder(dir))
        fail(EXIT_CONFIG,
             "doctor: %s is no folder: give one that exists, or run.dir=%s for a folder that a run will make", dir,
             dir);
    check_processor();
    check_memory();
    check_gpu();
    check_mpi();
    check_shared_memory();
    check_disk(dir ? dir : ".");
    return worst == MEND ? EXIT_NODEVICE : EXIT_DONE;
}

const Verb DOCTOR_VERB = {
    "doctor", "[FOLDER]", "what this machine has for training: ok, or the cure",
    "Looks at processor, memory, GPU, MPI and disk. Exit 69 where something must be mended first.", DOCTOR_KEYS,
    "./train_gpt doctor", verb_doctor, {0, 1, NULL},
};
