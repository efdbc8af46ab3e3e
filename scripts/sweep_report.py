"""The report at the end of a sweep: a table, a picture of the loss over each key, and the command that trains the
best trial again."""

import html
import math
import shlex

from sweep_trials import words_of

PANEL_W, PANEL_H, LEFT, TOP, GAP = 300, 200, 62, 64, 74
STYLE = """<style>
svg { background: #fff; color: #334155 } text { fill: currentColor }
.box { fill: none; stroke: #cbd5e1 } .best { fill: none; stroke: #16a34a; stroke-width: 2.5 }
.done { fill: #2563eb; fill-opacity: .65 } .pruned { fill: #94a3b8; fill-opacity: .65 }
@media (prefers-color-scheme: dark) {
svg { background: #0f172a; color: #cbd5e1 } .box { stroke: #475569 } .done { fill: #60a5fa } .best { stroke: #4ade80 } }
</style>"""


def number(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def ranking(trials):
    """Returns the trials in the order of the table. Trials that are done come first, then others with a loss, those
    with most steps first. Equal ones are ordered by loss. Failed trials, and trials without a loss, follow."""
    with_loss = [trial for trial in trials if trial.loss is not None and trial.status != "failed"]
    others = [trial for trial in trials if trial not in with_loss]
    return sorted(with_loss, key=lambda trial: (trial.status != "done", -trial.step, trial.loss)) + others


def table(sweep, trials):
    keys = list(sweep.space)
    rows = [["trial", "state", "step", sweep.loss_name, *keys, ""]]
    for trial in trials:
        loss = "" if trial.loss is None else f"{trial.loss:.4f}"
        reason = trial.state["reason"] if trial.status == "failed" else ""
        values = [number(trial.values[key]) for key in keys]
        rows.append([str(trial.number), trial.status, str(trial.step), loss, *values, reason])
    widths = [max(len(word) for word in column) for column in zip(*rows)]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows)


def command(sweep, trial):
    """Returns the whole command, quoted for a shell, that trains with the values of a trial."""
    words = [
        *sweep.launch,
        sweep.program,
        sweep.config,
        "run.dir=runs/best",
        *sweep.asked_words,
        *words_of(trial.values),
    ]
    return " ".join(shlex.quote(word) for word in words)


def ticks_of(spec):
    """Returns the ticks of an axis as [(place from 0 to 1, text)], and the function from a value to its place. spec:
    range or choices of the key."""
    if "choices" in spec:
        count = len(spec["choices"])

        def place(value):
            return (spec["choices"].index(value) + 0.5) / count

        return [(place(choice), str(choice)) for choice in spec["choices"]], place
    low, high, log = spec["low"], spec["high"], spec.get("log")
    turn = math.log if log else float

    def place(value):
        return (turn(min(max(value, low), high)) - turn(low)) / (turn(high) - turn(low))

    if log:
        powers = [10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        marks = [mark for mark in powers if low <= mark <= high]
        marks = marks if len(marks) > 1 else [low, high]
    else:
        marks = [low + (high - low) * k / 4 for k in range(5)]
    return [(place(mark), number(float(mark))) for mark in marks], place


def picture(sweep, trials):
    """Returns an SVG with a panel for each key: the losses of the trials over the values of the key. Losses far
    above the others are drawn at the upper edge."""
    drawn = [trial for trial in trials if trial.loss is not None and trial.status != "failed"]
    losses = sorted(trial.loss for trial in drawn)
    low = losses[0]
    high = min(losses[-1], low + 4 * (losses[len(losses) // 2] - low)) if losses[len(losses) // 2] > low else losses[-1]
    high = high if high > low else low + max(1e-6, abs(low) * 0.01)
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    columns = min(3, len(sweep.space))
    rows = -(-len(sweep.space) // columns)
    width, height = columns * (PANEL_W + GAP) + 30, TOP + rows * (PANEL_H + GAP)
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        "font-family=\"Inter, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif\" font-size=\"12\">",
        STYLE,
        f'<text x="{LEFT}" y="26" font-size="17" font-weight="600">{html.escape(sweep.out)}</text>',
        f'<text x="{LEFT}" y="46">{html.escape(sweep.loss_name)} of {len(drawn)} trials, {sweep.method}; '
        "grey: stopped at a rung; "
        "circle: the best; at the upper edge: above it</text>",
    ]
    for index, (key, spec) in enumerate(sweep.space.items()):
        x0, y0 = LEFT + index % columns * (PANEL_W + GAP), TOP + index // columns * (PANEL_H + GAP)
        middle, bottom = x0 + PANEL_W / 2, y0 + PANEL_H
        marks, place = ticks_of(spec)
        out.append(f'<g><rect class="box" x="{x0}" y="{y0}" width="{PANEL_W}" height="{PANEL_H}"/>')
        out.append(
            f'<g text-anchor="middle"><text x="{middle}" y="{bottom + 40}" font-weight="600">{html.escape(key)}</text>'
        )
        for at, text in marks:
            out.append(f'<text x="{x0 + at * PANEL_W:.1f}" y="{bottom + 20}">{html.escape(text)}</text>')
        out.append('</g><g text-anchor="end">')
        for part in (0, 0.5, 1):
            loss = low + part * (high - low)
            out.append(f'<text x="{x0 - 6}" y="{bottom - PANEL_H * part + 4:.1f}">{loss:.3f}</text>')
        out.append("</g>")
        for trial in reversed(drawn):
            x = x0 + place(trial.values[key]) * PANEL_W
            y = bottom - PANEL_H * min(1, (trial.loss - low) / (high - low))
            kind = "pruned" if trial.status == "pruned" else "done"
            said = f"trial {trial.number}: {trial.loss:.4f} at step {trial.step}, {key}={number(trial.values[key])}"
            out.append(
                f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{html.escape(said)}</title></circle>'
            )
            if trial is drawn[0]:
                out.append(f'<circle class="best" cx="{x:.1f}" cy="{y:.1f}" r="8"/>')
        out.append("</g>")
    return "\n".join(out + ["</svg>"]) + "\n"
