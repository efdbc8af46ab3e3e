/* threads.c - how many threads this rank should run, and on which cores.
 *
 * A launcher may bind ranks to fewer cores than the job has: Open MPI gives `-np 1` one core. The launcher's own
 * affinity is not narrowed, so it shows the job's cores. Cores to which no rank of this host is bound are divided among
 * the ranks. A binding by the user is not changed. Cores are counted, not hardware threads: SIMD code gains nothing
 * from the second one.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/internal.h"
#include "core/thread.h"
#include "core/error.h"

#define ADVICE "the launcher bound each rank to few cores while others idle: add --bind-to none to mpirun"

typedef struct {
    cpu_set_t mine, given; /* processors of this rank; processors of its launcher */
} Masks;

/* Returns the core of a processor, named by the core's first hardware thread. */
static int read_core(int cpu) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "r");
    int   first = cpu;
    if (!file) return cpu;
    if (fscanf(file, "%d", &first) != 1 || first < 0 || first >= CPU_SETSIZE) first = cpu;
    fclose(file);
    return first;
}

/* Returns the cores of a set of processors. core_of[cpu] < 0 is not read yet. */
static cpu_set_t cores_of(const cpu_set_t *set, int core_of[CPU_SETSIZE]) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set)) continue;
        if (core_of[cpu] < 0) core_of[cpu] = read_core(cpu);
        CPU_SET(core_of[cpu], &cores);
    }
    return cores;
}

static cpu_set_t without(const cpu_set_t *a, const cpu_set_t *b) {
    cpu_set_t both, rest;
    CPU_AND(&both, a, b);
    CPU_XOR(&rest, a, &both);
    return rest;
}

/* Returns whether a binding may be widened. Only Open MPI binds without a request; these variables hold a user's own
 * binding. */
static int may_widen(void) {
    static const char *const asked[] = {"OMPI_MCA_hwloc_base_binding_policy",
                                        "OMPI_MCA_rmaps_base_mapping_policy",
                                        "OMPI_MCA_hwloc_base_cpu_list",
                                        "OMPI_MCA_orte_rankfile",
                                        "PRTE_MCA_hwloc_default_binding_policy",
                                        "PRTE_MCA_rmaps_default_mapping_policy"};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if (getenv(asked[i])) return 0;
    return getenv("OMPI_COMM_WORLD_RANK") != NULL;
}

/* Divides the host's idle cores among its ranks, in order, and binds this process to its own. */
static void widen(const World *w, Masks *ranks, int core_of[CPU_SETSIZE]) {
    cpu_set_t carried, given, before = ranks[w->local_rank].mine;
    CPU_ZERO(&carried);
    CPU_ZERO(&given);
    for (int r = 0; r < w->local_size; r++) {
        CPU_OR(&carried, &carried, &ranks[r].mine);
        CPU_OR(&given, &given, &ranks[r].given);
    }
    cpu_set_t idle = without(&given, &carried), cores = cores_of(&idle, core_of);
    int       share = CPU_COUNT(&cores) / w->local_size;
    if (share == 0) {
        /* A wrapper script hides the processors of the launcher. */
        if (may_widen() && getenv("OMPI_MCA_orte_bound_at_launch") && CPU_EQUAL(&given, &carried) &&
            CPU_COUNT(&carried) < sysconf(_SC_NPROCESSORS_ONLN)) warn(ADVICE);
        return;
    }
    /* `taskset mpirun`: bound outside of the launcher */
    for (int r = 0; r < w->local_size; r++) CPU_AND(&ranks[r].mine, &ranks[r].mine, &given);
    for (int core = 0, dealt = 0; dealt < share * w->local_size; core++) {
        if (!CPU_ISSET(core, &cores)) continue;
        for (int cpu = core; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &idle) && core_of[cpu] == core) CPU_SET(cpu, &ranks[dealt / share].mine);
        dealt++;
    }
    if (sched_setaffinity(0, sizeof before, &ranks[w->local_rank].mine) == 0) return;
    ranks[w->local_rank].mine = before;
    warn(ADVICE);
}

int threads_host_processors(World *w) {
    cpu_set_t  mine, all;
    cpu_set_t *ranks = xmalloc(sizeof *ranks * (size_t)w->local_size, "the processor masks of the ranks");
    CPU_ZERO(&mine);
    CPU_ZERO(&all);
    sched_getaffinity(0, sizeof mine, &mine);
    world_local_all_gather(w, &mine, ranks, sizeof mine);
    for (int r = 0; r < w->local_size; r++) CPU_OR(&all, &all, &ranks[r]);
    free(ranks);
    return CPU_COUNT(&all);
}

/* Returns how many cores' worth of processor time a container grants (cgroup v2 "max 100000" or "200000 100000").
 * Returns a large number if it does not say. */
static double quota(void) {
    double period, share = CPU_SETSIZE;
    FILE  *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!file) return share;
    if (fscanf(file, "%lf %lf", &share, &period) == 2 && period > 0) share /= period;
    else share = CPU_SETSIZE;
    fclose(file);
    return share;
}

static int host_cores(int core_of[CPU_SETSIZE]) {
    cpu_set_t online, cores;
    CPU_ZERO(&online);
    for (int cpu = 0; cpu < CPU_SETSIZE && cpu < sysconf(_SC_NPROCESSORS_ONLN); cpu++) CPU_SET(cpu, &online);
    cores = cores_of(&online, core_of);
    return CPU_COUNT(&cores);
}

/* Explains why each rank has one core on a host with more cores than its ranks use together. Under SLURM that is seldom
 * intended: a task gets one core by default. The same core for all ranks is never intended. */
static void explain_one_core(const World *w, int carried, int core_of[CPU_SETSIZE]) {
    int one_for_all = carried == 1 && w->local_size > 1, slurm = getenv("SLURM_JOB_ID") != NULL;
    if (!one_for_all && (!slurm || thread_asked() == 1)) return;
    int cores = host_cores(core_of);
    if (cores <= carried || quota() <= carried) return;
    const char *remedy = "a taskset or cpuset around the launcher binds them all";
    if (slurm) remedy = "sbatch --cpus-per-task=N gives each rank N";
    if (slurm && getenv("SLURM_STEP_ID") && !getenv("OMPI_COMM_WORLD_RANK"))
        remedy = "srun --cpus-per-task=N gives each rank N (since SLURM 22.05 srun does not take it from sbatch)";
    if (one_for_all) warn("the %d ranks of this host share one of its %d cores: %s", w->local_size, cores, remedy);
    else warn("each rank has one of this host's %d cores: %s", cores, remedy);
}

int world_threads(World *w) {
    Masks  here;
    Masks *ranks = xmalloc(sizeof *ranks * (size_t)w->local_size, "the processor masks of the ranks");
    if (sched_getaffinity(0, sizeof here.mine, &here.mine) != 0) CPU_ZERO(&here.mine);
    here.given = here.mine;
    if (may_widen() && getppid() > 0) sched_getaffinity(getppid(), sizeof here.given, &here.given);
    world_local_all_gather(w, &here, ranks, sizeof here);
    int core_of[CPU_SETSIZE];
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) core_of[cpu] = -1;
    widen(w, ranks, core_of);

    cpu_set_t mine = cores_of(&ranks[w->local_rank].mine, core_of);
    double    users[CPU_SETSIZE] = {0}, threads = 0;
    int       carried = 0;
    for (int r = 0; r < w->local_size; r++) {
        cpu_set_t theirs = cores_of(&ranks[r].mine, core_of);
        for (int core = 0; core < CPU_SETSIZE; core++) users[core] += CPU_ISSET(core, &theirs) != 0;
    }
    for (int core = 0; core < CPU_SETSIZE; core++) {
        carried += users[core] > 0;
        if (CPU_ISSET(core, &mine)) threads += 1 / users[core]; /* a core that n ranks may use counts 1/n */
    }
    free(ranks);
    if (threads < 2) explain_one_core(w, carried, core_of);
    double granted = quota() / w->local_size;
    if (threads > granted) threads = granted;
    return threads < 1 ? 1 : (int)(threads + 1e-6);
}
