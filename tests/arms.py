"""A home with a task of seconds, and the parameters of an experiment on it, for tests of arms."""

import yaml

from turncredit import params, paths


def home_with_task(folder, monkeypatch):
    """The smoke task cut down to seconds; the penalty makes rewards differ without any skill."""
    values = params.read_yaml(paths.params("smoke") / "tasks" / "costly_guess.yaml")
    values["environment"] |= {"invalid_ends": False, "invalid_penalty": 0.1}
    values["policy"] |= {"width": 16, "layers": 1, "max_tokens": 48}
    values["warm_start"] |= {"steps": 2, "batch": 4}
    values["training"] |= {"steps": 2, "questions_per_step": 2, "learning_rate": 0.01}
    values["evaluation"] |= {"questions": 4, "every": 2}
    path = folder / "params" / "smoke" / "tasks" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(values | {"warm_start_task": "tiny"}))
    for name, place in {"HOME": folder, "RESULTS": folder / "r", "CACHE": folder / "c"}.items():
        monkeypatch.setenv(f"TURNCREDIT_{name}", str(place))


def parameters(**arms: dict) -> dict:
    plain = {"weight": "none", "weight_options": {}, "objective": "ppo_clip"}
    plain |= {"objective_options": {}, "base_options": {}}
    values = {"tier": "smoke", "notebook": "10_try", "tasks": ["tiny"], "variants": {}}
    values |= {"seeds": [0], "further": [], "warm_start_seeds": [0]}
    return values | {"arms": {name: plain | arm for name, arm in arms.items()}}
