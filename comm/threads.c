/* threads.c - how many threads this rank should run, and on which cores.
 *
 * A launcher may bind ranks more tightly than the host is full: Open MPI gives `-np 1` one core. What the launcher itself may use is what
 * the job was given (its affinity is not narrowed), so cores of it that no rank of this host carries are dealt out among the ranks. A
 * binding that the user asked for is left alone. Cores are counted, not hardware threads: SIMD code gains nothing from the second one.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/internal.h"

typedef struct {
    cpu_set_t mine, given; /* what this rank may use; what its launcher may */
} Masks;

/* The core a processor belongs to, named by its first hardware thread. */
static int core_of(int cpu) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "r");
    int   first = cpu;
    if (file) {
        if (fscanf(file, "%d", &first) != 1) first = cpu;
        fclose(file);
    }
    return first;
}

/* The cores of a set, ascending by first processor; returns how many. */
static int cores_of(const cpu_set_t *set, int core[CPU_SETSIZE]) {
    cpu_set_t seen;
    int       count = 0;
    CPU_ZERO(&seen);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set)) continue;
        int first = core_of(cpu);
        if (!CPU_ISSET(first, &seen)) core[count++] = first;
        CPU_SET(first, &seen);
    }
    return count;
}

static cpu_set_t without(const cpu_set_t *a, const cpu_set_t *b) {
    cpu_set_t both, rest;
    CPU_AND(&both, a, b);
    CPU_XOR(&rest, a, &both);
    return rest;
}

/* Only Open MPI binds unasked; these are set when somebody asked. */
static int may_widen(void) {
    static const char *const asked[] = {"OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_mapping_policy", "OMPI_MCA_hwloc_base_cpu_list",
                                        "OMPI_MCA_orte_rankfile", "PRTE_MCA_hwloc_default_binding_policy", "PRTE_MCA_rmaps_default_mapping_policy"};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        if (getenv(asked[i])) return 0;
    return getenv("OMPI_COMM_WORLD_RANK") != NULL;
}

/* Adds this rank's part of the host's free cores to its mask. */
static void widen(const Comm *c, Masks *ranks) {
    cpu_set_t carried, given;
    int       core[CPU_SETSIZE];
    CPU_ZERO(&carried);
    CPU_ZERO(&given);
    for (int r = 0; r < c->local_size; r++) {
        CPU_OR(&carried, &carried, &ranks[r].mine);
        CPU_OR(&given, &given, &ranks[r].given);
    }
    cpu_set_t idle = without(&given, &carried);
    int       share = cores_of(&idle, core) / c->local_size;
    if (share == 0) return;
    for (int r = 0; r < c->local_size; r++)
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            for (int k = r * share; CPU_ISSET(cpu, &idle) && k < (r + 1) * share; k++)
                if (core_of(cpu) == core[k]) CPU_SET(cpu, &ranks[r].mine);
    if (sched_setaffinity(0, sizeof ranks->mine, &ranks[c->local_rank].mine) != 0)
        warn("the launcher bound each rank to few cores while others idle: add --bind-to none to mpirun");
}

/* Cores' worth of processor time a container grants (cgroup v2 "max 100000" or "200000 100000"); many if it does not say. */
static double quota(void) {
    double period, share = CPU_SETSIZE;
    FILE  *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!file) return share;
    if (fscanf(file, "%lf %lf", &share, &period) == 2 && period > 0) share /= period;
    else share = CPU_SETSIZE;
    fclose(file);
    return share;
}

int comm_threads(Comm *c) {
    Masks  here;
    Masks *ranks = (Masks *)malloc(sizeof *ranks * (size_t)c->local_size);
    if (!ranks) fail(EXIT_MEMORY, "no memory for the masks of %d ranks", c->local_size);
    if (sched_getaffinity(0, sizeof here.mine, &here.mine) != 0) CPU_ZERO(&here.mine);
    here.given = here.mine;
    if (may_widen() && getppid() > 0) sched_getaffinity(getppid(), sizeof here.given, &here.given);
    world_local_all_gather(c, &here, ranks, sizeof here);
    widen(c, ranks);

    int    core[CPU_SETSIZE];
    int    count = cores_of(&ranks[c->local_rank].mine, core);
    double threads = 0;
    for (int k = 0; k < count; k++) { /* a core that n ranks may use counts 1/n */
        int users = 0;
        for (int r = 0; r < c->local_size; r++) users += CPU_ISSET(core[k], &ranks[r].mine) != 0;
        threads += 1.0 / (users ? users : 1);
    }
    free(ranks);
    double granted = quota() / c->local_size;
    if (threads > granted) threads = granted;
    return threads < 1 ? 1 : (int)(threads + 1e-6);
}
