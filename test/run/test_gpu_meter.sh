# The GPU's load, power and memory in the output, read by NVIDIA's management library, which is simulated here.
. "$(dirname "$0")/lib/tiny.sh"
expect "libraries to ask" eval 'gcc -shared -fPIC -o "$WORK/nvml.so" test/preload/nvml.c && gcc -DFAILS -shared -fPIC -o "$WORK/fails.so" test/preload/nvml.c && echo "int x;" | gcc -x c -shared -fPIC -o "$WORK/empty.so" -'
# asks LIBRARY VERB_OR_CONFIG ...: runs the program with LIBRARY in place of NVIDIA's management library (NVML)
asks() { local library=$1; shift; TRAIN_GPT_NVML=$library "$TRAIN" "$@" > "$WORK/out" 2> "$WORK/err"; }
short() { asks "$1" "$WORK/tiny.json" run.dir="$WORK/$2" run.steps=12 eval.every=0 checkpoint.every=0; }

export NVML_READ=$WORK/read
began=$SECONDS
expect "a run that asks it" short "$WORK/nvml.so" asked
expect "has the values in each step's line" [ "$(grep -c '"gpu_use":0.87,"gpu_power_w":312.5,"gpu_memory_bytes":5368709120,"gpu_temperature_c":61}' "$WORK/asked/metrics.jsonl")" -eq 12 ]
expect "  and the process's memory" [ "$(values "$WORK/asked" train memory_bytes | awk '$1 > 1e6' | wc -l)" -eq 12 ]
expect "  which readers take as before" eval '"$TRAIN" plot "$WORK/asked" out="$WORK/plot.svg" > /dev/null'
expect "it is asked once a second at most" [ "$(wc -c < "$WORK/read")" -le $((SECONDS - began + 2)) ]
expect "doctor says what is read" eval 'asks "$WORK/nvml.so" doctor run.dir="$WORK"; grep -q "^ok    NVML       use, power, memory, temperature, in metrics.jsonl" "$WORK/out"'

for case in "fails answers with NVML's error 9" "empty has no reading of this GPU" "none cannot open shared object file: No such file or directory"; do
    library=${case%% *} why=${case#* }
    expect "a library that is no use ($library)" short "$WORK/$library.so" "$library"
    expect "  costs nothing and says nothing" eval '! grep -q . "$WORK/err" && ! grep -q "gpu_" "$WORK/$library/metrics.jsonl" && ! grep -qi nvml "$WORK/out"'
    expect "  but in doctor" eval 'asks "$WORK/$library.so" doctor run.dir="$WORK"; grep -q "^warn  NVML .*$why: metrics.jsonl gets no use" "$WORK/out"'
done
expect "a build for the CPU asks none of itself" eval 'asks "" doctor run.dir="$WORK"; ! grep -q NVML "$WORK/out"'
exit $STATUS
