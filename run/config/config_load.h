/* config_load.h - a Config while it is loaded, and for each option its state and its place in the file. Private to
 * run/config/. */
#ifndef TRAIN_GPT_RUN_CONFIG_CONFIG_LOAD_H
#define TRAIN_GPT_RUN_CONFIG_CONFIG_LOAD_H

#include "core/error.h"
#include "run/config/config.h"
#include "run/config/faults.h"
#include "run/config/options.h"

typedef struct {
    int   given;    /* 1 if the file or an override sets the option */
    int   faulty;   /* 1 if the list of faults has a fault of the value; rules that need the value are skipped */
    Where where;    /* place of the value in the file or among the overrides */
} Given;

typedef struct {
    Config *config;
    Given  *given;  /* owned [OPTION_COUNT]: state of each option, in the order of OPTIONS */
    Where   file;   /* the config file as a whole, for faults without a place */
    Faults  faults;
    int     is_elsewhere; /* 1 if the config is for another machine and build */
} ConfigLoad;

/* Returns the state of the option with this key. */
static inline Given *config_given(ConfigLoad *load, const char *key) {
    const Option *o = option_find(key);
    CHECK(o, "no option is called %s", key);
    return &load->given[o - OPTIONS];
}

/* Checks all rules between options. Every option must be set. ranks 0: the number of ranks is not known. */
void config_rules(ConfigLoad *load, int ranks);
/* Checks only the rules about the sizes of the model. */
void config_rules_of_shape(ConfigLoad *load);

#endif
