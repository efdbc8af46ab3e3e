#!/usr/bin/env python3
"""Tests the methods tpe and asha of scripts/sweep.py with the Optuna of this Python. The study in Optuna's journal must
agree with the folders of the trials, also after kills and with two drivers. Prints "ok" or "not ok" for each check.

    check_sweeps.py PROGRAM FOLDER      FOLDER/sweep.json is a config of 9 steps, with evaluations
"""

import json
import os
import signal
import subprocess
import sys
import warnings

import optuna

PROGRAM, WORK = sys.argv[1:]
STATUS = 0
SPACE = {
    "optimizer.learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
    "schedule.warmup_steps": {"low": 0, "high": 3, "int": True},
    "optimizer.beta2": {"choices": [0.9, 0.99]},
}
optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def expect(name, good):
    global STATUS  # pylint: disable=global-statement
    print("ok" if good else "not ok", f"{name} (Optuna {optuna.__version__})", flush=True)
    STATUS |= not good


def start(method, out, n):
    command = [
        sys.executable,
        "scripts/sweep.py",
        f"{WORK}/optuna.json",
        f"{WORK}/sweep.json",
        "-n",
        str(n),
        "--method",
        method,
        "--out",
        out,
    ]
    return subprocess.Popen(
        command, env={**os.environ, "TRAIN_GPT": PROGRAM, "SWEEP_PAUSE": "0.3"}, stdout=subprocess.PIPE, text=True
    )


def study_of(out):
    try:
        from optuna.storages.journal import JournalFileBackend as Journal  # pylint: disable=import-outside-toplevel
    except ImportError:
        from optuna.storages import JournalFileStorage as Journal  # pylint: disable=import-outside-toplevel
    return optuna.load_study(
        study_name="sweep", storage=optuna.storages.JournalStorage(Journal(f"{out}/study.journal"))
    )


def states(out):
    names = sorted(name for name in os.listdir(out) if name.startswith("trial_"))
    return [json.load(open(f"{out}/{name}/trial.json", encoding="utf-8")) for name in names]


def agrees(out, n):
    """Returns whether the study has n trials, each with the values, the state and the losses that its folder has."""
    trials, folders = study_of(out).get_trials(), states(out)
    words = {"done": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}
    return len(trials) == len(folders) == n and all(
        trial.params == folder["values"]
        and trial.state.name == words[folder["status"]]
        and trial.intermediate_values == {leg["step"]: leg["loss"] for leg in folder["legs"]}
        for trial, folder in zip(trials, folders)
    )


def main():
    with open(f"{WORK}/optuna.json", "w", encoding="utf-8") as file:
        json.dump(SPACE, file)

    driver = start("tpe", f"{WORK}/tpe", 5)
    said = driver.communicate(timeout=100)[0]
    expect("tpe, 5 trials", driver.returncode == 0 and "to train it again" in said)
    expect("tpe: the study is what the folders say", agrees(f"{WORK}/tpe", 5))
    expect("tpe: all values differ", len({json.dumps(state["values"]) for state in states(f"{WORK}/tpe")}) == 5)

    # simulates a driver that was killed after the study had chosen a trial, before the trial had a folder
    study_of(f"{WORK}/tpe").ask()
    driver = start("tpe", f"{WORK}/tpe", 6)
    driver.communicate(timeout=100)
    expect("tpe: a trial that was asked for by half is completed", driver.returncode == 0 and agrees(f"{WORK}/tpe", 6))

    out = f"{WORK}/asha"
    driver = start("asha", out, 6)
    for line in driver.stdout:  # kills the driver of the sweep in the middle of a study
        if line.startswith("trial 1: step 1"):
            break
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    two = [start("asha", out, 6), start("asha", out, 6)]
    codes = [driver.communicate(timeout=100)[0] and driver.returncode for driver in two]
    expect("asha: killed, then two drivers share the rest", codes == [0, 0] and agrees(out, 6))
    folders = states(out)
    steps = [[leg["step"] for leg in folder["legs"]] for folder in folders]
    expect(
        "asha: trials end at a rung, or at the end",
        all(step in ([1], [1, 3], [1, 3, 9]) for step in steps) and [1, 3, 9] in steps and [1] in steps,
    )
    pruned = [folder["legs"][-1] for folder in folders if folder["status"] == "pruned"]
    best = min(folder["legs"][0]["loss"] for folder in folders)
    expect("asha: the best at the first rung goes on", all(leg["loss"] > best for leg in pruned if leg["step"] == 1))
    sys.exit(STATUS)


if __name__ == "__main__":
    main()
