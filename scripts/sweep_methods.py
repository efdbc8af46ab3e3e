"""Methods by which a sweep chooses values: tpe and asha by Optuna, random and pbt by code of our own.

All state is in files, so that any process can continue the sweep."""

import contextlib
import json
import math
import os
import random
import shutil
import warnings

from run_files import EXIT_DATA, MOST_OF_A_LINE, Stop, open_regular, read_json, write_file
from sweep_trials import Trial, within

ETA = 3  # method asha: of the trials compared at a rung (a step on the way), one of ETA is continued


def rounded(value):
    return float(f"{value:.4g}")


def draw(spec, rng):
    """Returns a random value of one key: uniform, or uniform in its logarithm. spec: its range or choices."""
    if "choices" in spec:
        return rng.choice(spec["choices"])
    low, high = spec["low"], spec["high"]
    if spec.get("log"):
        value = math.exp(rng.uniform(math.log(low), math.log(high)))
    elif spec.get("int"):
        return rng.randint(low, high)
    else:
        value = rng.uniform(low, high)
    value = round(value) if spec.get("int") else rounded(value)
    return min(max(value, low), high)


def mend_journal(path):
    """Cuts off a last line without a line feed, which a killed process or a full disk leaves. Called with the lock
    of the sweep held."""
    try:
        with open(open_regular(path, os.O_RDWR), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MOST_OF_A_LINE))
            tail = file.read()
            if not tail.endswith(b"\n"):
                file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)
    except FileNotFoundError:
        pass


@contextlib.contextmanager
def optuna_faults(sweep):
    """Turns an exception of Optuna into a message that names the journal, because Optuna has no exception of its own
    for a damaged journal."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # pylint: disable=broad-exception-caught
        if sweep.method not in ("tpe", "asha"):
            raise
        text = f"{sweep.out}/study.journal: Optuna cannot read it: {type(error).__name__}: {error}"
        raise Stop(EXIT_DATA, f"{text}; take another --out, as {sweep.free_out()}") from error


def rungs_of(method, steps, rounds):
    """Returns the steps before the last one at which trials stop and are compared."""
    if method == "asha":
        first = max(1, steps // ETA**rounds)
        return [first * ETA**k for k in range(rounds) if first * ETA**k < steps]
    return sorted({steps * k // rounds for k in range(1, rounds)} - {0}) if method == "pbt" else []


class Random:
    """Method random: trial i gets the i-th random values of the seed, whichever process trains it. Base class of the
    other methods."""

    def __init__(self, sweep):
        self.sweep, self.rungs = sweep, sweep.rungs

    def values(self, number):
        rng = random.Random(f"{self.sweep.seed}/{number}")
        return {key: draw(spec, rng) for key, spec in self.sweep.space.items()}

    def trials(self):
        """Returns all trials of the sweep. New ones get their values."""
        found = [Trial(self.sweep, number) for number in range(self.sweep.n)]
        for trial in found:
            if trial.state is None:
                trial.create(self.values(trial.number))
        return found

    def target(self, trial):
        """Returns the step to which a trial is trained next: the next step of comparison, or its last step."""
        return next((rung for rung in self.rungs if rung > trial.step), self.sweep.steps_of(trial))

    def next(self):
        """Claims a trial. Returns it and the step to train it to, or None if no trial can be trained now. Called
        with the lock of the sweep held."""
        for trial in self.trials():
            if not trial.finished and trial.claim():
                return trial, self.target(trial)
        return None

    def after(self, trial):
        """Takes note of a trial that was trained further, or failed. Called with the lock of the sweep held. Method
        random has nothing to do."""

    def over(self):
        return all(trial.finished for trial in self.trials())


class Optuna(Random):
    """Methods tpe and asha. TPE proposes values from all trials in Optuna's journal. With asha a trial that is not
    among the best third at a rung (a step on the way) ends there."""

    def __init__(self, sweep):
        super().__init__(sweep)
        import optuna  # pylint: disable=import-outside-toplevel

        self.optuna = optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        pruner = optuna.pruners.NopPruner()
        if self.rungs:
            pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=self.rungs[0], reduction_factor=ETA)
        try:
            from optuna.storages.journal import JournalFileBackend as Journal  # pylint: disable=import-outside-toplevel
        except ImportError:  # for optuna before version 4
            from optuna.storages import JournalFileStorage as Journal  # pylint: disable=import-outside-toplevel
        self.storage = optuna.storages.JournalStorage(Journal(f"{sweep.out}/study.journal"))
        self.study = optuna.create_study(
            storage=self.storage, study_name="sweep", pruner=pruner, direction="minimize", load_if_exists=True
        )

    def handle(self, number):
        """Returns Optuna's object of a trial, to which results are reported."""
        study_id = self.storage.get_study_id_from_name("sweep")
        return self.optuna.trial.Trial(
            self.study, self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        )

    def suggested(self, handle):
        """Returns the values of a trial from Optuna's journal. Values that the journal lacks, because a process was
        killed while it asked, are proposed now."""
        values = {}
        for key, spec in self.sweep.space.items():
            log = bool(spec.get("log"))
            if "choices" in spec:
                values[key] = handle.suggest_categorical(key, spec["choices"])
            elif spec.get("int"):
                values[key] = handle.suggest_int(key, spec["low"], spec["high"], log=log)
            else:
                values[key] = handle.suggest_float(key, spec["low"], spec["high"], log=log)
        return values

    def trials(self):
        """Returns the trials that Optuna has proposed. Makes the folder of the last one if a process was killed
        before it made the folder."""
        found = []
        for frozen in self.study.get_trials(deepcopy=False):
            trial = Trial(self.sweep, frozen.number)
            if trial.state is None:
                trial.create(self.suggested(self.handle(frozen.number)))
            found.append(trial)
            if not frozen.state.is_finished():
                self.settle(trial, frozen)
        return found

    def settle(self, trial, frozen):
        """Reports a trial to Optuna: its losses so far, whether it ends at a rung, and its end. A second call
        changes nothing."""
        state = self.optuna.trial.TrialState
        handle = self.handle(trial.number)
        new = [leg for leg in trial.legs if leg["step"] not in frozen.intermediate_values]
        for leg in new:
            handle.report(leg["loss"], leg["step"])
        if trial.step in self.rungs and not trial.finished and handle.should_prune():
            trial.finish("pruned", f"not among the best third at step {trial.step}")
        if trial.status == "done":
            self.study.tell(trial.number, trial.loss)
        elif trial.finished:
            self.study.tell(trial.number, state=state.PRUNED if trial.status == "pruned" else state.FAIL)

    def next(self):
        found = super().next()
        count = len(self.study.get_trials(deepcopy=False))
        if found or count >= self.sweep.n:
            return found
        startup = min(10, max(4, self.sweep.n // 4))  # number of first trials whose values are drawn at random
        self.study.sampler = self.optuna.samplers.TPESampler(
            seed=(self.sweep.seed * 1000003 + count) % 2**32, n_startup_trials=startup
        )
        asked = self.study.ask()
        trial = Trial(self.sweep, asked.number)
        trial.create(self.suggested(asked))
        return (trial, self.target(trial)) if trial.claim() else None

    def after(self, trial):
        trial.load()
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        if not frozen.state.is_finished():
            self.settle(trial, frozen)

    def over(self):
        found = self.trials()
        return len(found) >= self.sweep.n and all(trial.finished for trial in found)


class Pbt(Random):
    """Method pbt: population-based training (Jaderberg et al., arXiv:1711.09846). All trials train to the end of a
    round. Then each of the worst quarter gets the checkpoint of one of the best quarter, and its values, each times
    0.8 or 1.25."""

    def changed(self, values, rng):
        """Returns the values, each times 0.8 or 1.25 and within its range. Choices stay as they are."""
        new = dict(values)
        for key, spec in self.sweep.space.items():
            if "choices" not in spec:
                value = values[key] * rng.choice((0.8, 1.25))
                value = round(value) if spec.get("int") else rounded(value)
                new[key] = min(max(value, spec["low"]), spec["high"])
        return new

    def round_path(self, number):
        return f"{self.sweep.out}/round_{number:03d}.json"

    def round_plan(self, number):
        """Returns the copies that were decided at the end of round `number`, or None if none were decided yet."""
        path = self.round_path(number)
        cure = "take another --out"
        plan = read_json(path, cure)
        if plan is None:
            return None
        copies = plan.get("copies") if plan.get("step") == self.rungs[number - 1] else None
        members, space = range(self.sweep.n), self.sweep.space
        whole = isinstance(copies, list) and isinstance(plan.get("carried_out"), bool)
        for copy in copies if whole else []:
            values = copy.get("values") if isinstance(copy, dict) else None
            whole = isinstance(values, dict) and copy.get("to") in members and copy.get("from") in members
            if not whole or set(values) != set(space) or not all(within(space[key], values[key]) for key in space):
                whole = False
                break
        if not whole:
            raise Stop(EXIT_DATA, f"{path}: damaged: no round of this sweep; {cure}")
        return plan

    def values(self, number):
        """Returns the values of trial `number` if its trial.json does not exist: those of its last copy, or else the
        random ones of the seed."""
        values = super().values(number)
        for count in range(1, len(self.rungs) + 1):
            for copy in (self.round_plan(count) or {"copies": []})["copies"]:
                values = copy["values"] if copy["to"] == number else values
        return values

    def next(self):
        alive = [trial for trial in self.trials() if trial.status != "failed"]
        rounds = min((len(trial.legs) for trial in alive), default=0)
        if 0 < rounds <= len(self.rungs):
            self.exchange(alive, rounds)
        for trial in alive:
            if not trial.finished and len(trial.legs) == rounds and trial.claim():
                if len(trial.legs) == rounds:
                    return trial, self.target(trial)
                trial.release()
        return None

    def exchange(self, alive, number):
        """Copies the best trials over the worst ones at the end of round `number`. The copies are decided once, and
        stored in round_NNN.json. An interrupted call is completed by the next one."""
        path, plan = self.round_path(number), self.round_plan(number)
        if plan is None:
            ranked = sorted(alive, key=lambda trial: trial.legs[number - 1]["loss"])
            rng = random.Random(f"{self.sweep.seed}/round {number}")
            part = max(1, len(ranked) // 4) if len(ranked) > 1 else 0
            plan = {"step": self.rungs[number - 1], "carried_out": False, "copies": []}
            for trial in ranked[len(ranked) - part :]:
                best = rng.choice(ranked[:part])
                plan["copies"].append(
                    {"to": trial.number, "from": best.number, "values": self.changed(best.values, rng)}
                )
            write_file(path, json.dumps(plan, indent=1) + "\n")
        if plan["carried_out"]:
            return
        by_number = {trial.number: trial for trial in alive}
        for copy in plan["copies"]:
            if copy["to"] in by_number and copy["from"] in by_number:  # neither has failed since
                self.copy(by_number[copy["to"]], by_number[copy["from"]], plan["step"], copy["values"])
        write_file(path, json.dumps({**plan, "carried_out": True}, indent=1) + "\n")

    def copy(self, trial, best, step, values):
        """Gives `trial` the checkpoint of the trial `best` at `step`, its log, and new values. If a kill interrupts
        this, the next call makes the folder again. The checkpoint of `best` still exists then, because no trial
        trains before all copies are made."""
        if any(copy["step"] == step for copy in trial.state["copies"]):
            return
        name, new, old = f"step_{step:08d}", f"{trial.dir}/checkpoints.new", f"{trial.dir}/checkpoints.old"
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(f"{best.dir}/checkpoints/{name}", f"{new}/{name}")
        shutil.rmtree(old, ignore_errors=True)
        if os.path.exists(f"{trial.dir}/checkpoints"):
            os.rename(f"{trial.dir}/checkpoints", old)
        os.rename(new, f"{trial.dir}/checkpoints")
        with open(open_regular(f"{best.dir}/metrics.jsonl"), "rb") as file:  # the history of these weights
            write_file(f"{trial.dir}/metrics.jsonl", file.read())
        shutil.rmtree(old, ignore_errors=True)
        trial.state["copies"].append({"step": step, "from": best.number, "values_before": trial.values})
        trial.state["values"] = values
        trial.save()
        self.sweep.say(
            f"trial {trial.number}: takes the weights of trial {best.number} at step {step}, "
            f"with {self.sweep.shown(values)}"
        )


def method_of(sweep):
    return {"random": Random, "tpe": Optuna, "asha": Optuna, "pbt": Pbt}[sweep.method](sweep)
