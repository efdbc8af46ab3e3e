/* progress.c - prints the lines of a run after the banner: see progress.h. Each line is one write. A number that is too
 * long for its column loses digits, so that the columns stay aligned. */
#include "run/log/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "core/terminal.h"
#include "core/thread.h"
#include "data/tokens_json.h"

enum { LINE_BYTES = 512, FIELD_BYTES = 96, FIELDS = 11 };

Progress progress_start(int64_t steps, int64_t first_step, int64_t last_step, int64_t log_every) {
    return (Progress){.steps = steps, .first_step = first_step, .last_step = last_step,
                      .log_every = log_every > 0 ? log_every : 1};
}

/* Returns value in exactly `width` columns if possible. It has at most `decimals` digits after the point, and fewer for
 * a large number. */
static ShortText fixed(double value, int width, int decimals) {
    ShortText t;
    if (!isfinite(value)) snprintf(t.text, sizeof t.text, "%*s", width, isnan(value) ? "nan" : "inf");
    else while (snprintf(t.text, sizeof t.text, "%*.*f", width, decimals, value) > width && decimals > 0) decimals--;
    if ((int)strlen(t.text) > width && snprintf(t.text, sizeof t.text, "%*.0e", width, value) > width)
        snprintf(t.text, sizeof t.text, "%*s", width, "huge");
    return t;
}

/* Returns a rate in five columns: "45.1k", "1.45M", "  450". */
static ShortText rate_text(double value) {
    const char *unit = value >= 999.5e6 ? "G" : value >= 999.5e3 ? "M" : value >= 9999.5 ? "k" : "";
    if (!isfinite(value)) unit = "";
    double      scale = *unit == 'G' ? 1e9 : *unit == 'M' ? 1e6 : *unit == 'k' ? 1e3 : 1;
    ShortText   t = fixed(value / scale, *unit ? 4 : 5, value < 100 ? 1 : *unit ? 2 : 0);
    strcat(t.text, unit);
    return t;
}

/* --- lines of fields ---------------------------------------------------------------------------------------------- */

/* The fields of a printed line, in order. Each has a rank: if the line is too long, fields of the highest ranks are
 * left out. */
typedef struct {
    int  count;
    int  rank[FIELDS];
    char text[FIELDS][FIELD_BYTES]; /* texts of the fields, with colour marks (core/terminal.h) */
} Fields;

static void add(Fields *f, int rank, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(Fields *f, int rank, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->text[f->count], FIELD_BYTES, fmt, args);
    va_end(args);
    f->rank[f->count++] = rank;
}

/* Joins the fields that fit into a line. Adds fields in the order of their ranks (least first), and all of a rank or
 * none. On a terminal the last column stays free, because a line might wrap there. */
static void join(const Fields *f, char out[LINE_BYTES]) {
    int    columns = terminal_is(stdout) ? terminal_columns(stdout) - 1 : PROGRESS_COLUMNS, width = -3, most = 0;
    size_t used = 0;
    for (int rank = 0; rank < FIELDS && width <= columns; rank++) {
        for (int i = 0; i < f->count; i++)
            if (f->rank[i] == rank) width += 3 + terminal_width(f->text[i]);
        if (width <= columns) most = rank;
    }
    out[0] = 0;
    for (int i = 0; i < f->count; i++)
        if (f->rank[i] <= most)
            used += (size_t)snprintf(out + used, LINE_BYTES - used, "%s%s", used ? DIM " | " RESET : "", f->text[i]);
}

/* Prints the line of an evaluation or of the scores of a task. */
static void print_line(const Fields *f) {
    char line[LINE_BYTES];
    join(f, line);
    say_text(stdout, 0, line);
}

/* Adds the field "step 120/600  20.0%". Runs of 100,000 steps or more get no percentage. */
static void add_place(Fields *f, const Progress *p, const char *kind, int64_t step) {
    char part[32] = "";
    int  digits = snprintf(NULL, 0, "%lld", (long long)p->steps);
    if (digits <= 5) snprintf(part, sizeof part, " %5.1f%%", 100.0 * (double)step / (double)p->steps);
    add(f, 0, DIM "%-4s" RESET " %*lld/%lld%s", kind, digits, (long long)step, (long long)p->steps, part);
}

/* Returns the median time of the last steps. The first step, which also warms caches and compiles kernels, counts only
 * as long as it is the only one. */
static double pace_ms(const Progress *p) {
    double  sorted[PROGRESS_RECENT];
    int64_t left_out = p->seen > 1 && p->seen <= PROGRESS_RECENT,
            count = p->seen < PROGRESS_RECENT ? p->seen : PROGRESS_RECENT;
    count -= left_out;
    memcpy(sorted, p->recent_ms + left_out, sizeof *sorted * (size_t)count);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending_doubles);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

void progress_step(Progress *p, const StepMetrics *s) {
    if (p->started_ms == 0) p->started_ms = clock_ms() - s->ms;
    p->stepping_ms += s->ms;
    p->recent_ms[p->seen++ % PROGRESS_RECENT] = s->ms;
    int is_final = s->step % p->log_every == 0 || s->step == p->last_step || s->step == p->first_step + 1;
    if (!is_final && !terminal_is(stdout)) return;

    Fields f = {0};
    double pace = pace_ms(p), part = s->mfu * s->ms / pace;
    char   eta[32], use[16] = "", power[16] = "", heat[16] = "", line[LINE_BYTES];
    /* each remaining step takes `pace` and the mean time between steps so far */
    double done = (double)(s->step - p->first_step), left = (double)(p->last_step - s->step);
    double between = clock_ms() - p->started_ms - p->stepping_ms;
    duration_text(eta, left * (pace + (between > 0 && done > 0 ? between / done : 0)));
    add_place(&f, p, "step", s->step);
    add(&f, 0, DIM "loss" RESET BOLD " %s" RESET, fixed(s->loss, 6, 4).text);
    add(&f, 3, DIM "lr" RESET " %.2e", s->lr);
    add(&f, 4, DIM "norm" RESET " %s", fixed(s->grad_norm, 5, 3).text);
    add(&f, 2, "%s" DIM " tok/s" RESET, rate_text(s->tokens_per_s * s->ms / pace).text);
    if (part <= 1) add(&f, 5, DIM "MFU" RESET " %s%%", fixed(100 * part, 4, 1).text);
    else           add(&f, 5, "%9s", "");
    if (s->mesh.size[AXIS_STAGE] > 1)
        add(&f, 6, DIM "bubble" RESET " %3.0f%%", 100.0 * s->exchange.waited_ms[AXIS_STAGE] / s->ms);
    add(&f, 7, "%s" DIM " GiB" RESET, fixed((double)s->memory_bytes / 1073741824.0, 4, 2).text);
    int is_long = s->ms >= 9999.5; /* 1 if the step took too long to print in ms; seconds fit in the same six columns */
    add(&f, 8, "%s" DIM "%s" RESET, fixed(is_long ? s->ms * 1e-3 : s->ms, is_long ? 5 : 4, 1).text,
        is_long ? "s" : "ms");
    const GpuReading *g = &s->gpu;
    if (g->has >> GPU_USE & 1) snprintf(use, sizeof use, " %3.0f%%", 100 * g->value[GPU_USE]);
    if (g->has >> GPU_POWER & 1) snprintf(power, sizeof power, " %4.0fW", g->value[GPU_POWER]);
    if (g->has >> GPU_TEMPERATURE & 1) snprintf(heat, sizeof heat, " %3.0fC", g->value[GPU_TEMPERATURE]);
    if (*use || *power || *heat) add(&f, 9, DIM "GPU" RESET "%s%s%s", use, power, heat);
    add(&f, 1, DIM "ETA" RESET " %6s", eta);
    join(&f, line);
    if (is_final) say_text(stdout, 0, line);
    else          say_again(line);
}

void progress_eval(Progress *p, int64_t step, const ProgressEval *e) {
    Fields f = {0};
    char   took[32];
    int    is_best = e->loss < e->best;
    if (e->ms < 9950) snprintf(took, sizeof took, "%.1fs", e->ms / 1e3);
    else duration_text(took, e->ms);
    add_place(&f, p, "val", step);
    add(&f, 0, DIM "loss" RESET "%s %s" RESET, is_best ? BOLD GREEN : BOLD, fixed(e->loss, 6, 4).text);
    if (e->bytes_per_token > 0) add(&f, 1, DIM "bits/byte" RESET " %.4f", bits_per_byte(e->loss, e->bytes_per_token));
    else                        add(&f, 1, DIM "perplexity" RESET " %.4g", exp(e->loss));
    if (isfinite(e->last)) add(&f, 2, "%+.4f%s", e->loss - e->last, is_best ? GREEN " best" RESET : "");
    add(&f, 3, "%s", took);
    print_line(&f);
}

void progress_task(Progress *p, int64_t step, const TaskScores *t) {
    Fields f = {0};
    char   name[44];
    add_place(&f, p, "task", step);
    add(&f, 0, "%s", terminal_plain(name, sizeof name, t->name));
    add(&f, 0, DIM "acc" RESET " %.4f (stderr %.4f)", t->acc, t->acc_stderr);
    if (t->kind == TASK_CONTINUATION) add(&f, 1, DIM "perplexity" RESET " %.4g", t->perplexity);
    else add(&f, 1, DIM "acc_norm" RESET " %.4f (stderr %.4f)", t->acc_norm, t->acc_norm_stderr);
    print_line(&f);
}

void progress_tasks(Progress *p, int64_t step, double core, double ms) {
    Fields f = {0};
    char   took[32];
    duration_text(took, ms);
    add_place(&f, p, "task", step);
    if (!isnan(core)) add(&f, 0, DIM "CORE" RESET BOLD " %.4f" RESET, core);
    add(&f, 0, "all in %s", took);
    print_line(&f);
}

/* Prints a text of the model, with a rule at its left so that it is not mistaken for output of the program. */
void progress_sample(int64_t step, const char *text) {
    say(stdout, 0, DIM "sample at step %lld:" RESET, (long long)step);
    for (const char *end; *text; text = *end ? end + 1 : end) {
        end = text + strcspn(text, "\n");
        char *line = xmalloc((size_t)(end - text) + 32, "a sample");
        snprintf(line, (size_t)(end - text) + 32, DIM "  | " RESET "%.*s", (int)(end - text), text);
        say_text(stdout, 4, line);
        free(line);
    }
}

void progress_note(const char *fmt, ...) {
    char    text[4096], plain[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    say_text(stdout, 2, terminal_plain(plain, sizeof plain, text));
}
