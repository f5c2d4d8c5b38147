"""The command line: each command at smoke size, its exit codes, its JSON, and bad input."""

import csv
import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from pipeline.tiny_runs import REPOSITORY, directory, parameters

from turncredit import cli, experiment, paths
from turncredit.cli import commands, completion
from turncredit.cli.experiments import open_experiment
from turncredit.cli.surroundings import home_of

LABEL = "tiny/grpo/seed_0"


@pytest.fixture
def params_file(home):
    """The parameter file of an experiment of one tiny run, below params/smoke of a home."""
    return write(home, "10_try", parameters())


def write(home, name, values):
    path = home / "params" / "smoke" / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def say(capsys, *arguments):
    """Exit code, the JSON object that is all of stdout, and stderr."""
    code = cli.main([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


@pytest.fixture
def trained(home, inline, params_file, capsys):
    """The same file once its run is trained."""
    assert say(capsys, "train", "--params", params_file)[0] == cli.DONE
    return params_file


# train


def test_train_makes_the_runs_and_repeats_none(home, inline, params_file, capsys):
    code, first, err = say(capsys, "train", "--params", params_file)
    assert (code, first["status"], first["trained"]) == (0, "done", [LABEL])
    (row,) = first["runs"]
    assert (row["run"], row["stop_reason"], row["steps_done"]) == (LABEL, "finished", 5)
    last = evaluation_of(home)[-1]
    assert row["exact_match"] == pytest.approx(float(last["exact_match"]))
    assert "tiny: " in err, "memory and time of a step, before training"
    assert directory(home).manifest.exists()
    assert say(capsys, "train", "--params", params_file)[1]["trained"] == []
    assert cli.main(["train", "--params", str(params_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "stop_reason", "steps_done", "seconds", "exact_match"]
    assert lines[1].startswith(LABEL)
    assert lines[2].startswith("0 of 1 runs were missing or stale")


def test_an_interrupted_training_says_so_and_goes_on(home, params_file, capsys, monkeypatch):
    def stopped(work, calls, workers, title):
        def report(label, done, total, shown):
            if "seed_" in label and done == 4:
                raise KeyboardInterrupt

        for call in calls:
            work(*call, report)

    def whole(work, calls, workers, title):
        for call in calls:
            work(*call, lambda *shown: None)

    monkeypatch.setattr(experiment, "in_parallel", stopped)
    code, answer, err = say(capsys, "train", "--params", params_file)
    assert (code, answer["status"]) == (130, "interrupted")
    assert "goes on" in err
    monkeypatch.setattr(experiment, "in_parallel", whole)
    assert say(capsys, "train", "--params", params_file)[0] == 0
    assert directory(home).read_manifest()["resumed_at"] == 2


def test_a_run_that_cannot_be_trusted_is_a_failed_run(home, inline, params_file, capsys):
    stranger = home / "results" / "10_try" / "other" / "grpo" / "seed_0"
    stranger.mkdir(parents=True)
    code, answer, err = say(capsys, "train", "--params", params_file)
    assert (code, answer["status"]) == (1, "failed run")
    assert f"turncredit: failed run: {stranger}" in err
    assert answer["message"].endswith("not among the parameters; move it away")


def test_what_nobody_foresaw_comes_with_its_traceback(params_file, capsys, monkeypatch):
    def broken(asked):
        raise KeyError("odd")

    monkeypatch.setattr("turncredit.cli.train.run_experiment", broken)
    code, answer, err = say(capsys, "train", "--params", params_file)
    assert (code, answer["message"]) == (1, "KeyError: 'odd'")
    assert "Traceback" in err


def test_results_go_where_they_are_asked_to_go(home, inline, params_file, capsys):
    place = home / "elsewhere"
    before = dict(os.environ)
    answer = say(capsys, "train", "--params", params_file, "--results", place, "--jobs", "1")[1]
    assert answer["folder"] == str(place / "10_try")
    assert (place / "10_try" / LABEL / "manifest.json").exists()
    assert dict(os.environ) == before


EXPERIMENTS = [
    path
    for path in sorted((REPOSITORY / "params" / "smoke").glob("*.yaml"))
    if {"tasks", "arms", "warm_start_seeds"} <= yaml.safe_load(path.read_text("utf-8")).keys()
]


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_file_of_every_experiment_notebook_is_an_experiment(file):
    assert open_experiment(file).notebook == file.stem


def test_help_and_page_name_the_experiments():
    numbers = [int(path.stem[:2]) for path in EXPERIMENTS]
    runs = [(n, next(m for m in itertools.count(n) if m + 1 not in numbers))
            for n in numbers if n - 1 not in numbers]  # fmt: skip
    *others, last = [str(n) if n == m else f"{n} to {m}" for n, m in runs]
    train = next(command for command in commands.COMMANDS if command.name == "train")
    assert f"({', '.join([*others, last])})" in train.text
    page = (REPOSITORY / "docs" / "command-line.md").read_text("utf-8")
    assert f"an experiment, {', '.join(others)} and {last} |" in page


# eval


def evaluation_of(home):
    with (directory(home).path / "eval.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_eval_repeats_the_last_evaluation_to_the_digit(home, trained, capsys):
    table = home / "rows.csv"
    code, answer, _ = say(capsys, "eval", "--params", trained, "--output", table)
    assert code == 0
    assert {row["run"] for row in answer["rows"]} == {LABEL}
    saved = [row for row in evaluation_of(home) if row["step"] == "5"]
    with table.open(encoding="utf-8", newline="") as file:
        again = list(csv.DictReader(file))
    assert len(again) == len(saved) > 0
    facts = {"temperature", "evaluation_set"}  # of the run, and the same for all its rows
    for one, other in zip(saved, again, strict=True):
        assert {k: v for k, v in one.items() if k not in facts} == {
            k: v for k, v in other.items() if k != "run"
        }


def test_eval_takes_another_number_of_questions(trained, capsys):
    rows = say(capsys, "eval", "--params", trained, "--run", LABEL, "--questions", "9")[1]["rows"]
    assert next(row["questions"] for row in rows if row["hops"] == "all") == 9
    assert cli.main(["eval", "--params", str(trained)]) == 0
    assert capsys.readouterr().out.split()[:3] == ["run", "questions", "exact_match"]


# view


def test_view_shows_the_trajectories_that_were_kept(home, trained, capsys):
    code, answer, _ = say(capsys, "view", "--params", trained, "--all", "--count", "3")
    page = home / "results" / "10_try" / "views" / "tiny-grpo-seed_0.html"
    assert (code, answer["page"], answer["shown"]) == (0, str(page), 3)
    text = page.read_text(encoding="utf-8")
    assert text.count('aria-label="trajectory of question') == 3
    assert f"<title>Trajectories of {LABEL}</title>" in text
    failures = answer["failures"]
    code, answer, _ = say(capsys, "view", "--params", trained, "--output", home / "failed.html")
    assert answer["shown"] == min(5, failures)
    assert (home / "failed.html").exists()
    cli.main(["view", "--params", str(trained), "--run", LABEL])
    told = f"{answer['shown']} of {answer['trajectories']} trajectories of {LABEL}, {failures} of"
    assert capsys.readouterr().out.strip() == f"{told} which failed: {page.as_uri()}"


# report


def test_report_writes_the_page(home, trained, capsys):
    for name in ("90_figures", "99_report"):
        source = REPOSITORY / "params" / "smoke" / f"{name}.yaml"
        shutil.copy(source, home / "params" / "smoke")
    asked = home / "params" / "smoke" / "99_report.yaml"
    code, answer, _ = say(capsys, "report", "--params", asked)
    assert code == 0
    assert answer["folder"] == str(home / "results" / "99_report")
    assert {"claims.csv", "report.html", "report.md"} <= set(answer["files"])
    rows = (home / "results" / "99_report" / "claims.csv").read_text("utf-8").splitlines()
    assert sum(answer["verdicts"].values()) == len(rows) - 1 > 0
    cli.main(["report", "--params", str(asked)])
    assert "report.html" in capsys.readouterr().out


# probe and audit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "tables"),
    [
        ("probe", "14_surprisal_probe", {"agreement.csv", "decomposition.csv", "proxies.csv"}),
        ("audit", "20_credit_audit", {"cases.csv", "gates.csv", "blame.csv"}),
    ],
)
def test_probe_and_audit_run_their_notebooks(name, file, tables, tmp_path, capsys):
    asked = REPOSITORY / "params" / "smoke" / f"{file}.yaml"
    code, answer, err = say(capsys, name, "--params", asked, "--results", tmp_path)
    assert code == 0, err[-2000:]
    assert tables <= set(answer["tables"])
    assert answer["folder"] == str(tmp_path / file)
    assert answer["executed"] == str(tmp_path / "notebooks" / f"{file}.ipynb")


def test_a_notebook_that_fails_is_a_failed_run(tmp_path, capsys, monkeypatch):
    from turncredit.cli import notebooks

    def failing(notebook, **where):
        print("a cell's words")
        lines = ["Cell In[3], line 1", "----> 1 build(audit_at)", "ValueError: audit_at: step 9"]
        summary = f"{notebook.name} failed in cell [3] with ValueError"
        raise notebooks.NotebookFailed("\n".join([summary, *lines]))

    monkeypatch.setattr(notebooks, "run_notebook", failing)
    asked = REPOSITORY / "params" / "smoke" / "20_credit_audit.yaml"
    code, answer, err = say(capsys, "audit", "--params", asked, "--results", tmp_path)
    assert (code, answer["status"]) == (1, "failed run")
    assert answer["message"] == (
        "20_credit_audit.ipynb failed in cell [3] with ValueError: audit_at: step 9 "
        f"(parameters: {asked})"
    )
    assert "a cell's words" in err, "stdout is for the result"
    assert "----> 1 build(audit_at)" in err


@pytest.mark.parametrize("name", ["probe", "audit"])
def test_probe_and_audit_refuse_what_is_not_theirs(name, tmp_path, capsys):
    other = REPOSITORY / "params" / "smoke" / "10_grpo_baseline.yaml"
    code, answer, _ = say(capsys, name, "--params", other)
    assert code == 2
    assert f"{other}: notebook = '10_grpo_baseline' is no {name}" in answer["message"]
    own = REPOSITORY / "params/smoke/20_credit_audit.yaml"
    if name == "audit":
        values = yaml.safe_load(own.read_text("utf-8")) | {"rulez": 1}
        broken = tmp_path / "broken.yaml"
        broken.write_text(yaml.safe_dump(values), encoding="utf-8")
        code, answer, _ = say(capsys, name, "--params", broken)
        assert code == 2
        assert f"{broken}: " in answer["message"] and "rulez" in answer["message"]


# bad input


@pytest.mark.parametrize("name", [command.name for command in commands.COMMANDS])
def test_every_command_names_a_file_that_is_not_there_or_no_yaml(name, home, capsys):
    code, answer, err = say(capsys, name, "--params", home / "absent.yaml")
    assert (code, answer["status"]) == (2, "bad input")
    assert f"{home / 'absent.yaml'}: no such params file" in answer["message"]
    assert err.startswith("turncredit: bad input: ")
    (home / "odd.yaml").write_text("- 1\n", encoding="utf-8")
    code, answer, _ = say(capsys, name, "--params", home / "odd.yaml")
    assert (code, str(home / "odd.yaml") in answer["message"]) == (2, True)


@pytest.mark.parametrize(
    ("name", "changes", "options", "complaint"),
    [
        ("train", {"armz": []}, (), "unknown key 'armz'"),
        ("train", {"seeds": [-1]}, (), "seeds: -1 must be at least 0"),
        ("train", {"tasks": ["absent"]}, (), "absent.yaml: no such params file"),
        ("eval", {}, (), "no run that is finished with these parameters"),
        ("eval", {}, ("--run", "tiny/grpo/seed_7"), "10_try has no run 'tiny/grpo/seed_7'"),
        ("view", {}, (), "no trajectories are kept here; `turncredit train"),
        ("view", {}, ("--run", "x"), "10_try has no run 'x'"),
        ("report", {}, (), "unknown key"),
    ],
)
def test_bad_input_is_named(name, changes, options, complaint, home, capsys):
    path = write(home, "10_try", parameters(**changes))
    code, answer, err = say(capsys, name, "--params", path, *options)
    assert (code, answer["status"]) == (2, "bad input")
    assert complaint in answer["message"]
    assert answer["message"] in err
    assert not directory(home).manifest.exists()


def test_eval_refuses_a_run_of_other_parameters(home, trained, capsys):
    other = write(home, "10_try", parameters(warm_start_seeds=[1]))
    code, answer, _ = say(capsys, "eval", "--params", other)
    assert (code, "no run that is finished" in answer["message"]) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["train"],
        ["frain", "--params", "x"],
        ["train", "--params", "x", "--jobs", "0"],
        ["train", "--params", "x", "--jobs", "two"],
        ["train", "--para", "x"],
        ["completion", "tcsh"],
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == cli.BAD_INPUT
    assert "turncredit" in capsys.readouterr().err


def test_a_missing_package_names_what_brings_it(params_file, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "turncredit.cli.train", raising=False)
    monkeypatch.setitem(sys.modules, "turncredit.experiment", None)
    code, answer, _ = say(capsys, "train", "--params", params_file)
    assert code == 2
    assert "turncredit.experiment" in answer["message"]
    assert "turncredit[experiments]" in answer["message"]


# help, imports, completion


def test_every_command_has_examples_of_files_that_exist(capsys):
    for command in commands.COMMANDS:
        with pytest.raises(SystemExit) as ended:
            cli.main([command.name, "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        (file,) = set(re.findall(r"params/\S+\.yaml", text))
        assert (REPOSITORY / file).exists()
        assert all(option.flag in text for option in command.options)
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"turncredit {command.name} --params" in text for command in commands.COMMANDS)
    codes = re.search(r"exit codes: (.*)", text)[1]
    assert codes == ", ".join(f"{code} {name}" for code, name in cli.STATUS.items())


def python(code: str) -> str:
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY / "lib")}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout


def test_help_and_completion_import_nothing_heavy():
    heavy = "torch numpy pandas yaml matplotlib".split()
    code = (
        "import sys\nfrom turncredit.cli import main\nmain(['completion', 'bash'])\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('loaded:', [name for name in {heavy!r} if name in sys.modules])"
    )
    assert python(code).splitlines()[-1] == "loaded: []"


def test_importing_the_package_takes_no_time():
    """The best of five, since the machine may be busy with something else."""
    code = "import time; t = time.perf_counter(); import turncredit; print(time.perf_counter() - t)"
    assert min(float(python(code)) for _ in range(5)) < 0.2


def test_the_module_is_the_command():
    code = "import runpy, sys; sys.argv = ['x', '--version']; runpy.run_module('turncredit')"
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY / "lib")}
    version = subprocess.run(
        [sys.executable, "-m", "turncredit", "--version"],
        env=variables, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", version), code


@pytest.mark.parametrize("shell", commands.SHELLS)
def test_completion_knows_every_command_and_option(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for command in commands.COMMANDS:
        assert command.name in text
        for option in (commands.PARAMS, *command.options, *commands.COMMON):
            assert option.flag.removeprefix("--") in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script is not parsed")
    subprocess.run([shell, "-n"], input=text, text=True, check=True)


def complete(tmp_path, *words: str) -> set[str]:
    """What bash offers for the last of the words."""
    source = tmp_path / "completion.bash"
    source.write_text(completion.script("bash"), encoding="utf-8")
    line = " ".join(f"'{word}'" for word in ("turncredit", *words))
    code = (
        f"source {source}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _turncredit; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    run = subprocess.run(
        ["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def test_bash_completes_commands_options_and_files(tmp_path):
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "folder").mkdir()
    names = {command.name for command in commands.COMMANDS} | {"completion"}
    assert complete(tmp_path, "") == names | {"--help", "--version"}
    assert complete(tmp_path, "tr") == {"train"}
    assert complete(tmp_path, "eval", "--qu") == {"--questions"}
    assert complete(tmp_path, "train", "--qu") == set()
    assert complete(tmp_path, "view", "--params", "m") == {"mine.yaml"}
    assert complete(tmp_path, "view", "--results", "") == {"folder"}
    assert complete(tmp_path, "completion", "") == set(commands.SHELLS)


# outside a checkout


def test_without_a_checkout_the_folder_above_the_parameters_is_home(tmp_path, monkeypatch):
    file = tmp_path / "study" / "params" / "cpu" / "10_mine.yaml"
    monkeypatch.delenv("TURNCREDIT_HOME", raising=False)
    assert home_of(file) is None, "the checkout has its own"
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "site-packages" / "turncredit")
    assert home_of(file) == tmp_path / "study"
    assert home_of(tmp_path / "10_mine.yaml") is None
    monkeypatch.setenv("TURNCREDIT_HOME", str(tmp_path))
    assert home_of(file) is None
