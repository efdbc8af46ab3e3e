/* config_load.h - a Config while it is loaded: the state and the place of each option. Private to run/config/. */
#ifndef TRAIN_GPT_RUN_CONFIG_CONFIG_LOAD_H
#define TRAIN_GPT_RUN_CONFIG_CONFIG_LOAD_H

#include "run/config/config.h"
#include "run/config/faults.h"
#include "run/config/options.h"

typedef struct {
    int   given;    /* the file or an override sets it                                                    */
    int   faulty;   /* the value has a fault, which is in the list; rules that need the value are skipped   */
    Where where;    /* place of the value */
} Given;

typedef struct {
    Config *config;
    Given  *given;  /* owned [OPTION_COUNT], parallel to OPTIONS */
    Where   file;   /* the config file as a whole                */
    Faults  faults;
    int     is_elsewhere; /* the config is for another machine and build */
} ConfigLoad;

Given *config_given(ConfigLoad *load, const char *key);

/* Checks all rules. Every option must be set. ranks 0: not known. */
void config_rules(ConfigLoad *load, int ranks);
/* Applies only the rules about the shape of the model. */
void config_rules_of_shape(ConfigLoad *load);

#endif
