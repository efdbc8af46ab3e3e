# gpu.mk - a build's backend (cpu, emu, cuda) and its compiler of .cu files. In cuda and emu, X.cu replaces X.c.
CUDA_HOME ?= /usr/local/cuda
NVCC    := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA_H  := $(patsubst %/cuda_runtime.h,%,$(firstword $(wildcard $(CUDA_HOME)/include/cuda_runtime.h /usr/include/cuda_runtime.h)))
GPU     := $(if $(NVCC),$(wildcard /dev/nvidiactl)$(shell nvidia-smi -L 2>/dev/null | grep -m 1 ^GPU))
BACKEND ?= $(if $(GPU),cuda,cpu)
$(if $(filter cpu emu cuda,$(BACKEND)),,$(error BACKEND=$(BACKEND): one of cpu, emu, cuda))
ifeq ($(BACKEND)$(NVCC),cuda)
$(error BACKEND=cuda needs nvcc: set CUDA_HOME, or take BACKEND=cpu)
endif
ifeq ($(BACKEND)$(CUDA_H),emu)
$(error BACKEND=emu needs cuda_runtime.h of CUDA 12 or later: set CUDA_HOME, or take BACKEND=cpu)
endif

comma   := ,
quote   := "
# The emulator (CUDA kernels on the CPU) is built with AddressSanitizer and UBSan by default. SAN=-race builds it with
# the race checker of test/emu instead, SAN=-plain without any checker.
ASAN    := $(if $(filter cpu-asan emu,$(BACKEND)$(SAN)),-fsanitize=address$(comma)undefined)$(if $(filter cpu-tsan,$(BACKEND)$(SAN)),-fsanitize=thread)
$(if $(filter cpu cpu-asan cpu-tsan emu emu-race emu-plain cuda,$(BACKEND)$(SAN)),,$(error SAN=$(SAN): -asan or -tsan with BACKEND=cpu, -race or -plain with BACKEND=emu))
# Links ASan's library statically into the emulator. The emulator calls it at each switch between its stacks, and a
# static call does not go through the loader.
ASAN_LIB := $(if $(ASAN),$(if $(filter emu,$(BACKEND)),$(if $(wildcard $(shell $(CXX) -print-file-name=libasan.a)),-static-libasan)))
LINK    := $(if $(filter cpu,$(BACKEND)),$(CC),$(CXX))
CXXFLAGS = -std=c++17 -I. $(patsubst %,-isystem %,$(filter-out /usr/include,$(CUDA_H))) $(WARN) $(OPT) -pthread -MMD -MP -DBACKEND_$(BACKEND) $(DEFS) $(EXTRA_CFLAGS)
ifeq ($(BACKEND),emu)
CUCC    := $(CXX) -x c++
# Checks for code that the emulator runs. Local variables begin as garbage. UBSan's checks of null, sizes and sums of
# pointers are left out, because AddressSanitizer finds the same faults. A kernel then compiles in three quarters of the
# time. test/emu/race.cpp defines the hooks of -fsanitize=thread, so the sanitizer's library is not linked. Under
# AddressSanitizer (EMU_CALLS), device functions are inlined only if they are small or called once. Under the race
# checker all are inlined, because test/emu/count.cpp distinguishes the instructions of a warp by their addresses.
WATCH   := -ftrivial-auto-var-init=pattern $(if $(ASAN),-DEMU_CALLS -finline-small-functions -fno-sanitize-recover=undefined -fno-sanitize=null$(comma)object-size$(comma)pointer-overflow$(comma)vptr,-O1 -fsanitize=thread)
CUFLAGS  = $(CXXFLAGS) $(NUMERIC) $(if $(filter -plain,$(SAN)),,$(WATCH)) -fno-strict-aliasing -Wno-unknown-pragmas \
           -include test/emu/cuda_emu.h
ENGINE  := $(patsubst %.cpp,$(B)/%.o,$(wildcard test/emu/*.cpp))
# Optimizes the emulator's own sources. Their inner loops take most of the time, and have no undefined behaviour for
# UBSan to find.
$(ENGINE): CXXFLAGS += -O3 $(if $(ASAN),-fno-sanitize=undefined)
endif
# archs: the target that compiles every CUDA source for each supported architecture, each in an object folder of its
# own. It prints `skip` if there is no nvcc.
SUPPORTED := 80 90a 100
# The architectures that this nvcc compiles for; 100 needs CUDA 12.8. If nvcc does not list them, each is tried.
KNOWN     := $(patsubst compute_%,%,$(if $(filter cuda,$(BACKEND))$(filter archs,$(MAKECMDGOALS)),$(shell $(NVCC) --list-gpu-arch 2>/dev/null)))
known      = $(if $(KNOWN),$(foreach a,$(1),$(if $(filter $(a:a=),$(KNOWN)),$(a))),$(1))
# NCCL is not part of the CUDA toolkit. Without NCCL the program exchanges data between GPUs by way of host memory:
# comm/nccl.c replaces comm/nccl.cu.
ifeq ($(BACKEND)$(NCCL),cuda)
NCCL      := $(shell $(CXX) -I$(CUDA_HOME)/include -include nccl.h -E -x c++ /dev/null > /dev/null 2>&1 && echo 1 || echo 0)
endif
CU_OBJECTS = $(patsubst %.cu,$(B)/%.o,$(wildcard core/*.cu layers/*.cu comm/*.cu test/emu/cases/*.cu))
.PHONY: archs cu-objects
.DEFAULT_GOAL := all# these rules are read before the Makefile's first
cu-objects: $(CU_OBJECTS)
archs:                     ## compile the CUDA sources for each architecture that is supported
	@$(if $(NVCC),for a in $(call known,$(SUPPORTED)); do at=$$(date +%s); \
	    $(MAKE) --no-print-directory -s BACKEND=cuda ARCHS=$$a B=build/archs/sm_$$a cu-objects || exit 1; \
	    echo "archs: $(words $(CU_OBJECTS)) CUDA sources compiled for sm_$$a in $$(($$(date +%s) - at)) s"; done,echo "skip archs: no nvcc here")
# Targets that compare the machine code that nvcc makes of each kernel with test/results/sass.tsv (scripts/sass.py). A
# cubin has one architecture; X.ptxas is the output of ptxas.
SASS_ARCHS ?= 80 90a
CUBINS     = $(patsubst %.cu,$(B)/%.cubin,$(filter-out $(if $(filter 0,$(NCCL)),comm/nccl.cu),$(shell grep -lw KERNEL core/*.cu layers/*.cu comm/*.cu)))
.PHONY: sass cubins performance
cubins: $(CUBINS)
$(B)/comm/%.cubin: CU_PLAIN += $(filter -I% -D%,$(MPI_CFLAGS))
$(B)/%.cubin: %.cu $(B)/.flags
	$(call short,ptxas,$<)$(NVCC) $(CU_PLAIN) -arch=sm_$(ARCHS) -cubin -Xptxas -v -o $@ $< \
	    > $(@:.cubin=.ptxas) 2>&1 || { cat $(@:.cubin=.ptxas); rm -f $(@:.cubin=.ptxas); exit 1; }
sass:                      ## the compiled kernels against test/results/sass.tsv: registers, spills, loops; UPDATE=1 writes it
	@$(if $(NVCC),for a in $(SASS_ARCHS); do \
	    $(MAKE) --no-print-directory $(if $(V),,-s) BACKEND=cuda ARCHS=$$a B=build/sass/sm_$$a cubins || exit 1; \
	    done,echo "skip sass: no nvcc here")
	@$(if $(NVCC),CUDA_HOME=$(CUDA_HOME) python3 scripts/sass.py $(if $(UPDATE),--update) build/sass test/results/sass.tsv)
performance:               ## the estimated step of docs/performance.md, written anew from the emulated build's plan
	@$(MAKE) --no-print-directory -s BACKEND=emu SAN=-plain build/emu-plain/train_gpt
	@python3 scripts/performance_page.py build/emu-plain/train_gpt docs/performance.md
ifeq ($(BACKEND),cuda)
CUCC    := $(NVCC)
# ARCHS lists the architectures to compile for: those of this machine's GPUs, or all supported ones if there are none.
# NEWEST is the architecture for which PTX is added, so that later GPUs can run the program; their driver compiles it.
# It is the last of ARCHS. For a GPU newer than this nvcc it is the newest architecture that nvcc knows and that is not
# newer than the GPU.
CAPABLE := $(subst 90,90a,$(shell nvidia-smi --query-gpu=compute_cap --format=csv$(comma)noheader 2>/dev/null | grep -xE '[0-9]+\.[0-9]' | tr -d . | sort -nu))
UNKNOWN := $(filter-out $(call known,$(CAPABLE)),$(CAPABLE))
ifeq ($(origin ARCHS),undefined)
ARCHS   := $(call known,$(or $(CAPABLE),$(SUPPORTED)))
NEWEST  := $(if $(UNKNOWN),$(shell printf '%s\n' $(KNOWN) | awk '$$1 <= $(firstword $(UNKNOWN:a=))' | sort -n | tail -n 1),$(lastword $(ARCHS:a=)))
else
NEWEST   = $(lastword $(ARCHS:a=))
$(if $(filter-out $(call known,$(ARCHS)),$(ARCHS)),$(error ARCHS=$(filter-out $(call known,$(ARCHS)),$(ARCHS)): $(NVCC) compiles for $(KNOWN); leave ARCHS out, or take a newer CUDA toolkit))
endif
CU_PLAIN = -std=c++17 -O3 -lineinfo -I. -MMD -MP -DBACKEND_cuda $(if $(filter 90a,$(ARCHS)),-DHAS_SM90A) $(if $(filter 0,$(NCCL)),-DNO_NCCL) $(DEFS) \
           -Xcompiler $(quote)$(WARN)$(quote)
CUFLAGS  = $(CU_PLAIN) $(foreach a,$(ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) \
           -gencode arch=compute_$(NEWEST)$(comma)code=compute_$(NEWEST)
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcudart_static -lcublasLt $(if $(filter 0,$(NCCL)),,-lnccl) -ldl -lrt
ifeq ($(NCCL),0)
$(B)/comm/nccl.o: comm/nccl.c $(B)/.flags
	$(call short,cc,$< (no NCCL))$(CC) $(CFLAGS) -DNO_NCCL -c -o $@ $<
endif
endif
# lacks: shell commands that print what the build leaves out, one line each.
lacks = $(if $(filter cuda,$(BACKEND)),$(if $(filter 0,$(NCCL)),echo "left out: NCCL$(comma) since nccl.h is not here: ranks on several GPUs would exchange by way of host memory. Install libnccl-dev$(comma) then make";) \
    $(if $(ARCHS_LEFT),echo "left out: code for $(ARCHS_LEFT:%=sm_%)$(comma) which $(NVCC) does not know$(if $(UNKNOWN),; the driver compiles compute_$(NEWEST) for this machine's GPU); a newer CUDA toolkit does";)) \
    $(if $(BACKEND_ASKED),,$(if $(filter cpu,$(BACKEND)),echo "left out: the GPU's part$(comma) since $(if $(NVCC),no NVIDIA GPU is here: make BACKEND=cuda builds it,no nvcc is here: set CUDA_HOME)";))
ARCHS_LEFT = $(or $(UNKNOWN),$(filter-out $(call known,$(SUPPORTED)),$(if $(CAPABLE),,$(SUPPORTED))))
# Targets that need a GPU, or that emulate one.
gpu-check:                 ## on a machine with a GPU: the CUDA build's tests, sanitizers, curves, ranks
	@BACKEND=$(or $(BACKEND_ASKED),cuda) scripts/gpu_check.sh
gpu-bundle:                ## files that such a machine may lack, in build/gpu-bundle/
	@scripts/gpu_bundle.sh
emu-cases: $(B)/test/emu/cases/cases
emu-planted:               ## faults planted in CUDA kernels: the emulator must catch each
	@scripts/emu_planted.sh
