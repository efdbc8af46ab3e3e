/* outer_rules.c - the rules of section "outer", and functions for the rules of all sections. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "model/precision.h"
#include "run/config/config_load.h"

int rule_usable(ConfigLoad *load, const Keys keys) {
    for (int i = 0; keys[i]; i++)
        if (config_given(load, keys[i])->faulty) return 0;
    return 1;
}

Where rule_where(ConfigLoad *load, const Keys keys) {
    const Given none = {0, 0, load->file}, *best = &none;
    for (int i = 0; keys[i]; i++) {
        const Given *given = config_given(load, keys[i]);
        if (given->given && (best == &none || (given->where.override && !best->where.override))) best = given;
    }
    return best->where;
}

const char *nearest_multiples(char out[64], int64_t value, int64_t of) {
    int64_t below = value - value % of;
    if (below) snprintf(out, 64, "%" PRId64 " and %" PRId64, below, below + of);
    else       snprintf(out, 64, "%" PRId64, of);
    return out;
}


/* --- outer.* ------------------------------------------------------------------------------------------------------ */

/* Returns 1 for text [bytes] of the form "host:port", with a port from 1 to 65535. A host may be "[::1]". */
static int is_host_port(const char *text, size_t bytes) {
    const char *colon = memrchr(text, ':', bytes);
    char       *end;
    if (!colon || colon == text || colon[1] < '0' || colon[1] > '9') return 0;
    long port = strtol(colon + 1, &end, 10);
    for (const char *c = text; c < colon; c++)
        if (*c <= ' ' || (*c == ':' && *text != '[')) return 0;
    return end == text + bytes && port >= 1 && port <= 65535;
}

static void rule_server(ConfigLoad *load) {
    Keys        keys = {"outer.server", NULL};
    const char *text = load->config->outer.server;
    char        shown[SHOWN_BYTES];
    if (!rule_usable(load, keys)) return;
    for (size_t bytes; *text; text += bytes + (text[bytes] == ',')) {
        bytes = strcspn(text, ",");
        if (is_host_port(text, bytes) && strcmp(text + bytes, ",")) continue;
        faults_add(&load->faults, rule_where(load, keys),
                   "outer.server must be host:port, or several separated by commas, not the string %s",
                   json_quote_short(shown, sizeof shown, load->config->outer.server));
        return;
    }
}

/* Checks that a run of islands ends with a whole round. */
static void rule_rounds(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          keys = {"outer.every", "outer.server", "run.steps", NULL};
    char          values[64];
    if (!rule_usable(load, keys) || !*c->outer.server || c->run.steps % c->outer.every == 0) return;
    faults_add(&load->faults, rule_where(load, keys),
               "run.steps = %" PRId64 " must be a multiple of outer.every = %" PRId64 "; nearest valid run.steps: %s",
               c->run.steps, c->outer.every, nearest_multiples(values, c->run.steps, c->outer.every));
}

/* Refuses values that this program does not support, so that they are never ignored silently. */
static void rule_not_built(ConfigLoad *load) {
    const Config *c = load->config;
    const struct { const char *key, *value; int is_asked; const char *cure; } rows[] = {
        {"run.on_nonfinite", "\"rollback\" with outer.server",
         *c->outer.server && c->run.on_nonfinite == ON_TROUBLE_ROLLBACK, "\"stop\" or \"skip\""},
        {"run.on_spike", "\"rollback\" with outer.server",
         *c->outer.server && c->run.on_spike == ON_TROUBLE_ROLLBACK, "\"warn\", \"stop\" or \"skip\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Keys keys = {rows[i].key, NULL};
        if (rule_usable(load, keys) && rows[i].is_asked)
            faults_add(&load->faults, rule_where(load, keys), "%s %s is not built yet: %s", rows[i].key, rows[i].value,
                       rows[i].cure);
    }
}

/* Refuses settings that outer.send = "gradients" does not support. The server needs the gradient of each step. */
static void rule_gradients(ConfigLoad *load) {
    const Config *c = load->config;
    const struct { const char *key, *value; int is_asked; const char *cure; } rows[] = {
        {"outer.every", "above 1", c->outer.every > 1, "1"},
        {"run.on_nonfinite", "\"skip\"", c->run.on_nonfinite == ON_TROUBLE_SKIP, "\"stop\""},
        {"run.on_spike", "\"skip\"", c->run.on_spike == ON_TROUBLE_SKIP, "\"warn\" or \"stop\""},
        {"precision", "\"fp16\", which leaves steps out,", c->precision == PRECISION_FP16, "\"bf16\""},
    };
    for (size_t i = 0; c->outer.send == SEND_GRADIENTS && i < sizeof rows / sizeof *rows; i++) {
        Keys keys = {rows[i].key, "outer.send", NULL};
        if (rule_usable(load, keys) && rows[i].is_asked)
            faults_add(&load->faults, rule_where(load, keys), "%s %s with outer.send = \"gradients\", which has one of every step: %s",
                       rows[i].key, rows[i].value, rows[i].cure);
    }
}

void rules_of_outer(ConfigLoad *load) {
    rule_server(load);
    rule_rounds(load);
    rule_gradients(load);
    rule_not_built(load);
}
