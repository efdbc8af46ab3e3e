"""One trial of a sweep: a training run with its own values, in a folder with its state (trial.json). The program
trains it leg by leg: from one stop to the next."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import time

from run_files import (
    EXIT_DATA,
    EXIT_IO,
    EXIT_MISSING,
    Stop,
    fault_of,
    is_number,
    open_regular,
    read_json,
    rows_of,
    write_file,
)

FINISHED = ("done", "pruned", "failed")
RESUMED = (75, 77)  # exit codes of a trial that the same command continues: 75 stopped and saved, 77 a rank was lost
LOCKED = 73  # exit code of the program while another process uses the run folder
PATIENCE = 3  # number of resumes in a row without a new step after which a trial is given up
CODES = {1: "of the job", 64: "config", 65: "data or checkpoint", 69: "no GPU, MPI or NCCL", 70: "internal error"}
CODES.update({71: "out of memory", 74: "I/O", 75: "stopped", 76: "wrong numbers", 77: "a rank lost"})


def words_of(values):
    """Returns values as key=value words for the command line of the program."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def within(spec, value):
    """Returns True if the range or the choices of a key (spec) allow the value."""
    if "choices" in spec:
        return value in spec["choices"]
    return is_number(value) and spec["low"] <= value <= spec["high"]


class Trial:
    """A trial of a sweep. state is the content of its trial.json. legs: [{"step", "loss"}] of the parts trained so
    far. state["copies"]: steps at which the method pbt replaced the weights by those of another trial."""

    def __init__(self, sweep, number):
        self.number, self.space = number, sweep.space
        self.dir = f"{sweep.out}/trial_{number:04d}"
        self.claimed = None
        self.load()

    def load(self):
        path = f"{self.dir}/trial.json"
        cure = "remove it: the trial goes on from its newest checkpoint"
        self.state = read_json(path, cure)
        fault = None if self.state is None else self.fault()
        if fault:
            raise Stop(EXIT_DATA, f"{path}: damaged: {fault}; {cure}")

    def fault(self):
        """Returns a sentence if the state does not have the shape that save() writes, otherwise None."""
        kinds = {"values": dict, "status": str, "legs": list, "copies": list, "reason": str}
        wrong = [name for name, kind in kinds.items() if not isinstance(self.state.get(name), kind)]
        if wrong or not is_number(self.state.get("seconds")) or not isinstance(self.state.get("job", ""), str):
            return f'"{(wrong or ["seconds or job"])[0]}" is missing, or of another kind'
        if self.state.get("number") != self.number:
            return f'"number" is not {self.number}'
        if self.status not in ("waiting", "running", *FINISHED):
            return f'"status" is {self.status}'
        if set(self.values) != set(self.space) or not all(within(self.space[key], self.values[key]) for key in self.space):
            return "its values are not of this space"
        steps = self.legs + self.state["copies"]
        if not all(isinstance(item, dict) and is_number(item.get("step"), whole=True) for item in steps):
            return "a leg or a copy without its step"
        if not all(is_number(leg.get("loss")) for leg in self.legs) or self.status == "done" and not self.legs:
            return "a leg without its loss"
        return None

    def create(self, values):
        os.makedirs(self.dir, exist_ok=True)
        self.state = {"number": self.number, "values": values, "status": "waiting", "legs": [], "copies": []}
        self.state.update(reason="", seconds=0.0)
        self.save()

    def save(self):
        write_file(f"{self.dir}/trial.json", json.dumps(self.state, indent=1) + "\n")

    def finish(self, status, reason=""):
        self.state.update(status=status, reason=reason)
        self.save()

    status = property(lambda self: self.state["status"])
    values = property(lambda self: self.state["values"])
    legs = property(lambda self: self.state["legs"])
    finished = property(lambda self: self.status in FINISHED)
    step = property(lambda self: self.legs[-1]["step"] if self.legs else 0)
    loss = property(lambda self: self.legs[-1]["loss"] if self.legs else None)

    def claim(self):
        """Claims the trial for this process. Returns False if another process trains it, or if it is finished. The
        claim is a file lock, so it ends with the process, however that ends."""
        claim = open_regular(f"{self.dir}/claim", os.O_RDWR | os.O_CREAT)
        file = open(claim, "wb")  # pylint: disable=consider-using-with
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self.claimed = file
        self.load()  # loads the trial's state again, because another process of this sweep may have changed it
        if self.finished:
            self.release()
            return False
        return True

    def release(self):
        self.claimed.close()
        self.claimed = None

    def reached(self):
        """Returns the step of the newest checkpoint, -1 if there is none."""
        try:
            names = os.listdir(f"{self.dir}/checkpoints")
        except FileNotFoundError:
            return -1
        return max((int(name[5:]) for name in names if re.fullmatch(r"step_\d+", name)), default=-1)

    def read_loss(self, step, kind, which):
        """Returns the loss that judges the trial at a step. kind "eval": the last validation loss up to that step,
        or the lowest one if which is "best". kind "train": the mean of the last 20 training losses. Returns None if
        there is no loss, or the last one is not finite."""
        found = []
        with contextlib.suppress(FileNotFoundError), open(open_regular(f"{self.dir}/metrics.jsonl"), "rb") as file:
            for row, _ in rows_of(file):
                loss = row.get("loss", "none")
                if row["kind"] == kind and row["step"] <= step and (loss is None or is_number(loss)):
                    found.append(loss)
        if not found or found[-1] is None:
            return None
        found = [loss for loss in found if loss is not None]
        if kind == "train":
            return sum(found[-20:]) / len(found[-20:])
        return min(found) if which == "best" else found[-1]

    def reason_of(self, code):
        """Returns a line that says why the program ended with this exit code."""
        if code < 0 or code > 128:
            number = -code if code < 0 else code - 128
            try:
                return f"killed by {signal.Signals(number).name}"
            except ValueError:
                return f"exit {code}"
        lines = []
        with contextlib.suppress(FileNotFoundError), open(f"{self.dir}/sweep.log", "rb") as file:
            file.seek(-min(8000, os.fstat(file.fileno()).st_size), os.SEEK_END)
            lines = file.read().decode("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if "error" in line or line.startswith("train_gpt:")]
        return f"exit {code} ({CODES.get(code, 'unknown')}){': ' + said[-1][:200] if said else ''}"


def open_log(trial):
    return open(open_regular(f"{trial.dir}/sweep.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def run_program(sweep, trial, words):
    """Trains on this machine and returns the exit code of the program. A request to stop the sweep reaches the
    program as SIGUSR1, which mpirun passes on to its ranks."""
    with open_log(trial) as log:
        try:
            child = subprocess.Popen(
                sweep.launch + [sweep.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise Stop(EXIT_MISSING, f"cannot be started: {fault_of(error)}") from error
    with sweep.children(child):
        return child.wait()


def run_job(sweep, trial, words, target):
    """Trains as a SLURM job. Returns 0 if a checkpoint of step `target` exists then, 75 if the sweep is asked to
    stop while the job goes on, otherwise 1. trial.json keeps the number of the job, so that a later call finds the
    job again. A job that has saved step `target` and waits to be started once more is cancelled."""

    def said_by(*command):
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)

    if not trial.state.get("job"):
        done = said_by(
            "sbatch", "--parsable", f"--output={trial.dir}/sweep.log", *sweep.sbatch, "scripts/train.sbatch", *words
        )
        if done.returncode:
            with open_log(trial) as log:
                log.write(("error: sbatch: " + done.stderr).encode())
            return 1
        trial.state["job"] = done.stdout.strip().split(";")[0]
        trial.save()
    while True:
        seen = said_by("squeue", "-h", "-j", trial.state["job"], "-o", "%T")
        state = seen.stdout.strip()
        if not state and (seen.returncode == 0 or "Invalid job id" in seen.stderr):  # else SLURM does not answer now
            break
        if sweep.stopping:
            return 75
        if trial.reached() >= target and state not in ("", "RUNNING", "COMPLETING"):
            said_by("scancel", trial.state["job"])
            break
        sweep.wait(sweep.pause)
    trial.state["job"] = ""
    trial.save()
    return 0 if trial.reached() >= target else 1


def train_leg(sweep, trial, target):
    """Trains a claimed trial until step `target` is done, saved and evaluated. Adds the leg, or the failure, to the
    state of the trial. Returns False if the sweep was asked to stop before that, otherwise True."""
    stop_step = target if target < sweep.steps_of(trial) else 0
    words = [sweep.config, f"run.dir={trial.dir}", *sweep.words, *words_of(trial.values), f"run.stop_step={stop_step}"]
    began, idle, code = time.monotonic(), 0, 0
    trial.state["status"] = "running"
    trial.save()
    while not sweep.stopping:
        before = trial.reached()
        code = run_job(sweep, trial, words, target) if sweep.sbatch is not None else run_program(sweep, trial, words)
        if trial.reached() >= target and code in (0, 75):
            break
        if sweep.stopping:
            return False
        # ends the sweep, because the disk may be full: that is no fault of the trial, and other trials would fail too
        if code == EXIT_IO:
            raise OSError(f"trial {trial.number}: {trial.reason_of(code)}")
        if code == LOCKED:
            sweep.say(f"trial {trial.number}: another process trains in {trial.dir}; waiting for it")
            sweep.wait(5 * sweep.pause)
            continue
        idle = 0 if trial.reached() > before else idle + 1
        if code not in RESUMED or idle == PATIENCE:
            trial.finish("failed", trial.reason_of(code))
            return True
    if sweep.stopping and trial.reached() < target:
        return False
    loss = trial.read_loss(target, sweep.kind, sweep.which)
    trial.state["seconds"] += time.monotonic() - began
    if not is_number(loss):
        trial.finish("failed", f"no finite {sweep.loss_name} at step {target}")
        return True
    trial.legs.append({"step": target, "loss": loss})
    if target == sweep.steps_of(trial):
        trial.state["status"] = "done"
    trial.save()
    return True
