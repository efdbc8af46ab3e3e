/* plan_gpu.c - see plan_gpu.h. Times are the simulator's, without evaluations, saves and failures. */
#include "run/plan/plan_gpu.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/json_text.h"
#include "run/checkpoint/checkpoint.h"
#include "run/plan/plan_data.h"
#include "run/log/progress.h"

static const double CHINCHILLA = 20.0; /* tokens a parameter: Hoffmann et al., arXiv:2203.15556 */

LargestBatch plan_gpu_largest(const Config *config, DType act, int ranks, const Cluster *cluster) {
    Config  c = *config;
    int64_t sequences = c.batch.global_tokens / (c.batch.seq_len * config_datas(&c, ranks));
    for (int64_t B = sequences; B > 0; B--) {
        if (sequences % B != 0) continue;
        c.batch.micro_batch = B;
        char *fault = config_check_changed(&c, ranks);
        free(fault);
        if (fault) continue;
        double bytes = simulate_memory(&c, act, ranks, cluster).memory_bytes;
        if (bytes <= cluster->memory_bytes) return (LargestBatch){B, bytes};
    }
    return (LargestBatch){0, 0.0};
}

typedef struct { double tokens, parameters, hours, gpu_hours, peak_flops, checkpoint_bytes; } WholeRun;

static WholeRun whole_run(const Config *c, DType act, int ranks, const Cluster *cluster, const Simulated *s) {
    ModelSpec spec = config_model_spec(c, act, ranks, 0, NULL);
    Layout    layout = model_spec_layout(&spec);
    double    hours = s->step_s * (double)c->run.steps / 3600.0;
    WholeRun  w = {(double)c->run.steps * (double)c->batch.global_tokens, (double)layout.elems, hours, hours * ranks,
                   cluster_flops(cluster, act, c->precision == PRECISION_TF32),
                   (double)checkpoint_disk_bytes(&layout, spec.optimizer)};
    layout_destroy(&layout);
    return w;
}

void plan_gpu_print(const Config *c, DType act, const ClusterPlan *asked, const Cluster *cluster, const Simulated *s) {
    WholeRun     w = whole_run(c, act, asked->ranks, cluster, s);
    LargestBatch largest = plan_gpu_largest(c, act, asked->ranks, cluster);
    char         time[32];
    progress_duration(time, w.hours * 3.6e6);
    printf("simulated    fits: %s of %s; largest batch.micro_batch %lld, %s\n", plan_bytes_text(s->memory_bytes).text,
           plan_bytes_text(cluster->memory_bytes).text, (long long)largest.micro_batch,
           largest.micro_batch == s->micro_batch * s->micro_batches ? "all that a rank has of a step"
                                                                     : plan_bytes_text(largest.memory_bytes).text);
    printf("estimate     %s, %.4g GPU hours: %.1f %% of the card's %.4g TFLOP/s, without evals and saves\n", time,
           w.gpu_hours, 100.0 * s->mfu, w.peak_flops * 1e-12);
    if (asked->price > 0)
        printf("estimate     %.2f dollars at %g a GPU hour\n", asked->price * w.gpu_hours, asked->price);
    printf("parameters   %s\n", plan_count_text(w.parameters).text);
    printf("tokens       %s: %.3g per parameter (Chinchilla: %g)\n", plan_count_text(w.tokens).text,
           w.tokens / w.parameters, CHINCHILLA);
    plan_print_data(c);
    plan_print_disk(c, w.checkpoint_bytes, DISK_ELSEWHERE);
}

void plan_gpu_json(cJSON *object, const Config *c, DType act, const ClusterPlan *asked, const Cluster *cluster,
                   const Simulated *s) {
    WholeRun     w = whole_run(c, act, asked->ranks, cluster, s);
    LargestBatch largest = plan_gpu_largest(c, act, asked->ranks, cluster);
    cJSON_AddStringToObject(object, "gpu", cluster->gpu);
    cJSON_AddItemToObject(object, "gpu_memory_bytes", number_json(cluster->memory_bytes));
    cJSON_AddItemToObject(object, "peak_flops", number_json(w.peak_flops));
    cJSON_AddNumberToObject(object, "largest_micro_batch", (double)largest.micro_batch);
    cJSON_AddItemToObject(object, "hours", number_json(w.hours));
    cJSON_AddItemToObject(object, "gpu_hours", number_json(w.gpu_hours));
    if (asked->price > 0) cJSON_AddItemToObject(object, "dollars", number_json(asked->price * w.gpu_hours));
    cJSON_AddItemToObject(object, "parameters", number_json(w.parameters));
    cJSON_AddItemToObject(object, "tokens", number_json(w.tokens));
    cJSON_AddItemToObject(object, "tokens_per_parameter", number_json(w.tokens / w.parameters));
    cJSON_AddItemToObject(object, "checkpoint_bytes", number_json(w.checkpoint_bytes));
}
