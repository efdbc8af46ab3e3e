# say.mk - defines what make prints: a line for each command, such as `cc core/arena.c`; with V=1 whole commands; with
# -s nothing. Also defines `make help`.
LETTERS := $(filter-out --%,$(firstword -$(MAKEFLAGS)))# of make's own options
QUIET := $(findstring s,$(LETTERS))
short  = $(if $(V),,@$(if $(QUIET),,echo "$(1) $(2)";))
PROGRAM = $(if $(filter emu,$(BACKEND))$(SAN),$(B),.)/train_gpt
# next: a command that prints the last line of a build, with what to type then.
next   = $(if $(QUIET),,echo "built $(PROGRAM) ($(BACKEND)). Next: make demo, or $(PROGRAM) --help")
.PHONY: help
help:
	@echo "train_gpt: GPT pretraining in C and CUDA.  mpirun -np N ./train_gpt config.json"; echo
	@grep -hE '^[a-z -]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/; s/^all\t/\t/' | awk -F'\t' '{ \
	    line = sprintf("  make %-22s", $$1); words = split($$2, word, " "); \
	    for (i = 1; i <= words; i++) { if (length(line " " word[i]) > 80) { print line; line = sprintf("%29s", "") } line = line " " word[i] } print line }'
	@echo; echo "  V=1 shows whole commands. BACKEND=cpu|emu|cuda  MPI=ompi-c|mpich|0  NCCL=0  CC=gcc|clang"
	@echo "  SAN=-asan|-tsan (cpu)|-race|-plain (emu)  DEPS=0: install nothing  (this build: $(B))"
