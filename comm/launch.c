/* launch.c - who started this process, read from the environment before any MPI call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/internal.h"

static int has(const char *name) { return getenv(name) != NULL; }
static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* Returns 1 if a PMIx server waits for this process. Open MPI, PRRTE and srun --mpi=pmix set these variables. The
 * folder of the server is removed when the job ends. */
static int has_pmix_server(void) {
    const char *folder = getenv("PMIX_SERVER_TMPDIR");
    for (char **variable = environ; *variable; variable++)
        if (strncmp(*variable, "PMIX_SERVER_URI", strlen("PMIX_SERVER_URI")) == 0) return !folder || access(folder, F_OK) == 0;
    return 0;
}

/* Returns 1 if a process manager of the PMI family waits for this process. Hydra and SLURM hand down an open socket. */
static int has_pmi_server(void) {
    struct stat st;
    if (has("PMI_FD")) return fstat(number("PMI_FD", -1), &st) == 0 && S_ISSOCK(st.st_mode);
    return has("PMI_PORT") || has("PMI_CONTROL_PORT") || has("PALS_RANKID");
}

/* Name of a variable whose launcher is gone, or NULL. A shell, tmux or script that a rank once started still has it. */
static const char *stale;

Launch launch_detect(void) {
    Launch none = {0, 0, 1, 0};
    int    pmix = has_pmix_server();
    stale = NULL;
    if (has("OMPI_COMM_WORLD_RANK") && pmix) return (Launch){1, number("OMPI_COMM_WORLD_RANK", 0), number("OMPI_COMM_WORLD_SIZE", 0), 1};
    if (has("PMI_RANK") && has_pmi_server()) return (Launch){1, number("PMI_RANK", 0), number("PMI_SIZE", 0), 1};
    if (has("PMIX_RANK") && pmix) return (Launch){1, number("PMIX_RANK", 0), 0, 1};
    static const char *const RANKS[] = {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"};
    for (int i = 0; i < 3; i++)
        if (has(RANKS[i])) stale = RANKS[i];
    int tasks = has("SLURM_STEP_ID") ? number("SLURM_STEP_NUM_TASKS", 1) : 1;
    if (tasks > 1) return (Launch){1, number("SLURM_PROCID", 0), tasks, 0};
    return none;
}

int launch_is_mpirun(Launch launch) {
    if (!launch.launched || !has("SLURM_STEP_ID") || has("OMPI_COMM_WORLD_RANK")) return launch.launched;
    return number("SLURM_PROCID", 0) != launch.rank || (launch.size > 0 && number("SLURM_STEP_NUM_TASKS", 1) != launch.size);
}

/* Reads name and parent of a process: "12 (name) S 11 ..." in /proc. */
static int read_parent(long pid, char name[16], long *parent) {
    char  path[64];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    int   found = file && fscanf(file, "%*d (%15[^)]) %*c %ld", name, parent) == 2;
    if (file) fclose(file);
    return found;
}

long launch_process(char *name) {
    static const char *const names[] = {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte"};
    long                     pid = getppid(), parent;
    for (int above = 0; above < 8 && pid > 1 && has("OMPI_COMM_WORLD_RANK") && read_parent(pid, name, &parent); above++, pid = parent)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (strcmp(name, names[i]) == 0) return pid;
    return 0;
}

void launch_explain_alone(void) {
    if (stale)
        warn("%s=%s is set, but no launcher of that job answers: this process works alone; `unset %s` silences this "
             "line", stale, getenv(stale), stale);
    stale = NULL; /* warns once */
}

void launch_explain_tasks(void) {
    int tasks = has("SLURM_JOB_ID") && !has("SLURM_STEP_ID") ? number("SLURM_NTASKS", 1) : 1;
    if (tasks > 1)
        warn("SLURM gave this job %d tasks, and this is one process: put mpirun or srun before it (scripts/train.sbatch does)",
             tasks);
}
