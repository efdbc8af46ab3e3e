/* progress.c - see progress.h. Each line leaves in one write; a number that outgrows its column gives up digits, not
 * its place. */
#include "run/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/clock.h"

enum { LINE_BYTES = 512 };

/* Open MPI puts a pseudo-terminal between rank 0 and its own output, so the output of mpirun, our parent, decides. */
static int is_terminal(void) {
    char path[64], target[64];
    if (!isatty(STDOUT_FILENO)) return 0;
    if (!getenv("OMPI_COMM_WORLD_RANK")) return 1;
    snprintf(path, sizeof path, "/proc/%ld/fd/1", (long)getppid());
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    return strncmp(target, "/dev/pts/", 9) == 0 || strncmp(target, "/dev/tty", 8) == 0;
}

Progress progress_start(int64_t steps, int64_t first_step, int64_t log_every) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    Progress    p = {.steps = steps, .first_step = first_step, .log_every = log_every > 0 ? log_every : 1};
    p.terminal = is_terminal() && !(term && strcmp(term, "dumb") == 0);
    p.colour = p.terminal && !(no_color && *no_color); /* no-color.org: set and not empty */
    return p;
}

void progress_duration(char out[32], double ms) {
    if (!(ms >= 0 && ms < 1e14)) {
        strcpy(out, "?");
        return;
    }
    long long s = llround(ms / 1e3), m = s / 60, h = m / 60, d = h / 24;
    if (s < 60) snprintf(out, 32, "%llds", s);
    else if (m < 60) snprintf(out, 32, "%lldm%02llds", m, s % 60);
    else if (h < 24) snprintf(out, 32, "%lldh%02lldm", h, m % 60);
    else snprintf(out, 32, "%lldd%02lldh", d, h % 24);
}

/* value in exactly `width` columns if it can be, with at most `decimals` digits after the point, fewer for a large
 * number. */
static void put_fixed(char *out, size_t capacity, double value, int width, int decimals) {
    if (!isfinite(value)) snprintf(out, capacity, "%*s", width, isnan(value) ? "nan" : "inf");
    else while (snprintf(out, capacity, "%*.*f", width, decimals, value) > width && decimals > 0) decimals--;
    if ((int)strlen(out) > width && snprintf(out, capacity, "%*.0e", width, value) > width)
        snprintf(out, capacity, "%*s", width, "huge");
}

/* "45.1k", "1.45M", "  450" in five columns. */
static void put_rate(char *out, size_t capacity, double value) {
    const char *unit = !isfinite(value) ? "" : value >= 999.5e6 ? "G" : value >= 999.5e3 ? "M" : value >= 9999.5 ? "k" : "";
    double      scale = *unit == 'G' ? 1e9 : *unit == 'M' ? 1e6 : *unit == 'k' ? 1e3 : 1;
    int         width = *unit ? 4 : 5;
    put_fixed(out, capacity, value / scale, width, value < 100 ? 1 : *unit ? 2 : 0);
    if (*unit) strcat(out, unit);
}

/* "100.0% of gemm"; as many blanks where the part is not known. */
static void put_gemm(char *out, size_t capacity, double mfu) {
    put_fixed(out, capacity, 100 * mfu, 5, 1);
    if (isfinite(mfu)) snprintf(out + strlen(out), capacity - strlen(out), "%% of gemm");
    else snprintf(out, capacity, "%14s", "");
}

static int decimal_width(int64_t value) {
    int width = 1;
    while (value >= 10) value /= 10, width++;
    return width;
}

static void step_name(const Progress *p, int64_t step, char *out, size_t capacity) {
    snprintf(out, capacity, "%*lld/%lld", decimal_width(p->steps), (long long)step, (long long)p->steps);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of the last steps. The first also warms caches and compiles kernels: it counts only while it is alone. */
static double pace_ms(const Progress *p) {
    double  sorted[PROGRESS_RECENT];
    int64_t left_out = p->seen > 1 && p->seen <= PROGRESS_RECENT, count = p->seen < PROGRESS_RECENT ? p->seen : PROGRESS_RECENT;
    count -= left_out;
    memcpy(sorted, p->recent_ms + left_out, sizeof *sorted * (size_t)count);
    qsort(sorted, (size_t)count, sizeof *sorted, by_size);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

/* Time of the remaining steps: at the recent pace, with the mean time between steps so far. */
static double eta_ms(const Progress *p, int64_t step) {
    double done = (double)(step - p->first_step), left = (double)(p->steps - step);
    double between = clock_ms() - p->started_ms - p->stepping_ms;
    return left * (pace_ms(p) + (between > 0 && done > 0 ? between / done : 0));
}

static void keep_pace(Progress *p, const StepMetrics *s) {
    if (p->started_ms == 0) p->started_ms = clock_ms() - s->ms;
    p->stepping_ms += s->ms;
    p->recent_ms[p->seen++ % PROGRESS_RECENT] = s->ms;
}

static void clear_rewritten(Progress *p) {
    if (p->rewriting) fputs("\r\033[K", stdout);
    p->rewriting = 0;
}

static int terminal_columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

void progress_step(Progress *p, const StepMetrics *s, size_t memory_bytes) {
    keep_pace(p, s);
    int final = s->step % p->log_every == 0 || s->step == p->steps || s->step == p->first_step + 1;
    if (!final && !p->terminal) return;

    char name[64], loss[32], norm[32], rate[32], gemm[32], memory[32], eta[32], bubble[32] = "", line[LINE_BYTES];
    char part[32] = ""; /* of the run; many steps say enough by themselves, and keep the 120 columns */
    step_name(p, s->step, name, sizeof name);
    put_fixed(loss, sizeof loss, s->loss, 6, 4);
    put_fixed(norm, sizeof norm, s->grad_norm, 5, 3);
    put_rate(rate, sizeof rate, s->tokens_per_s * s->ms / pace_ms(p));
    put_gemm(gemm, sizeof gemm, s->mfu);
    put_fixed(memory, sizeof memory, (double)memory_bytes / 1073741824.0, 4, 2);
    progress_duration(eta, eta_ms(p, s->step));
    if (s->timed & WITH_STAGE) snprintf(bubble, sizeof bubble, " | bubble %.0f %%", 100.0 * s->axis_ms[AXIS_STAGE] / s->ms);
    if (decimal_width(p->steps) <= 5) snprintf(part, sizeof part, " %5.1f%%", 100.0 * (double)s->step / (double)p->steps);
    snprintf(line, sizeof line, "step %s%s | loss %s | lr %.2e | norm %s | %s tok/s | %s%s | %s GiB | ETA %6s", name, part,
             loss, s->lr, norm, rate, gemm, bubble, memory, eta);
    clear_rewritten(p);
    if (!final) {
        p->rewriting = 1;
        printf("%.*s", terminal_columns() - 1, line); /* a wrapped line could not be rewritten */
    } else if (p->colour) { /* one accent, on the loss */
        char *from = strstr(line, "| loss ") + 2, *to = strchr(from, '|') - 1;
        printf("%.*s\033[1;36m%.*s\033[0m%s\n", (int)(from - line), line, (int)(to - from), from, to);
    } else {
        printf("%s\n", line);
    }
    fflush(stdout);
}

void progress_eval(Progress *p, int64_t step, double loss, double ms) {
    char name[64], took[32], value[32];
    step_name(p, step, name, sizeof name);
    if (ms < 9950) snprintf(took, sizeof took, "%.1fs", ms / 1e3);
    else progress_duration(took, ms);
    put_fixed(value, sizeof value, loss, 6, 4);
    clear_rewritten(p);
    printf("eval %s %5.1f%% | %sloss %s%s | held out | perplexity %.4g | %s\n", name, 100.0 * (double)step / (double)p->steps,
           p->colour ? "\033[1;33m" : "", value, p->colour ? "\033[0m" : "", exp(loss), took);
    fflush(stdout);
}

void progress_task(Progress *p, int64_t step, const TaskScores *t) {
    char name[64], other[64];
    step_name(p, step, name, sizeof name);
    if (t->kind == TASK_CONTINUATION) snprintf(other, sizeof other, "perplexity %.4g", t->perplexity);
    else snprintf(other, sizeof other, "acc_norm %.4f (stderr %.4f)", t->acc_norm, t->acc_norm_stderr);
    clear_rewritten(p);
    printf("task %s | %.40s | acc %.4f (stderr %.4f) | %s\n", name, t->name, t->acc, t->acc_stderr, other);
    fflush(stdout);
}

void progress_tasks(Progress *p, int64_t step, double core, double ms) {
    char name[64], took[32], text[32] = "";
    step_name(p, step, name, sizeof name);
    progress_duration(took, ms);
    if (!isnan(core)) snprintf(text, sizeof text, "CORE %.4f | ", core);
    clear_rewritten(p);
    printf("task %s | %sall in %s\n", name, text, took);
    fflush(stdout);
}

void progress_sample(Progress *p, int64_t step, const char *text) {
    clear_rewritten(p);
    printf("sample at step %lld:\n", (long long)step);
    for (const char *end; *text; text = *end ? end + 1 : end) {
        end = text + strcspn(text, "\n");
        printf("%s%.*s\n", end > text ? "    " : "", (int)(end - text), text);
    }
    fflush(stdout);
}

void progress_note(Progress *p, const char *fmt, ...) {
    va_list args;
    clear_rewritten(p);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}
