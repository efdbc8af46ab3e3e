/* launch.c - finds what a launcher gave this process: its rank, read from the environment before any MPI call, and its
 * cores.
 *
 * A launcher may bind ranks to fewer cores than the job has: Open MPI gives `-np 1` one core. The launcher's own
 * affinity is not narrowed, so it shows the job's cores. Cores to which no rank of this host is bound are divided among
 * the ranks. A binding by the user is not changed. Cores are counted, not hardware threads: SIMD code gains nothing
 * from the second one.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/internal.h"
#include "core/thread.h"
#include "core/error.h"

static int has(const char *name) { return getenv(name) != NULL; }
static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* Returns 1 if a PMIx server waits for this process. Open MPI, PRRTE and srun --mpi=pmix set PMIX_ variables. They may
 * be left over from an ended job, but the folder of the server is removed when its job ends. */
static int has_pmix_server(void) {
    const char *folder = getenv("PMIX_SERVER_TMPDIR");
    for (char **variable = environ; *variable; variable++)
        if (strncmp(*variable, "PMIX_SERVER_URI", strlen("PMIX_SERVER_URI")) == 0)
            return !folder || access(folder, F_OK) == 0;
    return 0;
}

/* Returns 1 if a process manager of the PMI family waits for this process. Hydra and SLURM pass an open socket,
 * PMI_FD. */
static int has_pmi_server(void) {
    struct stat st;
    if (has("PMI_FD")) return fstat(number("PMI_FD", -1), &st) == 0 && S_ISSOCK(st.st_mode);
    return has("PMI_PORT") || has("PMI_CONTROL_PORT") || has("PALS_RANKID");
}

/* Name of a launcher's variable that is set although the launcher no longer runs, or NULL. A shell, tmux or script that
 * a rank once started still has the variable. */
static const char *stale;

Launch launch_detect(void) {
    int pmix = has_pmix_server();
    stale = NULL;
    if (has("OMPI_COMM_WORLD_RANK") && pmix)
        return (Launch){1, number("OMPI_COMM_WORLD_RANK", 0), number("OMPI_COMM_WORLD_SIZE", 0), 1};
    if (has("PMI_RANK") && has_pmi_server()) return (Launch){1, number("PMI_RANK", 0), number("PMI_SIZE", 0), 1};
    if (has("PMIX_RANK") && pmix) return (Launch){1, number("PMIX_RANK", 0), 0, 1};
    static const char *const RANKS[] = {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"};
    for (int i = 0; i < 3; i++)
        if (has(RANKS[i])) stale = RANKS[i];
    int tasks = has("SLURM_STEP_ID") ? number("SLURM_STEP_NUM_TASKS", 1) : 1;
    if (tasks > 1) return (Launch){1, number("SLURM_PROCID", 0), tasks, 0};
    return (Launch){0, 0, 1, 0};
}

int launch_is_mpirun(Launch launch) {
    if (!launch.launched || !has("SLURM_STEP_ID") || has("OMPI_COMM_WORLD_RANK")) return launch.launched;
    return number("SLURM_PROCID", 0) != launch.rank ||
           (launch.size > 0 && number("SLURM_STEP_NUM_TASKS", 1) != launch.size);
}

/* Reads values from a file of the system as fscanf does. Returns their number; 0 if the file cannot be opened. */
__attribute__((format(scanf, 2, 3))) static int scan_file(const char *path, const char *fmt, ...) {
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    va_list values;
    va_start(values, fmt);
    int found = vfscanf(file, fmt, values);
    va_end(values);
    fclose(file);
    return found;
}

long launch_process(char *name) {
    static const char *const names[] = {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte"};
    long                     pid = getppid(), parent;
    for (int above = 0; above < 8 && pid > 1 && has("OMPI_COMM_WORLD_RANK"); above++, pid = parent) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%ld/stat", pid); /* the file reads "12 (name) S 11 ...", where 11 is the
                                                             * parent's process id */
        if (scan_file(path, "%*d (%15[^)]) %*c %ld", name, &parent) != 2) return 0;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(name, names[i]) == 0) return pid;
    }
    return 0;
}

void launch_explain_alone(void) {
    if (stale)
        warn("the variable %s=%s says that a launcher (mpirun or srun) started this process, but none answers: this "
             "process works alone; if that is intended, `unset %s` silences this line", stale, getenv(stale), stale);
    stale = NULL; /* cleared, so that the warning is printed only once */
}

void launch_explain_tasks(void) {
    int tasks = has("SLURM_JOB_ID") && !has("SLURM_STEP_ID") ? number("SLURM_NTASKS", 1) : 1;
    if (tasks > 1)
        warn("SLURM gave this job %d tasks, but the program was started as one process: put mpirun or srun before "
             "./train_gpt (scripts/train.sbatch does)",
             tasks);
}

/* --- cores and threads -------------------------------------------------------------------------------------------- */

#define ADVICE "the launcher bound each rank to few cores while others idle: add --bind-to none to mpirun"

typedef struct Masks {
    cpu_set_t mine, given; /* mine: processors to which a rank is bound; given: processors to which its launcher is
                            * bound */
} Masks;

/* Returns the cores of a set of processors (hardware threads). The number of a core is that of its first processor.
 * core_of [cpu] caches the core of each processor; below 0 means not read yet. */
static cpu_set_t cores_of(const cpu_set_t *set, int core_of[CPU_SETSIZE]) {
    cpu_set_t cores = {{0}};
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set)) continue;
        if (core_of[cpu] < 0) {
            char path[96];
            int  first;
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
            int is_read = scan_file(path, "%d", &first) == 1 && first >= 0 && first < CPU_SETSIZE;
            core_of[cpu] = is_read ? first : cpu;
        }
        CPU_SET(core_of[cpu], &cores);
    }
    return cores;
}

/* Returns whether this process may change its binding to cores. The launcher must be Open MPI, which binds unless the
 * user forbids it. None of the variables below, with which a user requests a binding, may be set. */
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

/* Divides the host's cores to which no rank is bound among its ranks, in order, and adds this rank's share to its
 * binding. */
static void widen(const World *w, int core_of[CPU_SETSIZE]) {
    Masks    *ranks = w->masks;
    cpu_set_t carried = {{0}}, given = {{0}}, before = ranks[w->local_rank].mine;
    for (int r = 0; r < w->local_size; r++) {
        CPU_OR(&carried, &carried, &ranks[r].mine);
        CPU_OR(&given, &given, &ranks[r].given);
    }
    cpu_set_t both, idle; /* idle: processors of the launcher to which no rank is bound */
    CPU_AND(&both, &given, &carried);
    CPU_XOR(&idle, &given, &both);
    cpu_set_t cores = cores_of(&idle, core_of);
    int       share = CPU_COUNT(&cores) / w->local_size;
    if (share == 0) {
        /* With a wrapper script between launcher and rank, the launcher's processors are not known, so advice is all
         * that is possible. */
        if (may_widen() && getenv("OMPI_MCA_orte_bound_at_launch") && CPU_EQUAL(&given, &carried) &&
            CPU_COUNT(&carried) < sysconf(_SC_NPROCESSORS_ONLN)) warn(ADVICE);
        return;
    }
    /* keeps the new binding within the processors of the launcher, which the user may have bound, as by `taskset
     * mpirun` */
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

int launch_read_masks(World *w) {
    Masks     here = {.mine = {{0}}};
    cpu_set_t all = {{0}};
    w->masks = xmalloc(sizeof here * (size_t)w->local_size, "the processor masks of the ranks");
    sched_getaffinity(0, sizeof here.mine, &here.mine);
    here.given = here.mine;
    if (may_widen() && getppid() > 0) sched_getaffinity(getppid(), sizeof here.given, &here.given);
    world_local_all_gather(w, &here, w->masks, sizeof here);
    for (int r = 0; r < w->local_size; r++) CPU_OR(&all, &all, &w->masks[r].mine);
    return CPU_COUNT(&all);
}

/* Returns how many cores' worth of processor time the container of this process may use (cgroup v2, cpu.max holds "max
 * 100000" or "200000 100000"). Returns a large number if there is no limit. */
static double quota(void) {
    double share, period;
    int    values = scan_file("/sys/fs/cgroup/cpu.max", "%lf %lf", &share, &period);
    return values == 2 && period > 0 ? share / period : CPU_SETSIZE;
}

/* Warns if each rank has one core on a host with more cores than its ranks use together. Under SLURM that is seldom
 * intended: a task gets one core by default. The same core for all ranks is never intended. */
static void explain_one_core(const World *w, int carried, int core_of[CPU_SETSIZE]) {
    int one_for_all = carried == 1 && w->local_size > 1, slurm = getenv("SLURM_JOB_ID") != NULL;
    if (!one_for_all && (!slurm || thread_asked() == 1)) return;
    cpu_set_t online = {{0}};
    for (int cpu = 0; cpu < CPU_SETSIZE && cpu < sysconf(_SC_NPROCESSORS_ONLN); cpu++) CPU_SET(cpu, &online);
    cpu_set_t online_cores = cores_of(&online, core_of);
    int       cores = CPU_COUNT(&online_cores);
    if (cores <= carried || quota() <= carried) return;
    const char *remedy = "a taskset or cpuset around the launcher binds them all";
    if (slurm) remedy = "sbatch --cpus-per-task=N gives each rank N";
    if (slurm && getenv("SLURM_STEP_ID") && !getenv("OMPI_COMM_WORLD_RANK"))
        remedy = "srun --cpus-per-task=N gives each rank N (since SLURM 22.05 srun does not take it from sbatch)";
    if (one_for_all) warn("the %d ranks of this host share one of its %d cores: %s", w->local_size, cores, remedy);
    else warn("each rank has one of this host's %d cores: %s", cores, remedy);
}

int world_threads(World *w) {
    int core_of[CPU_SETSIZE];
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) core_of[cpu] = -1;
    widen(w, core_of);

    cpu_set_t mine = cores_of(&w->masks[w->local_rank].mine, core_of);
    double    users[CPU_SETSIZE] = {0}, threads = 0;
    int       carried = 0;
    for (int r = 0; r < w->local_size; r++) {
        cpu_set_t theirs = cores_of(&w->masks[r].mine, core_of);
        for (int core = 0; core < CPU_SETSIZE; core++) users[core] += CPU_ISSET(core, &theirs) != 0;
    }
    for (int core = 0; core < CPU_SETSIZE; core++) {
        carried += users[core] > 0;
        if (CPU_ISSET(core, &mine)) threads += 1 / users[core]; /* a core to which n ranks are bound counts 1/n */
    }
    if (threads < 2) explain_one_core(w, carried, core_of);
    double granted = quota() / w->local_size;
    if (threads > granted) threads = granted;
    return threads < 1 ? 1 : (int)(threads + 1e-6);
}
