"""The plans of a tier fit together: experiments that are compared share warm starts and hold no run
twice, and each has its reference where it is compared."""

import re
from collections import Counter, defaultdict

import pytest

from turncredit import params, paths, plots
from turncredit.experiment import jobs_of, one_of_each_task
from turncredit.params import build
from turncredit.plans import Experiment, grid_variants, with_methods
from turncredit.tasks import open_task

TIERS = sorted(path.name for path in (paths.repository() / "params").iterdir() if path.is_dir())
NOTEBOOKS = paths.repository() / "notebooks"


def experiments(tier: str) -> dict[str, Experiment]:
    """Every experiment of a tier by its notebook."""
    found = {}
    for path in sorted([*paths.params(tier).glob("1*.yaml"), *paths.params(tier).glob("21*.yaml")]):
        values = params.read_yaml(path)
        for key in ("after", "audit", "following", "engine"):  # what is played beside the runs
            values.pop(key, None)
        if "axes" in values:
            variants = grid_variants(values.pop("axes"))
            values |= {"tasks": [values.pop("task")], "variants": variants, "further": []}
        if "arms" in values:  # the probe trains by itself
            found[path.stem] = build(Experiment, with_methods(values), str(path))
    return found


def beside(notebook: str) -> list[str]:
    """The notebooks whose runs one reads beside its own."""
    text = (NOTEBOOKS / f"{notebook}.ipynb").read_text(encoding="utf-8")
    lists = re.findall(r"beside ?= ?\[([^\]]*)\]", text)
    return sorted(set(re.findall(r"\d\d_\w+", " ".join(lists))))


@pytest.mark.parametrize("tier", TIERS)
def test_runs_of_one_task_and_seed_have_one_warm_start(tier):
    starts = defaultdict(set)
    for experiment in experiments(tier).values():
        for job in jobs_of(experiment):
            starts[job.varied_task, job.seed].add(job.warm_start_seed)
    assert {key: found for key, found in starts.items() if len(found) > 1} == {}


@pytest.mark.parametrize("tier", TIERS)
def test_no_run_is_planned_twice(tier):
    planned = defaultdict(list)
    for notebook, experiment in experiments(tier).items():
        for job in jobs_of(experiment):
            planned[job.label].append(notebook)
    assert {label: held for label, held in planned.items() if len(held) > 1} == {}


@pytest.mark.parametrize("tier", TIERS)
def test_every_arm_has_runs_of_the_reference_on_its_task_and_seeds(tier):
    known = experiments(tier)
    for notebook, experiment in known.items():
        sources = [experiment, *(known[name] for name in beside(notebook))]
        reference = {
            (job.varied_task, job.seed)
            for source in sources
            for job in jobs_of(source)
            if job.arm == "grpo"
        }
        asked = {(job.varied_task, job.seed) for job in jobs_of(experiment)}
        assert asked <= reference, (notebook, sorted(asked - reference)[:3])


@pytest.mark.parametrize("tier", TIERS)
def test_every_warm_start_has_as_many_seeds_as_the_others(tier):
    """Else a comparison within warm starts would weigh one of them more."""
    if tier == "smoke":
        pytest.skip("one or two seeds show that the pages are drawn, not how far results differ")
    for notebook, experiment in experiments(tier).items():
        for plan in experiment.plans:
            starts = Counter(seed % len(experiment.warm_start_seeds) for seed in plan.seeds)
            assert len(starts) == len(experiment.warm_start_seeds), notebook
            assert len(set(starts.values())) == 1, notebook


def test_the_headline_arms_have_sixteen_seeds_on_the_trap():
    known = experiments("cpu").values()
    jobs = [job for experiment in known for job in jobs_of(experiment)]
    for arm in ("grpo", "suffix_mask", "aem"):
        seeds = {j.seed for j in jobs if (j.varied_task, j.arm) == ("tempting_guess", arm)}
        assert len(seeds) >= 16, arm


@pytest.mark.parametrize("tier", ["cpu", "smoke"])
def test_every_task_and_variant_speaks_the_language_of_its_warm_start(tier):
    for experiment in experiments(tier).values():
        for job in one_of_each_task(jobs_of(experiment)):
            task = job.open_task()
            source = open_task(tier, task.settings.warm_start_task)
            assert task.vocabulary.entries == source.vocabulary.entries, job.label
            assert task.settings.policy == source.settings.policy, job.label


def test_the_gallery_knows_the_notebooks():
    assert {*plots.gallery.EXHIBITS} <= {path.stem for path in NOTEBOOKS.glob("[12]*.ipynb")}
