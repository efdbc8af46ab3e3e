"""Compares the scores of ./train_gpt eval with those of lm-eval: check_eval.py TRAIN_GPT WORK

WORK/bytes and WORK/merged are runs with tokens of bytes and of byte pairs (WORK/bpe/tokenizer.json). lm-eval reads the
same files of questions as its own tasks. It uses the checkpoint as transformers loads it. acc, acc_norm, their standard
errors and perplexity must agree.
"""
import json
import os
import random
import subprocess
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

program, work = sys.argv[1:]
os.environ["HF_DATASETS_CACHE"] = os.path.join(work, "datasets")
draw = random.Random(9)
WORDS = "the quick brown fox jumps over a lazy dog while rain falls on old stones and rivers run to sea Zoë 你好".split()


def text(least, most):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def write(name, items):
    path = os.path.join(work, name + ".jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
    return path


def space():
    return draw.choice(["", "", " ", "\n", "\u00a0 "])


# Questions for the test: contexts that end in white space, are empty, or are longer than the model's 40 positions.
# lm-eval inserts the delimiter between context and choice itself.
choices = [{"context": text(0 if i % 9 == 0 else 1, 14) + space() * (i % 9 != 0), "choices": [text(1, 3) for _ in range(4)], "gold": draw.randrange(4),
            "delimiter": " "} for i in range(150)]
plain = [{key: value for key, value in item.items() if key != "delimiter"} for item in choices]
FILES = {"choices": write("choices", choices), "plain": write("plain", plain),
         "open": write("open", [{"context": text(1, 14), "continuation": draw.choice([" ", " a", " the", " quick", "."])} for i in range(150)])}
SHARED = {"test_split": "test", "dataset_path": "json", "doc_to_text": "context"}
MEANS = {"aggregation": "mean", "higher_is_better": True}
CHOICES = {**SHARED, "output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "gold",
           "metric_list": [{"metric": "acc", **MEANS}, {"metric": "acc_norm", **MEANS}]}
TASKS = {"choices": {**CHOICES, "target_delimiter": " "}, "plain": {**CHOICES, "target_delimiter": ""},
         "open": {**SHARED, "output_type": "loglikelihood", "doc_to_target": "continuation", "target_delimiter": "",
                  "metric_list": [{"metric": "acc", **MEANS}, {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}]}}


def bytes_tokenizer():
    """Returns a tokenizer of transformers in which each token is a byte and its id the byte's value."""
    keys = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [b for b in range(256) if b not in keys]
    letters = {b: chr(b) for b in keys} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab={letters[b]: b for b in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def pairs_tokenizer():
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(work, "bpe", "tokenizer.json"))


def theirs(run, tokenizer, start):
    folder = os.path.join(work, run, "checkpoints", "step_00000012")
    model = HFLM(pretrained=GPT2LMHeadModel.from_pretrained(folder, local_files_only=True).eval(), tokenizer=tokenizer, prefix_token_id=start,
                 batch_size=7, max_length=40, device="cpu")
    tasks = [ConfigurableTask(config={"task": name, "dataset_kwargs": {"data_files": {"test": FILES[name]}}, **TASKS[name]}) for name in TASKS]
    return lm_eval.simple_evaluate(model=model, tasks=tasks, bootstrap_iters=10, log_samples=False)["results"]


def ours(run):
    words = [program, "eval", os.path.join(work, run), "data=", "json=true", "tasks=" + ",".join(FILES[name] for name in TASKS)]
    return {task["task"]: task for task in json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["tasks"]}


NAMES = {"acc": "acc,none", "stderr": "acc_stderr,none", "acc_norm": "acc_norm,none", "acc_norm_stderr": "acc_norm_stderr,none",
         "perplexity": "perplexity,none"}
failed = False
pairs = pairs_tokenizer()
for run, tokenizer, start in (("bytes", bytes_tokenizer(), 10), ("merged", pairs, pairs.convert_tokens_to_ids("<|endoftext|>"))):
    expected, found = theirs(run, tokenizer, start), ours(run)
    for name in TASKS:
        wrong = [f"{key} is {found[name][key]}, lm-eval's {expected[name][long]}" for key, long in NAMES.items()
                 if key in found[name] and abs(found[name][key] - expected[name][long]) > 1e-5 * abs(expected[name][long])]
        told = ", ".join(f"{key} {found[name][key]:.4f}" for key in NAMES if key in found[name])
        print(f"{'not ok' if wrong else 'ok'} lm-eval {lm_eval.__version__} scores {name} of {run} the same: {'; '.join(wrong) or told}")
        failed |= bool(wrong)
sys.exit(failed)
