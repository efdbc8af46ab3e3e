"""Measures which of two configs learns more in the same time. The first config trains as it is. The second trains as
many steps as take the same time. Short runs of both, alternating because a busy machine slows both, tell how many. Both
runs resume: the same command continues after a kill.

    test/bench/loss_presets.sh NAME FIRST.json SECOND.json [key=value ...]      keys: for both configs

PAIRS=n: number of pairs of short runs, 5 by default. THREADS=1: measures processor time, so that other programs on the
machine do not count. With any other number of threads, 2 by default, elapsed time is measured. Prints a line of
key=value pairs.
"""
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

PROGRAM, THREADS = os.environ.get("TRAIN_GPT", "./train_gpt"), os.environ.get("THREADS", "2")
PAIRS, LEAST_STEPS, MOST_STEPS = int(os.environ.get("PAIRS", "5")), 3, 23
QUIET = ["sample.every=0", "log.tensorboard=false", "log.every=100"]


def train(config, folder, keys):
    """Trains with a config and returns the seconds from start to end: processor time with one thread, else elapsed
    time."""
    def now():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime if THREADS == "1" else time.monotonic()
    begin = now()
    run = subprocess.run([PROGRAM, config, f"run.dir={folder}", *QUIET, *keys], env={**os.environ, "OMP_NUM_THREADS": THREADS},
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(f"loss_presets: {config}: exit {run.returncode}\n{run.stderr}")
    return now() - begin


def step_ms(config, keys):
    """Returns the milliseconds of a step, from the difference of a longer and a shorter run. Both contain the time
    of the start, which cancels."""
    def run(steps):
        shutil.rmtree("runs/presets/time", ignore_errors=True)
        return train(config, "runs/presets/time", [*keys, f"run.steps={steps}", "schedule.warmup_steps=1", "data.val=[]",
                                                   "eval.every=0", "checkpoint.every=0"])
    short = run(LEAST_STEPS)
    return 1e3 * (run(MOST_STEPS) - short) / (MOST_STEPS - LEAST_STEPS)


def losses(folder):
    rows = [json.loads(line) for line in open(f"{folder}/metrics.jsonl") if '"kind":"eval"' in line]
    return {row["step"]: row["loss"] for row in rows}


def saved(folder):
    return json.load(open(f"{folder}/config.json"))


def main():
    name, first, second, *keys = sys.argv[1:]
    times = [(step_ms(first, keys), step_ms(second, keys)) for _ in range(PAIRS)]
    ratio = statistics.median(a / b for a, b in times)
    one, two = f"runs/presets/{name}.first", f"runs/presets/{name}.second"
    train(first, one, keys)
    steps = saved(one)["run"]["steps"]
    if os.path.exists(f"{two}/config.json"):
        same_time = saved(two)["run"]["steps"]
    else:
        same_time = round(steps * ratio)
    train(second, two, [*keys, f"run.steps={same_time}", f"eval.every={same_time}"])
    a, b = losses(one)[steps], losses(two)[same_time]
    first_ms, second_ms = (statistics.median(column) for column in zip(*times))
    clock = "processor" if THREADS == "1" else "wall"
    print(f"name={name} first={first} second={second} threads={THREADS} clock={clock} first_ms={first_ms:.2f} second_ms={second_ms:.2f} "
          f"time_ratio={ratio:.4f} first_steps={steps} second_steps={same_time} first_loss={a:.4f} second_loss={b:.4f} "
          f"below_percent={100 * (1 - a / b):.2f}")


main()
