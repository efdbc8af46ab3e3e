/* optimizer_rules.c - the rules of optimizer.name: runs that an update rule cannot train, and keys that it does not
 * read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/optimizer.h"
#include "run/config/config_diff.h"
#include "run/config/config_load.h"

static int is_muon(const Config *c) { return !strcmp(c->optimizer.name, OPTIMIZER_MUON.name); }

/* Refuses a key of Muon that differs from its default with another optimizer. */
static void rule_unread(ConfigLoad *load, const char *key) {
    const Option *o = option_find(key);
    Keys          keys = {key, "optimizer.name", NULL};
    if (!rule_usable(load, keys) || is_muon(load->config)) return;
    cJSON *value = option_to_json(o, load->config), *usual = cJSON_Parse(o->fallback);
    char  *shown = cJSON_PrintUnformatted(value);
    if (!usual || !shown) fail(EXIT_MEMORY, "out of memory while reading the config");
    if (!config_same_value(value, usual))
        faults_add(&load->faults, rule_where(load, keys), "%s = %s with optimizer.name = \"%s\", which does not read it: leave it out "
                   "(%s), or optimizer.name = \"%s\"", key, shown, load->config->optimizer.name, o->fallback, OPTIMIZER_MUON.name);
    cJSON_Delete(value), cJSON_Delete(usual), free(shown);
}

/* Muon updates whole matrices on the device that computes the products. */
const char *optimizer_fault(const Config *c) {
    if (!c->optimizer.name || !is_muon(c)) return NULL;
    if (c->memory.offload == MEMORY_HOST)
        return "optimizer.name = \"muon\" updates where the products run, with memory.offload = \"optimizer\" it "
               "cannot: memory.offload = \"none\", or optimizer.name = \"adamw\"";
    if (c->outer.server[0] && c->outer.send == SEND_GRADIENTS)
        return "optimizer.name = \"muon\" with outer.send = \"gradients\": a server updates with AdamW alone:"
               " outer.send = \"deltas\", or optimizer.name = \"adamw\"";
    return NULL;
}

void rules_of_optimizer(ConfigLoad *load) {
    Keys        muon = {"optimizer.name", "memory.offload", "outer.server", "outer.send", NULL};
    const char *fault = rule_usable(load, muon) ? optimizer_fault(load->config) : NULL;
    if (fault) faults_add(&load->faults, rule_where(load, muon), "%s", fault);
    rule_unread(load, "optimizer.muon_momentum");
    rule_unread(load, "optimizer.newton_schulz");
    rule_unread(load, "optimizer.normuon");
}
