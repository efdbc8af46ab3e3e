#!/usr/bin/env bash
# `make sass`: the parser of the output of ptxas and nvdisasm, and the checks, tested on texts of a few lines. nvcc is
# not needed.
. "$(dirname "${BASH_SOURCE[0]}")/lib/expect.sh"
cat > "$WORK/said" <<'EOF2'
ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ... in the function '_Z8a_kernelPf'
ptxas info    : Compiling entry function '_Z8a_kernelPf' for 'sm_90a'
ptxas info    : Function properties for _Z8a_kernelPf
    24 bytes stack frame, 20 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 528 bytes smem
ptxas info    : Compiling entry function '_Z8b_kernelPf' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers
EOF2
# Two loops with matrix products, one inside the other, and a waiting loop without products. A slow path after the end
# jumps back into the outer loop.
cat > "$WORK/code" <<'EOF2'
	.section	.text._Z8a_kernelPf,"ax",@progbits
.text._Z8a_kernelPf:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E R2, [R4] ;
        /*0020*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
.L_x_2:
        /*0030*/                   LDSM.16.M88.4 R4, [R9] ;
        /*0040*/                   LDS R5, [R9] ;
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0060*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0070*/              @!P0 BRA `(.L_x_2) ;
.L_x_3:
        /*0080*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R9], R2 ;
        /*0090*/              @!P0 BRA `(.L_x_3) ;
        /*00a0*/               @P2 BRA `(.L_x_5) ;
.L_x_4:
        /*00b0*/               @P1 BRA `(.L_x_1) ;
        /*00c0*/                   EXIT ;
.L_x_5:
        /*00d0*/                   MUFU.RCP R2, R2 ;
        /*00e0*/                   BRA `(.L_x_4) ;
.L_x_6:
        /*00f0*/                   BRA `(.L_x_6);
EOF2
# A correct kernel. It waits before its first load, gives up registers and takes others (setmaxnreg), and has a product
# in flight when the loop repeats.
cat > "$WORK/clean" <<'EOF2'
.text._Z8c_kernelPf:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   ACQBULK ;
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/               @P0 BRA `(.L_x_2) ;
        /*0040*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x80 ;
.L_x_1:
        /*0050*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT, gsb0 ;
        /*0060*/                   HGMMA.64x64x16.F32.BF16 R56, R8, gdesc[UR4].tnspB, R56 ;
        /*0070*/                   HGMMA.64x64x16.F32.BF16 R56, R12, gdesc[UR4].tnspB, R56, gsb0 ;
        /*0080*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0090*/                   FADD R127, R24, R8 ;
        /*00a0*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*00b0*/                   F2FP.BF16.F32.PACK_AB R8, R57, R56 ;
        /*00c0*/              @!P1 BRA `(.L_x_1) ;
        /*00d0*/                   EXIT ;
.L_x_2:
        /*00e0*/                   USETMAXREG.DEALLOC.CTAPOOL 0x18 ;
        /*00f0*/                   IMAD.WIDE R22, R2, 0x4, R4 ;
        /*0100*/                   EXIT ;
EOF2
python3 - "$WORK" <<'EOF2'
import sys
sys.path.insert(0, "scripts")
import sass
said = sass.resources(sys.argv[1] + "/said")
(name, code, labels), = sass.functions(open(sys.argv[1] + "/code").read())
got = sass.instructions(code, labels)
def expect(what, holds):
    print(("ok " if holds else "not ok ") + what)
expect("ptxas' words are read", said == {
    "_Z8a_kernelPf": {"warnings": {"C7510"}, "stack": 24, "spill": 48, "registers": 255, "shared": 528},
    "_Z8b_kernelPf": {"warnings": set(), "stack": 0, "spill": 0, "registers": 40, "shared": 0}})
expect("the innermost loop with products is the hot one", name == "_Z8a_kernelPf" and got == {
    "mma": "HGMMA:2 HMMA:1", "loop": 5, "mma/l": 2, "shared/l": 2, "global/l": 0})
starts, next_of = sass.blocks_of(code, labels)
sizes = sorted(len(body) for body in sass.natural_loops(next_of))
expect("a jump back from behind the end makes no loop of its own", sizes == [1, 1, 6])
old = {"arch": "90a", "kernel": "x:a", "registers": 90, "stack": 0, "spill": 0, "shared": 1024, "mma": "HGMMA:8", "loop": 100,
       "mma/l": 8, "shared/l": 0, "global/l": 1, "warnings": "-"}
def worse(**change):
    return list(sass.worse(old | change, old, True)) + list(sass.alone(old | change))
expect("the same is not worse, nor is what is better",
       not worse() and not worse(loop=80, registers=80, shared=512) and not worse(loop=103, registers=96))
for what, change in {"registers that cost warps": {"registers": 112}, "a spill": {"spill": 4}, "a larger stack": {"stack": 8},
                     "more shared memory": {"shared": 2048}, "no wgmma": {"mma": "HMMA:64"}, "no tensor cores": {"mma": "-"},
                     "a longer loop": {"loop": 110}, "more loads of a product": {"shared/l": 4},
                     "more global loads of a product": {"global/l": 2}, "a warning": {"warnings": "C7508"}}.items():
    expect(what + " is worse", len(worse(**change)) == 1)
expect("a loop unrolled further is not worse", not worse(loop=200, **{"mma/l": 16, "global/l": 2}))
clean = open(sys.argv[1] + "/clean").read()
def faults(old="", new=""):
    assert old in clean
    (_, code, labels), = sass.functions(clean.replace(old, new))
    return sass.hazards(code, *sass.blocks_of(code, labels))
expect("a kernel without hazards has none", faults() == [])
for what, old, new in [
        ("sums read before the wait", "R127, R24, R8", "R127, R56, R8"), ("sums written before the wait", "FADD R127", "FADD R87"),
        ("the last of a wide load into sums", "FADD R127, R24, R8", "LDS.128 R84, [R9]"),
        ("sums stored before the wait", "FADD R127, R24, R8", "STS.128 [R9], R53"),
        ("a left factor overwritten", "FADD R127", "FADD R15"), ("a left factor overwritten by four matrices", "FADD R127, R24, R8", "LDSM.16.M88.4 R6, [R2]"),
        ("a wait for too few", "0x0 ;\n        /*00b0", "0x1 ;\n        /*00b0"),
        ("products that share some sums", "R56, R12, gdesc[UR4].tnspB, R56", "R40, R12, gdesc[UR4].tnspB, R40"),
        ("a left factor from sums in flight", "R56, R12,", "R56, R24,"),
        ("a register too many", "IMAD.WIDE R22", "IMAD.WIDE R23"), ("a register too many for more", "FADD R127", "FADD R128"),
        ("memory read before the wait for kernels", "LDC R1, c[0x0][0x28]", "LDG.E R1, [R2]")]:
    expect(what + " is a hazard", len(faults(old, new)) >= 1)
expect("names are plain", sass.plain("void a_kernel<__nv_bfloat16, (int)64, (bool)1>(Heads, __half const*)") == "a_kernel<bf16,64,1>")
EOF2
