"""The commands and their options as data: parser and shell completion are both made of this."""

from dataclasses import dataclass

FILE, FOLDER, NUMBER, TEXT, NOTHING = "FILE", "DIR", "N", "NAME", ""
"""What an option takes; also its metavar."""


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    flag: str
    takes: str
    help: str


@dataclass(frozen=True)
class Command:
    """A command."""

    name: str
    summary: str
    text: str
    example: str
    """Arguments after the name that make sense in a checkout."""
    options: tuple[Option, ...] = ()
    module: str = ""
    """Below `turncredit.cli`, what does it; "": the module of its name."""


PARAMS = Option("--params", FILE, "parameter file, as the notebook takes it (required)")
COMMON = (
    Option(
        "--results", FOLDER, "folder of the tier's results (default: TURNCREDIT_RESULTS, "
        "else results/<tier> of the checkout)",
    ),
    Option("--json", NOTHING, "print one JSON object in place of lines"),
)  # fmt: skip
_RUN = Option("--run", TEXT, "only this run, such as tempting_guess/grpo/seed_0")

COMMANDS = (
    Command(
        "train",
        "train every run of an experiment that is missing or stale",
        "FILE is that of an experiment notebook (10 to 13, 15 to 19, 21, 23).  A finished run is "
        "not repeated, an interrupted one goes on from its last checkpoint.  A run that a tripwire "
        "ended is over, and its stop_reason says why.",
        "--params params/smoke/10_grpo_baseline.yaml",
        (Option("--jobs", NUMBER, "runs at a time (default: TURNCREDIT_JOBS, else one a core)"),),
    ),
    Command(
        "eval",
        "play the held-out questions with the saved policies of an experiment",
        "FILE as for train.  Without options it repeats the last row of each run's eval.csv, to "
        "the digit; nothing of the run is changed.",
        "--params params/smoke/10_grpo_baseline.yaml --questions 16",
        (
            _RUN,
            Option("--questions", NUMBER, "held-out questions (default: the task's)"),
            Option("--output", FILE, "also write the rows to this CSV"),
        ),
    ),
    Command(
        "probe",
        "does AEM's coefficient know how surprising a response is?",
        "Runs notebook 14 or 25 with its FILE, in a checkout; an interrupted probe goes on with "
        "the state it was at.",
        "--params params/smoke/14_surprisal_probe.yaml",
        module="notebooks",
    ),
    Command(
        "audit",
        "who is blamed, turn by turn, and was it right?",
        "Runs notebook 20 with its FILE, in a checkout; recorded runs are not played again.",
        "--params params/smoke/20_credit_audit.yaml",
        module="notebooks",
    ),
    Command(
        "view",
        "write a page that shows trajectories of a trained run",
        "FILE as for train.  Shown is the run's last evaluation: the failures, or with --all every "
        "trajectory; open the page in any browser.",
        "--params params/smoke/10_grpo_baseline.yaml --count 3",
        (
            _RUN,
            Option("--count", NUMBER, "trajectories on the page (default: 5)"),
            Option("--all", NOTHING, "successes too"),
            Option("--output", FILE, "the page (default: views/ below the experiment's results)"),
        ),
    ),
    Command(
        "report",
        "test every published claim against the saved runs and write the page",
        "FILE is that of notebook 99.  Trains nothing; writes report.html and report.md.",
        "--params params/smoke/99_report.yaml",
    ),
)
SHELLS = ("bash", "zsh", "fish")
COMPLETION = "print a script that completes commands, options and files"
