# Training in one process: the loss falls, a repeated run has equal bits, and so has a resumed one.
. "$(dirname "$0")/lib/tiny.sh"

expect "trains to the end" quiet train run.dir="$WORK/a"
expect "12 train lines, steps 1..12" [ "$(steps_of "$WORK/a")" = "1 2 3 4 5 6 7 8 9 10 11 12 " ]
expect "evals at 0, 6, 12" [ "$(steps_of "$WORK/a" eval)" = "0 6 12 " ]
expect "tokens count" [ "$(values "$WORK/a" train tokens | tail -1)" = 5760 ]
expect "starts at ln 256, learns" awk -v first="$(values "$WORK/a" eval loss | head -1)" -v last="$(values "$WORK/a" eval loss | tail -1)" \
    'BEGIN { exit !(first > 5.4 && first < 5.7 && last < first - 0.3) }'
expect "learning rate: warm-up by thirds, cosine to a tenth" awk -v lr="$(values "$WORK/a" train lr | tr '\n' ' ')" \
    'BEGIN { split(lr, x, " "); pi = atan2(0, -1); p = 8 / 9; e = 1e-3 * (0.1 + 0.9 * (1 + cos(pi * p)) / 2); d = x[12] / e - 1;
             exit !(x[1] > 3.33e-4 && x[1] < 3.34e-4 && x[3] == 1e-3 && x[4] == 1e-3 && d < 1e-6 && d > -1e-6) }'
expect "wall clock, hours and epochs go up" awk -v time="$(values "$WORK/a" train time | tr '\n' ' ')" -v hours="$(values "$WORK/a" train hours | tr -d '}' | tr '\n' ' ')" -v now="$(date +%s)" \
    'BEGIN { n = split(time, t, " "); split(hours, h, " "); for (i = 2; i <= n; i++) if (t[i] < t[i - 1] || h[i] <= h[i - 1]) exit 1; exit !(n == 12 && t[1] > now - 600 && t[12] < now + 600) }'
expect "an epoch is all samples of its one file" awk -v epoch="$(values "$WORK/a" train epoch | tail -1 | tr -d '}')" -v all=$((($(cat "$WORK"/data/train_*.bin | wc -c) - 1024 * $(ls "$WORK"/data/train_*.bin | wc -l)) / 2)) \
    'BEGIN { d = epoch * int((all - 1) / 40) - 144; exit !(d < 0.001 && d > -0.001) }'
expect "bits per byte of a byte model" awk -v loss="$(values "$WORK/a" eval loss | tail -1)" -v bpb="$(values "$WORK/a" eval bpb | tail -1)" 'BEGIN { d = loss / log(2) - bpb; exit !(d < 1e-6 && d > -1e-6) }'
events() { values "$1" event event | tr -d '"' | paste -d' ' - <(values "$1" event step) | tr '\n' ','; }
expect "each save is an event" [ "$(events "$WORK/a")" = "save 6,save 12," ]
expect "loss.svg and config.json are there" [ -s "$WORK/a/loss.svg" -a -s "$WORK/a/config.json" ]
expect "checkpoints at 6 and 12" [ "$(ls "$WORK/a/checkpoints" | tr '\n' ' ')" = "step_00000006 step_00000012 " ]

train run.dir="$WORK/b" log.tensorboard=false > /dev/null
expect "TensorBoard's files are there, or are not" [ "$(ls "$WORK/a/tb" | grep -c '^events.out.tfevents.[0-9]\{10\}\.')" -eq 1 -a ! -e "$WORK/b/tb" ]
expect "the same run again: same bits" same_weights "$WORK/a" "$WORK/b" step_00000012
expect "the same losses to the last digit" same_losses "$WORK/a" "$WORK/b" 0

rm -r "$WORK/b/checkpoints/step_00000012"
printf '{"kind":"train","step":13,"lo' >> "$WORK/b/metrics.jsonl"
train run.dir="$WORK/b" > "$WORK/out"
expect "once, memory beside the plan's" [ "$(grep -cE '^memory [0-9.]+ MiB after the first step, [0-9.]+ MiB planned$' "$WORK/out")" -eq 1 ]
expect "resumes at 6" grep -q "step 6, saved by 1 rank, now 1" "$WORK/out"
expect "resumed equals unbroken, bit for bit" same_weights "$WORK/a" "$WORK/b" step_00000012
expect "metrics without gap or repetition" [ "$(steps_of "$WORK/b")" = "1 2 3 4 5 6 7 8 9 10 11 12 " ]
expect "evals not repeated" [ "$(steps_of "$WORK/b" eval)" = "0 6 12 " ]
expect "a resume is an event" grep -qE "^(save 6,)?resume 6,save 12,$" <(events "$WORK/b")
expect "resumed losses to the last digit" same_losses "$WORK/a" "$WORK/b" 0

cp -r "$WORK/b" "$WORK/c"
expect "nothing left to do: exit 0, one line" [ "$(train run.dir="$WORK/c" | wc -l)" -eq 1 ]
expect "and nothing written" diff -r "$WORK/b" "$WORK/c"
train run.dir="$WORK/c" run.steps=14 schedule.name=constant 'run.allow_change=["schedule.name"]' > "$WORK/out"
expect "more steps go on from the end" grep -q "step 12, saved by 1 rank" "$WORK/out"
expect "and reach it" [ "$(values "$WORK/c" train step | tail -1)" = 14 ]

for micro in 2 3 6 12; do
    train run.dir="$WORK/m$micro" batch.micro_batch=$micro > /dev/null
    expect "micro-batches of $micro: same losses" same_losses "$WORK/a" "$WORK/m$micro" 1e-6
    expect "micro-batches of $micro: same gradient norms" same_norms "$WORK/a" "$WORK/m$micro" 2e-6
done
for recompute in light block; do
    train run.dir="$WORK/$recompute" memory.recompute=$recompute > /dev/null
    expect "memory.recompute=$recompute: same losses" same_losses "$WORK/a" "$WORK/$recompute" 1e-6
done
train run.dir="$WORK/bf16" precision=bf16 > /dev/null
expect "bf16 follows fp32 within 1 %" same_losses "$WORK/bf16" "$WORK/a" 1e-2
train run.dir="$WORK/unclipped" optimizer.grad_clip=0 run.steps=3 > /dev/null
expect "grad_norm is the norm before clipping" [ "$(values "$WORK/unclipped" train grad_norm | head -1)" = "$(values "$WORK/a" train grad_norm | head -1)" ]
train run.dir="$WORK/plain" data.shuffle=false run.steps=2 > /dev/null
expect "plain order is another order" [ "$(values "$WORK/plain" train loss | tail -1)" != "$(values "$WORK/a" train loss | sed -n 2p)" ]

expect "sample prints text" [ "$("$TRAIN" sample "$WORK/a" tokens=40 | wc -c)" -ge 40 ]
expect "the same seed, the same text" [ "$("$TRAIN" sample "$WORK/a" tokens=40 seed=5)" = "$("$TRAIN" sample "$WORK/a" tokens=40 seed=5)" ]
train run.dir="$WORK/from" model.init_from="$WORK/a/checkpoints/step_00000012" run.steps=1 eval.every=1 > /dev/null
expect "init_from starts where the weights were" [ "$(values "$WORK/from" eval loss | head -1)" = "$(values "$WORK/a" eval loss | tail -1)" ]
exit $STATUS
