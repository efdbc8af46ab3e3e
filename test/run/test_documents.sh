# data.document_mask (attention only within a document), end to end: on every axis of the grid, over a resume, in
# evaluation, its defaults, and what is refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib/tiny.sh"
# Writes documents of one to nine words, so that most sequences hold several documents and some documents lie in two
# sequences.
sed 's/\.$//' "$WORK/text.txt" | awk '{ for (i = 1; i <= NF; i += n) { n = 1 + (NR * 5 + i * 3) % 9; line = ""; for (k = i; k < i + n && k <= NF; k++) line = line $k " "; print "{\"text\": \"" line "\"}" } }' > "$WORK/texts.jsonl"
"$TRAIN" train-tokenizer "$WORK/text.txt" out="$WORK/bpe" vocab_size=280 > /dev/null &&
    "$TRAIN" tokenize "$WORK/texts.jsonl" out="$WORK/documents" tokenizer="$WORK/bpe" val=0.1 > /dev/null || { echo "not ok tokenize"; exit 1; }
TEXTS="model.vocab_size=280 data.train=$WORK/documents/train_*.bin data.val=$WORK/documents/val_*.bin"
LLAMA="$TEXTS model.arch=llama model.n_embd=64 model.n_head=4 model.n_kv_head=2 model.n_inner=96"
GPT2="$TEXTS model.n_embd=64 model.n_head=4 data.document_mask=true"
heard() { "$@" > /dev/null 2>&1; }
differ() { ! same_losses "$1" "$2" 1e-4; }

like() { # OF NAME RANKS KEY=VALUE...
    local of=$1 name=$2 n=$3; shift 3
    expect "$name" heard train_ranks "$n" run.dir="$WORK/$name" "$@"
    like_one_rank "$name" "$of"
}
SHORT="run.steps=4 eval.every=4"
LONG="$SHORT model.n_positions=256 batch.seq_len=256 batch.global_tokens=1024"
for kind in LLAMA GPT2; do
    expect "$kind" quiet train ${!kind} run.dir="$WORK/$kind"
    expect "$kind, short" quiet train ${!kind} $SHORT run.dir="$WORK/$kind-short"
    expect "$kind, long" quiet train ${!kind} $LONG run.dir="$WORK/$kind-long"
    expect "$kind: the mask changes the losses" heard train ${!kind} $SHORT data.document_mask=false run.dir="$WORK/$kind-whole"
    expect "$kind: the mask changes the losses, indeed" differ "$WORK/$kind-short" "$WORK/$kind-whole"
    like $kind-short $kind-tensor 2 ${!kind} $SHORT parallel.tensor=2
    like $kind-short $kind-stages 2 ${!kind} $SHORT parallel.pipeline=2
    like $kind-short $kind-zero3 2 ${!kind} $SHORT parallel.zero_stage=3
    like $kind-long $kind-context 2 ${!kind} $LONG parallel.context=2
    expect "$kind: blocks computed again" heard train ${!kind} $SHORT run.dir="$WORK/$kind-again" memory.recompute=block
    expect "$kind: blocks computed again, the same bits" same_weights "$WORK/$kind-short" "$WORK/$kind-again" step_00000004
    train ${!kind} run.dir="$WORK/$kind-half" run.stop_step=6 > /dev/null 2>&1
    expect "$kind: a stopped run goes on from its folder" heard "$TRAIN" "$WORK/$kind-half" run.stop_step=0
    expect "$kind: with the same bits" same_weights "$WORK/$kind" "$WORK/$kind-half" step_00000012
done
expect "stages of two parts" heard train_ranks 2 $LLAMA $SHORT model.n_layer=4 parallel.pipeline=2 parallel.interleave=2 batch.micro_batch=2 run.dir="$WORK/parts"
train $LLAMA $SHORT model.n_layer=4 batch.micro_batch=2 run.dir="$WORK/parts1" > /dev/null 2>&1
expect "stages of two parts: losses of one rank" same_losses "$WORK/parts" "$WORK/parts1" 1e-5

last_eval() { values "$WORK/$1" eval loss | tail -n 1; }
verb() { "$TRAIN" eval "$@" json=true | sed -E 's/.*"loss":([^,]*),.*/\1/'; }
is_near() { echo "$1" > "$WORK/.a"; echo "$2" > "$WORK/.b"; near "$WORK/.a" "$WORK/.b" 1e-5; }
expect "eval: the loss of the run's last evaluation" is_near "$(verb "$WORK/LLAMA")" "$(last_eval LLAMA)"
expect "eval: gpt2's, too" is_near "$(verb "$WORK/GPT2")" "$(last_eval GPT2)"

# A tokenizer of bytes has no end-of-text token, so documents cannot be told apart. By default nothing is masked, and a
# config that sets data.document_mask is refused.
BYTES="model.arch=llama model.n_embd=64 model.n_head=4 model.n_inner=96 $SHORT"
expect "bytes" heard train $BYTES run.dir="$WORK/bytes"
expect "bytes: without the mask" heard train $BYTES data.document_mask=false run.dir="$WORK/bytes0"
expect "bytes: the same bits" same_weights "$WORK/bytes" "$WORK/bytes0" step_00000004
expect "bytes: goes on from its folder" heard "$TRAIN" "$WORK/bytes" run.steps=5 run.allow_change='["run.steps"]'
expect "bytes: the mask is refused" exits 64 'data.document_mask = true: .* which bytes have not' train $BYTES data.document_mask=true run.dir="$WORK/x"
expect "bytes: check refuses it, too" exits 64 'data.document_mask = true' "$TRAIN" check "$WORK/tiny.json" data.document_mask=true
expect "a resume with another mask" exits 64 'data.document_mask is false, in the checkpoint true' train $LLAMA data.document_mask=false run.dir="$WORK/LLAMA"
exit $STATUS
