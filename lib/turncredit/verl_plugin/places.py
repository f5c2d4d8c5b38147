"""Where a cluster run leaves its log and its checkpoints, and which run they belong to."""

import copy
import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.code_version import code_hash
from turncredit.storage import read_mapping, sha256_json, write_json
from turncredit.verl_plugin.cluster import ClusterRun

LOG_VARIABLE = "VERL_FILE_LOGGER_PATH"
"""Where verl's logger `file` writes; it empties the file that is there."""

CODE = ("turncredit.verl_plugin.agent_loop", "turncredit.verl_plugin.trainer")
"""Modules that a cluster run reaches besides those of our own loop."""


@dataclass(frozen=True)
class Place:
    """The folder of one run, which all nodes see."""

    path: Path

    @property
    def facts(self) -> Path:
        """Which run it is; see `facts_of`."""
        return self.path / "run.json"

    def logs(self) -> list[Path]:
        """verl's logs, one for each time that the run was started, in order."""
        return sorted(self.path.glob("log-*.jsonl"))

    def latest_step(self) -> int:
        """Of the latest checkpoint.  Raises ValueError naming the folder that has none."""
        note = self.path / "checkpoints" / "latest_checkpointed_iteration.txt"
        try:
            return int(note.read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.path}: no checkpoint was saved here ({error})") from error

    def model(self, step: int) -> Path:
        """The policy's folder in the checkpoint of a step, as transformers reads it.

        Raises ValueError naming what is there instead, or the setting that leaves weights out.
        """
        folder = self.path / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"
        if not folder.is_dir():
            there = sorted(
                int(path.name.rpartition("_")[2])
                for path in (self.path / "checkpoints").glob("global_step_*")
            )
            raise ValueError(f"{self.path}: no checkpoint of step {step}; there are {there}")
        if not any(folder.glob("*.safetensors")):
            raise ValueError(
                f"{folder}: no weights; actor.checkpoint.save_contents must name hf_model"
            )
        return folder

    def evaluation(self, step: int) -> Path:
        """Where an evaluation of the checkpoint of a step lies; see `evaluate`."""
        return self.path / "evaluations" / f"step_{step}"

    def evaluations(self) -> dict[int, list[dict[str, Any]]]:
        """The rows of our own evaluations on all questions, by step."""
        found = {}
        for manifest in self.path.glob("evaluations/step_*/manifest.json"):
            told = read_mapping(manifest, "delete its folder")
            if not told or not told["of_all_questions"]:
                continue
            with (manifest.parent / "eval.csv").open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            found[int(rows[0]["step"])] = [
                {key: value or None for key, value in row.items()} for row in rows
            ]
        return found

    def told_to(self, config: Any) -> Any:
        """A composed configuration whose checkpoints and log go here."""
        from omegaconf import OmegaConf

        config.trainer.default_local_dir = str(self.path / "checkpoints")
        loggers = OmegaConf.to_container(config.trainer.logger)
        config.trainer.logger = list(dict.fromkeys([*loggers, "file"]))
        return config

    def begin(self, run: ClusterRun) -> Path:
        """Note what run this is; where its log goes, beside those of earlier starts.

        Raises ValueError for a folder that holds another run, from whose checkpoints verl would go
        on: another seed, overrides or code.
        """
        told, facts = read_mapping(self.facts, "delete the folder to start anew"), facts_of(run)
        if told is not None and told != facts:
            changed = next(key for key in facts if told.get(key) != facts[key])
            raise ValueError(
                f"{self.path} holds a run with other {changed}, whose checkpoints verl would go on "
                "from; take another --runs, or delete the folder"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.facts, facts)
        return self.path / f"log-{len(self.logs()) + 1:03}.jsonl"


def facts_of(run: ClusterRun) -> dict[str, Any]:
    """What makes a run what it is, for `run.json`."""
    model, agent, machine, method = run.names
    verl = copy.deepcopy(run.verl)  # a run may go on with its servers on another node
    verl["actor_rollout_ref"]["rollout"]["custom"].pop("head", None)
    parts = {"model": model, "agent": agent, "machine": machine, "method": method}
    return {
        "parts": parts,
        "seed": run.seed,
        "overrides": verl,
        "params_hash": sha256_json(verl),
        "code_hash": code_hash(*CODE),
    }
