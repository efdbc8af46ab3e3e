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

/* --- config_walk.c: from a tree to options ------------------------------------------------------------------------ */

/* Position of the walk in the two lists of json_parse_all(), both in file order. json NULL: no places are known. */
typedef struct {
    const Json *json;
    int         next; /* index of the entry of the next value; 0: the root */
    int         listed; /* soft faults that are already in the list of faults */
} Places;

/* Sets every option of the object of a section ("" for the root). Faults go to the list. */
void config_walk(ConfigLoad *load, const cJSON *object, const char *section, Where where, Places *places);
/* Adds the soft faults that the walk has not reached to the list. */
void config_tell_rest(ConfigLoad *load, Where where, Places *places);
/* Applies one override, "key=value". */
void config_override(ConfigLoad *load, const char *argument);

/* --- config_rules.c: rules between options ------------------------------------------------------------------------ */

/* Checks all rules. Every option must be set. ranks 0: not known. */
void config_rules(ConfigLoad *load, int ranks);
/* Applies only the rules about the shape of the model. */
void config_rules_of_shape(ConfigLoad *load);

/* --- outer_rules.c: rules of section "outer", and functions for all rules
 * --------------------------------------------- */

/* The keys of a rule, in the order in which rule_where prefers them. Ends with NULL. */
typedef const char *Keys[10];

void  rules_of_model(ConfigLoad *load); /* model_rules.c: rules of model.arch */
void  rules_of_outer(ConfigLoad *load);
void  rules_of_fp8(ConfigLoad *load);   /* fp8_rules.c: rules of precision = "fp8" */
void  rules_of_optimizer(ConfigLoad *load);  /* optimizer_rules.c: rules of optimizer.name */
const char *optimizer_fault(const Config *c); /* why the update rule cannot train this run; NULL: it can */
int   rule_usable(ConfigLoad *load, const Keys keys); /* returns 1 if no key is faulty */
/* Returns the place of the first key that an override sets, else of the first in the file, else the file. */
Where rule_where(ConfigLoad *load, const Keys keys);
/* Writes the multiples of `of` around value, such as "500 and 1000", or only the one above if there is none below.
 * Returns out. */
const char *nearest_multiples(char out[64], int64_t value, int64_t of);

#endif
