/* fuzz_metrics.c - any bytes as a line of metrics.jsonl. It is not one of the program's lines, or it has a step, a
 * kind, and for an event a name. */
#include <stdlib.h>
#include <string.h>

#include "run/log/run_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    MetricsLine line;
    memset(&line, 0xaa, sizeof line);
    LineKind kind = metrics_line_parse((const char *)data, bytes, &line);
    if (kind == LINE_OTHER) return 0;
    if (kind != line.kind || line.step < 0 || line.tokens < -1 || !memchr(line.event, 0, sizeof line.event)) abort();
    if (kind == LINE_EVENT && !line.event[0]) abort();
    return 0;
}
