"""From a file of one's own to its figures, by its name in params; the library is not edited."""

import pandas as pd
import pytest
import yaml
from pipeline.tiny_runs import PLAIN, REPOSITORY, directory, parameters

from turncredit import plots
from turncredit.experiment import experiment_from, run_experiment
from turncredit.run_checks import check_runs
from turncredit.training.extensions import OPEN

SOURCE = """
import torch
from turncredit.credit import TURN_WEIGHTS

@TURN_WEIGHTS.add
def own_half(batch, base, *, share: float = 0.5):
    return torch.full(batch.turn_lengths().shape, share, dtype=base.dtype)
"""
ARMS = {"grpo": PLAIN, "own_half": PLAIN | {"module": "own.py", "weight": "own_half"}}


@pytest.fixture
def asked(home, inline):
    """Parameters of two arms by name, in a home with the file and the methods."""
    before = [dict(table) for table in OPEN]
    (home / "own.py").write_text(SOURCE)
    (home / "params" / "methods.yaml").write_text(yaml.safe_dump(ARMS))
    figures = (REPOSITORY / "params" / "smoke" / "90_figures.yaml").read_text()
    (home / "params" / "smoke" / "90_figures.yaml").write_text(figures)
    yield parameters(arms=["grpo", "own_half"])
    for table, methods in zip(OPEN, before, strict=True):
        table.clear()
        table.update(methods)


def test_a_file_of_ones_own_runs_and_is_drawn_in_every_figure(home, asked):
    experiment = experiment_from(asked)
    assert run_experiment(experiment) == ["tiny/grpo/seed_0", "tiny/own_half/seed_0"]
    check_runs(experiment)
    shares = pd.read_csv(directory(home, "tiny/own_half/seed_0").path / "metrics.csv")
    assert (shares["weight_max"] == 0.5).all()
    study = plots.open_study(experiment)
    assert list(study.outcomes["arm"]) == ["grpo", "own_half"]
    for name in plots.GALLERY:
        plots.draw(study, name)
    texts = [text.get_text() for text in plots.draw(study, "outcomes").findobj() if is_text(text)]
    assert any("own half" in text for text in texts)

    assert run_experiment(experiment_from(asked)) == []
    (home / "own.py").write_text(SOURCE.replace("0.5", "0.25"))
    edited = experiment_from(asked)
    assert run_experiment(edited) == ["tiny/own_half/seed_0"]
    shares = pd.read_csv(directory(home, "tiny/own_half/seed_0").path / "metrics.csv")
    assert (shares["weight_max"] == 0.25).all()
    (home / "own.py").unlink()
    with pytest.raises(ValueError, match=r"arms\.own_half: module 'own\.py': there is no file"):
        experiment_from(asked)


def is_text(artist) -> bool:
    return hasattr(artist, "get_text")
