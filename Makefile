# Makefile of train_gpt. `make help` lists the targets. A new source or test needs no edit here, because folders are
# globbed.
BACKEND_ASKED := $(BACKEND)
# Runs as many jobs at once as there are processors, unless -j is given. Several goals on the command line, such as
# `make all test`, are made one after the other, unless they are files in build/.
ifeq ($(MAKELEVEL)$(if $(word 2,$(MAKECMDGOALS)),$(filter-out build/%,$(MAKECMDGOALS))),0)
MAKEFLAGS += -j$(shell nproc)
endif
MPI     ?= ompi-c#          a pkg-config name: ompi-c, mpich; 0 builds a single-process program
SAN     ?=#                 cpu: -asan, -tsan (CC=clang). emu, which is under ASan and UBSan without: -race, -plain
CC      := $(if $(filter default,$(origin CC)),gcc,$(CC))
VARIANT  = $(BACKEND)$(SAN)$(if $(filter mpich,$(MPI)),-mpich)$(if $(filter 0,$(MPI)),-nompi)$(if $(findstring clang,$(CC)),-clang)$(if $(WERROR),-werror)
B        = build/$(VARIANT)
include scripts/gpu.mk scripts/say.mk
# Installs the packages that the goals need, before pkg-config is called (scripts/deps.sh). Does nothing with -n, or in
# a make that a script or another make calls. DEPS=0 switches it off.
$(foreach g,test tests faults soak mutants,$(eval FOR_$g := build test))
$(foreach g,smoke op-tests bench bench-comm bench-peer test-docs test-interop check-hf test-slurm test-hosts,$(eval FOR_$g := build smoke))
FOR_all    := build
FOR_look   := build
FOR_demo   := build $(if $(TEXT),,demo)
FOR_check  := build check
FOR_deps   := build test demo
FOR_test-slurm += slurm
FOR_test-hosts += hosts
FOR_GOALS  := $(sort $(foreach g,$(or $(MAKECMDGOALS),all),$(FOR_$g)))
DEPS       ?= $(if $(filter 0,$(MAKELEVEL)),1,0)
ifeq ($(DEPS)$(findstring n,$(LETTERS))$(findstring q,$(LETTERS))$(if $(FOR_GOALS),,none),1)
$(if $(shell MPI='$(MPI)' BACKEND=$(BACKEND) CC='$(CC)' EXTRA_CFLAGS='$(EXTRA_CFLAGS)' scripts/deps.sh $(FOR_GOALS) >&2 || echo no),$(error packages are missing: see above))
endif

WARN    := -Wall -Wextra -Wno-psabi -Wno-missing-field-initializers $(if $(WERROR),-Werror)
# The emulator build (CUDA kernels on the CPU) has debug information with line numbers only (-g1), because it then
# compiles in two thirds of the time.
OPT     := $(if $(ASAN),-O1 -fno-omit-frame-pointer $(ASAN),$(if $(filter emu,$(BACKEND)),-O2,-O3)) $(if $(filter emu,$(BACKEND)),-g1,-g)
# No -ffast-math, because isfinite(NaN) must stay false. Without errno and traps, sqrtf and comparisons can be
# vectorized.
NUMERIC := -fno-math-errno -fno-trapping-math -ffp-contract=fast
CFLAGS  := -std=c11 -D_GNU_SOURCE -I. $(WARN) $(OPT) $(NUMERIC) -fopenmp -pthread -MMD -MP -DBACKEND_$(BACKEND) $(DEFS) $(EXTRA_CFLAGS)
LDFLAGS := $(ASAN) $(ASAN_LIB) -fopenmp -pthread
LIBS    := $(if $(filter cuda,$(BACKEND)),,-ldnnl) -lcjson -lxxhash -lssl -lcrypto -lpcre2-8 -lonig -lutf8proc -larchive -lsnappy -lzstd -lz -lm $(CUDA_LIBS)
ifneq ($(MPI),0)
MPI_CFLAGS := $(shell pkg-config --cflags $(MPI) 2>/dev/null) -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $(if $(filter mpich,$(MPI)),-Wno-stringop-overflow)# MPICH: of MPI_STATUSES_IGNORE
MPI_LIBS   := $(shell pkg-config --libs $(MPI) 2>/dev/null)
else
MPI_CFLAGS := -DNO_MPI
endif
$(B)/comm/%.o $(B)/test/comm/%.o $(B)/test/bench/bench_comm.o $(B)/test/failpoints/comm/%.o: CFLAGS += $(MPI_CFLAGS)
$(B)/comm/%.o: CUFLAGS += $(filter -I% -D%,$(MPI_CFLAGS))
$(B)/test/emu/nccl.o: CXXFLAGS += $(filter -I% -D%,$(MPI_CFLAGS))
COMMIT  := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(B)/core/version.o: CFLAGS += -DGIT_COMMIT='"$(COMMIT)"'

FOLDERS := core layers comm data model run/config run/guard run/checkpoint run/outer run/text run/log run/plan run run/verbs
# A file layers/X.c with #if SIMD_HOST (core/simd.h) is compiled once per instruction set: to X.o, X.avx2.o and
# X.avx512.o. If layers/X.cu is built, it replaces all three.
SETS     := $(if $(findstring x86_64,$(shell $(CC) -dumpmachine)),avx2 avx512)
SET_avx2 := -DSIMD_BYTES=32 -mavx2 -mfma -mf16c -mbmi2
SET_avx512 := -DSIMD_BYTES=64 -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512vl -mavx512bw -mavx512dq $(if $(findstring clang,$(CC)),,-mprefer-vector-width=512)
KERNELS  := $(filter-out $(if $(CUCC),$(basename $(wildcard layers/*.cu))),$(basename $(shell grep -l "^.if SIMD_HOST" layers/*.c)))
OBJECTS  = $(sort $(patsubst %,$(B)/%.o,$(basename $(wildcard $(1)/*.c $(if $(CUCC),$(1)/*.cu))) $(foreach set,$(SETS),$(patsubst %,%.$(set),$(filter $(1)/%,$(KERNELS))))))
ARCHIVES := $(FOLDERS:%=$(B)/%.a)
# NEEDS_x lists the archives of the folders that folder x may use. The linker enforces this when it links the tests of
# x.
$(foreach f,core layers comm data,$(eval NEEDS_$f := $(B)/$f.a $(B)/core.a))
NEEDS_model  := $(B)/model.a $(B)/layers.a $(B)/comm.a $(B)/core.a
SEEN := $(B)/data.a $(NEEDS_model)
$(foreach f,$(filter run%,$(FOLDERS)),$(eval SEEN := $(B)/$f.a $(SEEN))$(eval NEEDS_$f := $(SEEN)))
$(foreach f,bench hosts,$(eval NEEDS_$f := $(SEEN)))
NEEDS         = $(NEEDS_$(patsubst %/,%,$(dir $(1))))
TESTS   := $(patsubst test/%.c,$(B)/test/%,$(foreach f,$(FOLDERS) bench hosts,$(wildcard test/$(f)/*.c)))

.PHONY: FORCE all deps demo test smoke tests op-tests bench bench-comm bench-peer gpu-check gpu-bundle check check-hf test-interop emu-cases emu-planted soak faults test-slurm test-hosts test-docs test-fresh mutants look clean
# Only the goal `all` sets the link ./train_gpt, so scripts and other goals name the file $(B)/train_gpt instead.
all: $(B)/train_gpt        ## the program, linked as ./train_gpt; this is what make alone does
	@$(if $(filter emu,$(BACKEND))$(SAN),,ln -sfn $(B)/train_gpt train_gpt)
	@$(next)
	@$(if $(QUIET)$(UNSAID),,$(lacks)):

# Sources with failpoints (calls that a test makes fail) are compiled a second time, for tests. The program
# train_gpt-failpoints gets all of them; tests that include core/failpoints.h get those of core/.
FAILABLE := $(patsubst %,$(B)/test/failpoints/%.o,$(basename $(shell grep -ls '"core/failpoints.h"' */*.c run/*/*.c)))
FAILING  := $(patsubst %.c,$(B)/%.o,$(shell grep -ls '"core/failpoints.h"' test/*/*.c test/*/*/*.c))
$(FAILING): CFLAGS += -DFAILPOINTS
$(FAILING:.o=): $(filter $(B)/test/failpoints/core/%,$(FAILABLE))
$(B)/test/train_gpt-failpoints: $(FAILABLE)
$(B)/train_gpt $(B)/test/train_gpt-failpoints: $(B)/train_gpt.o $(SEEN) $(ENGINE)
	$(call short,link,$@)$(LINK) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter-out %.o,$^) $(MPI_LIBS) $(LIBS)
$(B)/train_gpt.o: train_gpt.cu $(B)/.flags
	$(call short,cc,$<)$(CC) $(CFLAGS) -x c -c -o $@ $<
$(B)/core/version.o: $(B)/.commit
ifneq ($(BACKEND),cpu)
$(B)/%.o: %.cu $(B)/.flags
	$(call short,$(notdir $(firstword $(CUCC))),$<)$(CUCC) $(CUFLAGS) -c -o $@ $<
$(B)/%.o: %.cpp $(B)/.flags
	$(call short,c++,$<)$(CXX) $(CXXFLAGS) -c -o $@ $<
endif
$(B)/test/failpoints/%.o: %.c $(B)/.flags
	$(call short,cc,$< (with failpoints))$(CC) $(CFLAGS) -DFAILPOINTS -c -o $@ $<
$(B)/%.avx2.o: %.c $(B)/.flags
	$(call short,cc,$< (AVX2))$(CC) $(CFLAGS) $(SET_avx2) -c -o $@ $<
$(B)/%.avx512.o: %.c $(B)/.flags
	$(call short,cc,$< (AVX-512))$(CC) $(CFLAGS) $(SET_avx512) -c -o $@ $<
$(B)/%.o: %.c $(B)/.flags
	$(call short,cc,$<)$(CC) $(CFLAGS) -c -o $@ $<
.SECONDEXPANSION:
$(ARCHIVES): $(B)/%.a: $$(call OBJECTS,$$*)
	$(call short,ar,$@)rm -f $@; ar rcs $@ $^
# The model presets in the program: names and texts of configs/presets/*.json, sorted by family and size.
PRESETS := $(shell printf '%s\n' configs/presets/*.json | LC_ALL=C sort -t- -k1,1 -k2,2V)
$(B)/run/config/presets.c: $(PRESETS) configs/presets $(B)/.flags
	@{ echo '#include "run/config/options.h"'; \
	   echo 'const char *const PRESET_NAMES[] = {"", $(PRESETS:configs/presets/%.json="%",) NULL};'; \
	   echo 'const char *const PRESET_TEXTS[] = {"",'; \
	   for file in $(PRESETS); do sed 's/[\\"]/\\&/g; s/.*/"&\\n"/' $$file; echo ,; done; \
	   echo 'NULL};'; } > $@
$(B)/run/config/presets.o: $(B)/run/config/presets.c
	$(call short,cc,$<)$(CC) $(CFLAGS) -c -o $@ $<
$(B)/run/config.a: $(B)/run/config/presets.o
# A test program is one source file. Helpers that tests share are in test/ref (float64 references, record and replay). A
# function __wrap_x() in a test replaces x() (ld --wrap).
REF     := $(patsubst %.c,$(B)/%.o,$(wildcard test/ref/*.c))
$(TESTS): $(B)/test/%: $(B)/test/%.o $(REF) $$(call NEEDS,$$*) $(ENGINE)
	$(call short,link,$@)$(LINK) $(LDFLAGS) $$(nm $< | sed -n 's/.* T __wrap_/-Wl,--wrap=/p') -o $@ $(filter %.o,$^) $(filter-out %.o,$^) $(MPI_LIBS) $(LIBS) -lcmocka
$(B)/test/emu/cases/cases: $(call OBJECTS,test/emu/cases) $(patsubst %,$(B)/core/%.o,error format io json terminal) $(ENGINE)
	$(call short,link,$@)$(LINK) $(LDFLAGS) -o $@ $^ $(if $(ENGINE),$(MPI_LIBS)) $(filter-out -ldnnl,$(LIBS))
# Compiler flags and the commit are kept in files: if they change, everything that depends on them is built again.
$(B)/.flags: BUILT_WITH := $(CC) $(CFLAGS) $(MPI_CFLAGS) $(CUCC) $(CUFLAGS)
$(B)/.commit: BUILT_WITH := $(COMMIT)
$(B)/.flags $(B)/.commit: FORCE
	@mkdir -p $(patsubst %,$(B)/%,$(FOLDERS) $(FOLDERS:%=test/failpoints/%) $(sort $(dir $(wildcard test/*/*.c test/*/*/*.c test/emu/*.cpp test/emu/cases/*)))); echo '$(BUILT_WITH)' | cmp -s - $@ || echo '$(BUILT_WITH)' > $@
.SECONDARY:
tests: $(B)/train_gpt $(B)/test/train_gpt-failpoints $(TESTS)
op-tests: $(filter $(B)/test/layers/% $(B)/test/model/test_gpt,$(TESTS))
test: tests                ## the whole test suite (under 20 minutes on two cores)
	@B=$(B) scripts/test.sh
smoke: tests               ## its short tests: a minute, for while one works
	@B=$(B) SMOKE=1 scripts/test.sh
deps: ;                    ## install what is missing for all of it (apt); each target does so for itself
demo: $(B)/train_gpt       ## from nothing to a trained model on real text; TEXT=path for your own
	@[ -e train_gpt ] || ln -sfn $(B)/train_gpt train_gpt
	@TRAIN_GPT=$(B)/train_gpt scripts/demo.sh $(TEXT)
bench: $(if $(filter cuda,$(BACKEND))$(BASE),,tests)        ## speed of training against the machine's matrix products, kept in test/results/; BASE=commit: against that commit
	@B=$(B) scripts/$(if $(BASE),bench_base.sh $(BASE),bench.sh)
bench-peer: tests          ## GPT-2 124M beside PyTorch on this processor, in turns (PyPI, 3 GB): half an hour
	@B=$(B) scripts/bench.sh peer
bench-comm: tests          ## ring against MPI's collectives; the simulator against steps of two ranks
	@B=$(B) scripts/bench_comm.sh
check:                     ## warnings as errors (gcc, clang), MPICH, sanitizers, include directions, figures of the docs
	@scripts/check.sh
check-hf test-interop: $(B)/train_gpt ## logits of a checkpoint in Hugging Face transformers, scores in lm-eval; test-interop: also ids of its tokenizers and of tiktoken, text of pyarrow
	@for each in $(if $(filter test-interop,$@),check_interop) check_hf; do test/interop/$$each.sh || failed=1; done; exit $$failed
soak: tests                ## the long proofs, one piece of 20 minutes; test/results/soak.jsonl keeps the totals
	@B=$(B) scripts/soak.sh
faults: tests              ## the 32 faults that a run must survive, each with its test, pass or fail
	@B=$(B) scripts/faults.sh
test-docs: $(B)/train_gpt  ## every command of README.md and docs/ is tried
	@python3 test/docs/check_docs.py $(B)/train_gpt
test-slurm test-hosts: tests ## train.sbatch under a private SLURM; two hosts in network namespaces (root, Debian 12)
	@for each in test/$(@:test-%=%)/test_*.sh; do B=$(B) bash $$each || failed=1; done; exit $$failed
test-fresh:                ## README's commands in new roots of Debian 12 and 13 (root, mmdebstrap): hours; SHORT=1: build and smoke tests in one
	@scripts/fresh.sh $(if $(SHORT),short)
mutants:                   ## planted one-line faults: the suite must catch each
	@scripts/mutants.sh
look: $(B)/train_gpt       ## pictures of what a user sees, in build/look/
	@B=$(B) scripts/look.sh
clean:                     ## remove everything built
	rm -rf build train_gpt
-include $(shell find $(B) -name '*.d' 2>/dev/null)
