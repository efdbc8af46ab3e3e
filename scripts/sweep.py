#!/usr/bin/env python3
"""Searches for good values of config keys: trains one run for each trial, in a folder of its own.

    sweep.py SPACE.json CONFIG.json [key=value ...] -n 32 --method random|tpe|asha|pbt

SPACE.json: {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": true},
             "schedule.warmup_steps": {"low": 10, "high": 100, "int": true},
             "optimizer.beta2": {"choices": [0.95, 0.99]}}
docs/sweeps.md describes all options. After a kill the same command continues the sweep. Several processes may work on
one sweep, in the same folder.
Exit codes: 0 done, 1 no trial reached its last step, 64 a fault in space, config or options, 65 no data, or a damaged
file of the sweep, 69 no Optuna or no program, 73 the folder is used by another sweep, 74 I/O, 75 stopped.
"""

# run_files is imported first, because from then on Ctrl-C ends the script with exit code 75, also while Python loads
# the rest.
# pylint: disable=wrong-import-order
from run_files import (
    EXIT_CONFIG,
    EXIT_DATA,
    EXIT_IO,
    EXIT_LOCKED,
    EXIT_MISSING,
    EXIT_STOPPED,
    MOST_BYTES,
    Stop,
    fault_of,
    is_number,
    open_regular,
    parse_json,
    read_json,
    run_script,
    say,
    write_file,
)

import argparse
import contextlib
import errno
import fcntl
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading

import sweep_methods
import sweep_report
from sweep_trials import train_leg, words_of

# Environment variables. TRAIN_GPT: the program, if it is not ./train_gpt. SWEEP_PAUSE: seconds between two checks of
# what other processes that work on this sweep do.
PROGRAM = os.environ.get("TRAIN_GPT", "./train_gpt")
OWN = ("run.dir", "run.stop_step", "run.resume", "run.allow_change")  # this program sets them
FREE_FOR_PBT = ("optimizer.", "schedule.")  # numbers that may change while a run goes on
DEFAULT_ROUNDS = {"asha": 2, "pbt": 8}
MOST = {"n": 100000, "jobs": 1000, "rounds": 1000}
# largest number of choices of a parameter; limited, because the program checks the config once with each choice
MOST_CHOICES = 1000
SPACE_EXAMPLE = '{"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2}}'


def die(code, text):
    raise Stop(code, text)


def faults_of(key, spec, method):
    """Returns sentences that say what is wrong with one key of the space. spec: its range or choices."""
    if not re.fullmatch(r"[a-z_0-9]+(\.[a-z_0-9]+)?", key):
        return ["not a key of a config: optimizer.learning_rate would be one"]
    if key in OWN or method in ("asha", "pbt") and key == "run.steps":
        return ["the sweep itself sets it"]
    if key.startswith("eval.") or key == "data.val":
        return ["with another evaluation in each trial their losses would not compare"]
    if method == "pbt" and (not key.startswith(FREE_FOR_PBT) or key == "optimizer.name"):
        return ["pbt changes keys while a run goes on: those of optimizer and schedule alone"]
    if not isinstance(spec, dict):
        return ['must be {"low": .., "high": ..} or {"choices": [..]}']
    if "choices" in spec:
        good = isinstance(spec["choices"], list) and len(spec["choices"]) > 0 and set(spec) == {"choices"}
        if good and len(spec["choices"]) > MOST_CHOICES:
            return [f"{len(spec['choices'])} choices: at most {MOST_CHOICES} are allowed"]
        return [] if good else ['choices must be a list, and stand alone: {"choices": [1, 2]}']
    known = ("low", "high", "log", "int")
    faults = [f'unknown word "{word}": low, high, log, int, choices are known' for word in spec if word not in known]
    if not all(isinstance(spec.get(word, False), bool) for word in ("log", "int")):
        faults.append("log and int are true or false")
    if not all(is_number(spec.get(word), spec.get("int") is True) for word in ("low", "high")):
        return faults + [f'low and high must be {"integers" if spec.get("int") is True else "numbers"}']
    if not is_number(spec["high"] - spec["low"]):
        faults.append("high - low is no number any more: take a smaller range")
    if spec["low"] >= spec["high"]:
        faults.append(f'low is {spec["low"]}, and high {spec["high"]}: low must be less')
    if spec.get("log") is True and spec["low"] <= 0:
        faults.append("low must be above 0 where log is true")
    return faults


def corners(space):
    """Yields sets of values at the edges of the space: all lower ends, all upper ends, then each other choice and
    each upper end while the remaining keys have their lower ends."""
    ends = {key: spec.get("choices") or [spec["low"], spec["high"]] for key, spec in space.items()}
    low = {key: values[0] for key, values in ends.items()}
    yield low
    yield {key: values[-1] for key, values in ends.items()}
    for key, values in ends.items():
        for value in values[1:]:
            yield {**low, key: value}


class Sweep:
    """The options of a sweep, and the state that its threads and processes share."""

    def __init__(self, args):
        self.out, self.method, self.n, self.seed = args.out.rstrip("/"), args.method, args.n, args.seed
        if not self.out:
            die(EXIT_CONFIG, "--out must name a folder, as runs/sweep")
        self.which, self.jobs, self.launch = args.loss, args.jobs, words_in("--launch", args.launch)
        if self.launch and not shutil.which(self.launch[0]):
            die(EXIT_MISSING, f"--launch: there is no program {self.launch[0] or repr('')}: install it, or name another")
        self.sbatch = None if args.slurm is None else words_in("--slurm", args.slurm)  # None: no SLURM
        self.words = self.asked_words = args.words
        self.given, self.program = args.config, PROGRAM
        self.pause = pause_of(1 if args.slurm is None else 10)
        self.rounds = args.rounds or DEFAULT_ROUNDS.get(args.method, 1)
        self.stopping, self.mutex, self.running = False, threading.RLock(), set()
        self.stop_asked, self.fault = threading.Event(), None
        self.read_space(args.space)
        self.read_config()
        self.loss_name = {"eval": f"{self.which} validation loss", "train": "training loss"}[self.kind]

    # --- what is asked for ---

    def read_space(self, path):
        def pairs(found):
            keys = [key for key, _ in found]
            if len(set(keys)) < len(keys):
                die(EXIT_CONFIG, f"{path}: a key stands there twice")
            return dict(found)

        try:
            with open(path, "rb") as file:
                space = parse_json(file.read(MOST_BYTES + 1), object_pairs_hook=pairs)
        except OSError as error:
            die(EXIT_CONFIG, f"{fault_of(error)}; name a file with a space, as {SPACE_EXAMPLE}")
        except ValueError as error:
            die(EXIT_CONFIG, f"{path}: {error}; {SPACE_EXAMPLE} would be a space")
        self.space = {key: spec for key, spec in space.items() if key != "$comment"} if isinstance(space, dict) else {}
        found = {key: faults_of(key, spec, self.method) for key, spec in self.space.items()}
        faults = [f"{path}: {key}: {fault}" for key in found for fault in found[key]]
        if not self.space:
            faults = [f"{path}: no key; {SPACE_EXAMPLE} would be a space"]
        if faults:
            die(EXIT_CONFIG, "\nsweep: ".join(faults))

    def read_config(self):
        """Reads the keys of the config that the sweep itself needs. The program checks all other keys."""
        self.config = self.given
        try:
            with open(open_regular(self.given), "rb") as file:  # each trial and each check reads it again
                self.text = file.read()
        except OSError as error:
            die(EXIT_CONFIG, f"{fault_of(error)}; name the file of a config")
        checked = self.check({})
        if checked.returncode:
            die(EXIT_CONFIG, checked.stderr.strip() or f"{self.program} check ends with exit {checked.returncode}")
        try:
            config = parse_json(self.text)
        except ValueError as error:
            die(EXIT_CONFIG, f"{self.given}: {error}")
        if any(word.startswith(tuple(key + "=" for key in OWN)) for word in self.words):
            die(EXIT_CONFIG, f"{', '.join(OWN)}: the sweep itself sets them")

        def value(key, default):
            section, name = key.split(".")
            given = [word[len(key) + 1 :] for word in self.words if word.startswith(key + "=")]
            if not given:
                return config.get(section, {}).get(name, default)
            try:
                return json.loads(given[-1])
            except ValueError:
                return given[-1]  # a word that is no JSON, such as one without quotes, is taken as it stands

        self.steps, every = int(float(value("run.steps", 0))), int(float(value("eval.every", 250)))
        self.kind = "eval" if value("data.val", "") else "train"
        self.rungs = sweep_methods.rungs_of(self.method, self.steps, self.rounds)
        if self.kind == "eval" and (not every or any(rung % every for rung in self.rungs)):  # each leg is evaluated
            self.words = self.words + [f"eval.every={math.gcd(*self.rungs) or self.steps}"]
        if self.method == "pbt":
            self.words = self.words + ["run.allow_change=" + json.dumps(list(self.space), separators=(",", ":"))]

    def check(self, values):
        ranks = re.search(r"(?:^| )-(?:n|np|c) +(\d+)", " ".join(self.launch))
        command = [
            self.program,
            "check",
            self.config,
            *self.words,
            *words_of(values),
            *([f"ranks={ranks[1]}"] if ranks else []),
        ]
        try:
            return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            if error.errno == errno.E2BIG:
                die(EXIT_CONFIG, "the values of the space are too long for a command line: take shorter ones")
            return die(
                EXIT_MISSING, f"{self.program} cannot be started: {error.strerror}; make builds it, TRAIN_GPT names it"
            )

    def check_corners(self):
        """Checks the config with values at the edges of the space, so that faults are found before anything is
        trained."""
        said = {}
        for values in corners(self.space):
            checked = self.check(values)
            missing = re.search(r"^(data\.(?:train|val)) +(no file .*)$", checked.stdout, re.M)
            if missing:
                die(EXIT_DATA, f"{missing[1]}: {missing[2]}")
            if checked.returncode:
                for line in checked.stderr.strip().split("\n"):
                    said.setdefault(line.split("error: ", 1)[-1], f"{line}   (with {self.shown(values)})")
        if said:
            die(EXIT_CONFIG, "\nsweep: ".join(said.values()))

    def free_out(self):
        """Returns a name for --out that does not exist yet."""
        return next(f"{self.out}-{k}" for k in range(2, 1 << 30) if not os.path.lexists(f"{self.out}-{k}"))

    def begin(self):
        """Makes the folder of the sweep, or checks that it holds this sweep. Trials train with the copy of the
        config in this folder."""
        asked = {"space": self.space, "method": self.method, "seed": self.seed, "words": self.words}
        asked.update(rounds=self.rounds, loss=self.which, n=self.n)
        try:
            os.makedirs(self.out, exist_ok=True)
        except OSError as error:
            die(EXIT_IO, f"{self.out}: cannot create the folder: {error.strerror}; give --out one that may be written")
        cure = f"take another --out, as {self.free_out()}"
        path = f"{self.out}/sweep.json"
        with self.locked():
            there = read_json(path, cure)
            if there is None:
                for name in ("config.json", "table.txt", "sweep.svg", "study.journal"):
                    if self.holds_else(name, self.text if name == "config.json" else b""):
                        die(EXIT_CONFIG, f"{self.out}/{name} is there, and no sweep: nothing was changed; {cure}")
            elif not set(asked) <= set(there):
                die(EXIT_DATA, f"{path}: damaged: it lacks {', '.join(sorted(set(asked) - set(there)))}; {cure}")
            else:
                same = [key for key in asked if asked[key] != there[key] and (key != "n" or self.method == "pbt")]
                same += ["config"] if self.holds_else("config.json", self.text) else []
                if same:
                    differ = ", another ".join(same)
                    if self.is_at_work():
                        busy = f"{self.out} is in use by a sweep with another {differ}"
                        die(EXIT_LOCKED, f"{busy}: wait for it, or {cure}")
                    die(EXIT_CONFIG, f"{self.out} holds a sweep with another {differ}: type its command, or {cure}")
            if not self.holds_else("config.json", b""):  # missing, or empty
                write_file(f"{self.out}/config.json", self.text)
            write_file(path, json.dumps(asked, indent=1) + "\n")
            self.driving = open(f"{self.out}/config.json", encoding="utf-8")  # pylint: disable=consider-using-with
            fcntl.flock(self.driving, fcntl.LOCK_SH)  # this process holds the lock until it ends, in whatever way
        self.config = f"{self.out}/config.json"

    def is_at_work(self):
        """Returns True if a process works on the sweep. Each of its processes has a shared lock on the config.json
        of the sweep."""
        try:
            with open(f"{self.out}/config.json", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False

    def holds_else(self, name, content):
        """Returns True if a file of the sweep's folder exists, is not empty, and differs from `content`."""
        try:
            with open(open_regular(f"{self.out}/{name}"), "rb") as file:
                return file.read(len(content) + 1) not in (b"", content)
        except FileNotFoundError:
            return False

    # --- shared by threads and drivers ---

    @contextlib.contextmanager
    def locked(self):
        """Gives the files of the sweep to one thread of one process at a time. Removes Optuna's own lock of the
        journal, which a killed process leaves behind."""
        with self.mutex, open(open_regular(f"{self.out}/.lock", os.O_RDWR | os.O_CREAT), "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.out}/study.journal.lock")
            # the sweep has begun if self.config is its own copy of the given config; then the journal belongs to the
            # sweep and may be repaired
            if self.config != self.given:
                sweep_methods.mend_journal(f"{self.out}/study.journal")
            yield

    @contextlib.contextmanager
    def children(self, child):
        with self.mutex:
            self.running.add(child)
            if self.stopping:
                child.send_signal(signal.SIGUSR1)
        try:
            yield
        finally:
            with self.mutex:
                self.running.discard(child)

    def stop(self, signal_number=None, _frame=None):
        """Stops the sweep, as the handler of Ctrl-C and TERM, or without a signal after a fault of a thread. The first
        call makes every trial save and stop. A signal that arrives later kills them."""
        again, self.stopping = self.stopping and signal_number is not None, True
        self.stop_asked.set()
        # the bytes are written directly, because a signal may arrive in the middle of a print, where print() would fail
        if not again and not self.fault:
            with contextlib.suppress(OSError):
                os.write(1, b"asked to stop: the trials save and stop; once more ends them at once\n")
        for child in list(self.running):
            with contextlib.suppress(ProcessLookupError):
                if again:
                    os.killpg(child.pid, signal.SIGKILL)
                else:
                    child.send_signal(signal.SIGUSR1)

    def wait(self, seconds):
        self.stop_asked.wait(seconds)

    say = staticmethod(say)

    @staticmethod
    def shown(values):
        return " ".join(f"{key}={sweep_report.number(value)}" for key, value in values.items())

    def steps_of(self, trial):
        return int(trial.values.get("run.steps", self.steps))  # a choice may be 100.0


def work(sweep, method):
    """Trains trials in one thread. An I/O error, such as a full disk, or a damaged file ends the sweep, and its
    message is kept in sweep.fault."""
    try:
        with sweep_methods.optuna_faults(sweep):
            train_all(sweep, method)
    except (OSError, Stop) as error:
        sweep.fault = sweep.fault or error
        sweep.stop()


def train_all(sweep, method):
    """Trains one leg of a trial after another (from one stop to the next), until no trial is left or the sweep
    stops."""
    while not sweep.stopping:
        with sweep.locked():
            found = method.next()
            over = found is None and method.over()
        if over:
            return
        # other processes of this sweep train the remaining trials, or those that the next round waits for
        if found is None:
            sweep.wait(sweep.pause / 2)
            continue
        trial, target = found
        if not trial.legs:
            sweep.say(f"trial {trial.number}: {sweep.shown(trial.values)}")
        whole = train_leg(sweep, trial, target)
        with sweep.locked():
            if whole:
                method.after(trial)
            trial.release()
        if whole:
            ended = f", {trial.status}" if trial.finished else ""
            steps = f"step {trial.step} of {sweep.steps_of(trial)}"
            failed = f"failed: {trial.state['reason']}" if trial.status == "failed" else None
            sweep.say(f"trial {trial.number}: " + (failed or f"{steps}, {sweep.loss_name} {trial.loss:.4f}{ended}"))


def report(sweep, method):
    """Writes the table and the picture, also of trials that are not complete, and prints the command for the best
    one. Returns the exit code."""
    with sweep.locked():
        trials = sweep_report.ranking(method.trials())
        text = sweep_report.table(sweep, trials)
        write_file(f"{sweep.out}/table.txt", text + "\n")
        best = trials[0] if trials and trials[0].loss is not None and trials[0].status != "failed" else None
        if best:
            write_file(f"{sweep.out}/sweep.svg", sweep_report.picture(sweep, trials))
    say("\n" + text)
    if not best:
        return 1
    say(f"\ntable and picture   {sweep.out}/table.txt, {sweep.out}/sweep.svg\nthe best, trained   {best.dir}")
    if best.state["copies"]:
        steps = ", ".join(str(copy["step"]) for copy in best.state["copies"])
        say(f"its values changed  at step {steps}: {best.dir}/trial.json; the command has the last ones")
    say(f"to train it again   {sweep_report.command(sweep, best)}")
    return 0 if best.status == "done" else 1


def words_in(option, text):
    """Returns the words of an option whose value is a part of a command line."""
    try:
        return shlex.split(text)
    except ValueError as error:
        return die(EXIT_CONFIG, f"{option} {text}: {str(error).lower()}: close each quote")


def pause_of(default):
    """Returns the seconds between two checks of what other processes do: SWEEP_PAUSE, or `default`."""
    text = os.environ.get("SWEEP_PAUSE", str(default))
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 3600:
            return float(text)
    return die(EXIT_CONFIG, f"SWEEP_PAUSE={text}: seconds from 0 to 3600 are allowed")


class Parser(argparse.ArgumentParser):
    """A parser of the command line that ends with exit code 64 after a fault, as all programs here do."""

    def error(self, message):
        die(EXIT_CONFIG, f"{message}; {self.prog} --help has the options")


def arguments():
    parser = Parser(description=__doc__.split("\n\n", 1)[0], allow_abbrev=False)
    parser.add_argument("space", metavar="SPACE.json")
    parser.add_argument("config", metavar="CONFIG.json")
    parser.add_argument("words", metavar="key=value", nargs="*", help="for every trial")
    parser.add_argument("-n", type=int, default=32, help="trials; for pbt the members of the population (32)")
    parser.add_argument("--method", choices=["random", "tpe", "asha", "pbt"], default="random")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time (1)")
    parser.add_argument("--out", default="runs/sweep", help="folder of the sweep (runs/sweep)")
    parser.add_argument("--seed", type=int, default=1, help="of the values (1); run.seed is the config's")
    parser.add_argument("--rounds", type=int, default=0, help="asha: rungs before the end (2); pbt: rounds (8)")
    parser.add_argument("--loss", choices=["last", "best"], default="last", help="validation loss that counts (last)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--launch", default="", metavar="'mpirun -np 2'", help="words before the program")
    how.add_argument(
        "--slurm",
        nargs="?",
        const="",
        metavar="'--ntasks=8 ...'",
        help="each leg is a job of scripts/train.sbatch, with these options",
    )
    args = parser.parse_intermixed_args()
    for name, least in (("n", 1), ("jobs", 1), ("rounds", 0)):
        if not least <= getattr(args, name) <= MOST[name]:
            die(EXIT_CONFIG, f"{name} is {getattr(args, name)}: it must be at least {least}, and at most {MOST[name]}")
    for word in args.words:
        if not re.match(r"[a-z_]+(\.[a-z_0-9]+)?=", word):
            die(EXIT_CONFIG, f"{word} is no key=value")
    return args


def main():
    sweep = Sweep(arguments())
    sweep.check_corners()
    if sweep.method in ("tpe", "asha"):
        try:
            import optuna  # noqa: F401  pylint: disable=import-outside-toplevel,unused-import
        except ImportError:
            die(EXIT_MISSING, f"--method {sweep.method} needs Optuna: apt-get install python3-optuna, or pip install optuna")
    if sweep.sbatch is not None and not all(shutil.which(tool) for tool in ("sbatch", "squeue", "scancel")):
        die(EXIT_MISSING, "--slurm: sbatch, squeue or scancel is not here")
    sweep.begin()
    signal.signal(signal.SIGINT, sweep.stop)
    signal.signal(signal.SIGTERM, sweep.stop)
    with sweep_methods.optuna_faults(sweep), sweep.locked():
        method = sweep_methods.method_of(sweep)
    sweep.say(f"sweep of {sweep.n} trials by {sweep.method} in {sweep.out}, judged by the {sweep.loss_name}")
    threads = [threading.Thread(target=work, args=(sweep, method)) for _ in range(sweep.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # joins in short waits, because Python runs a signal handler only between two waits
            thread.join(0.2)
    if sweep.fault:
        raise sweep.fault
    with sweep_methods.optuna_faults(sweep):
        code = report(sweep, method)
        if sweep.stopping and not method.over():
            say("\nstopped; the same command goes on from here")
            code = EXIT_STOPPED
    return code


if __name__ == "__main__":
    run_script("sweep", main)
