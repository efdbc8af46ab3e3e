/* blend_use.c - see blend_use.h. */
#include "run/blend_use.h"

#include <stdio.h>

#include "core/json.h"

int blend_use(const Dataset *data, const Config *config, int64_t samples, SourceUse *use) {
    const StringList *train = &config->data.train;
    int64_t           count[BLEND_SOURCES];
    int               seen = 0;
    blend_count(data->blend, samples, count);
    for (int i = 0; i < train->count; i++) {
        int source = blend_source(train->item, i);
        if (source < seen) continue; /* the path is in an earlier stage, too */
        char    tokens[32];
        int64_t own = data->first_of_source[source + 1] - data->first_of_source[source];
        snprintf(use[seen++].text, sizeof use->text, "%.1f %% from %.400s: %s tokens, %.2f epochs",
                 100.0 * (double)count[source] / (double)samples, train->item[i],
                 grouped_text(count[source] * data->seq_len, tokens), sample_epochs(count[source], own));
    }
    return seen;
}
