/* launch.c - who started this process, read from the environment before any MPI call. */
#include <stdlib.h>

#include "comm/internal.h"

static int has(const char *name) { return getenv(name) != NULL; }
static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

Launch launch_detect(void) {
    Launch none = {0, 0, 1, 0};
    if (has("OMPI_COMM_WORLD_RANK")) return (Launch){1, number("OMPI_COMM_WORLD_RANK", 0), number("OMPI_COMM_WORLD_SIZE", 0), 1};
    if (has("PMI_RANK")) return (Launch){1, number("PMI_RANK", 0), number("PMI_SIZE", 0), 1};
    if (has("PMIX_RANK")) return (Launch){1, number("PMIX_RANK", 0), 0, 1};
    int tasks = has("SLURM_STEP_ID") ? number("SLURM_STEP_NUM_TASKS", 1) : 1;
    if (tasks > 1) return (Launch){1, number("SLURM_PROCID", 0), tasks, 0};
    return none;
}

void launch_explain_alone(void) {
    int tasks = has("SLURM_JOB_ID") && !has("SLURM_STEP_ID") ? number("SLURM_NTASKS", 1) : 1;
    if (tasks > 1)
        warn("SLURM gave this job %d tasks, and this is one process: put mpirun or srun before it (scripts/train.sbatch does)",
             tasks);
}
