"""What lies behind the names in a task's settings: the files that decide what a run learns.

A path says where a file lies and not what is in it.  Runs are told apart by both: by the settings,
and by the hashes given here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turncredit import paths
from turncredit.policies.model_sources import model_folder
from turncredit.storage import content_sha256, file_stamp, sha256_json

_MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt", "*.jinja")
"""Files of a model's folder that loading may read."""


def content_stamps(settings: Any) -> tuple[tuple[str, int, int], ...]:
    """Path, size and time of change of the files behind a task's settings, where they exist.

    Settings that are equal, with equal stamps, are the same task; nothing is read, and no network
    is asked.
    """
    world = settings.world.stamps() if settings.world.KIND == "files" else ()
    files = [file for folder in _folders(settings) for file in _model_files(folder)]
    return world + tuple(map(file_stamp, files))


def content_hashes(settings: Any) -> dict[str, str]:
    """Hashes by key of a task's settings: what its files hold, wherever they lie; {} without any.

    Question files by their bytes, an index and its corpus as its manifest pins them, and a model's
    folder by the names and bytes of its files.  A model of the Hugging Face hub has its revision,
    one converted from a pip package the hash of its GGUF file.  Raises what `model_folder` raises.
    """
    found = settings.world.content_hashes() if settings.world.KIND == "files" else {}
    if settings.policy.KIND != "tiny":
        found["policy.model"] = _model_sha256(settings.policy.model)
    if settings.judge.KIND == "local":
        found["judge.folder"] = _folder_sha256(Path(settings.judge.folder))
    return found


def _folders(settings: Any) -> Iterator[Path]:
    """Folders of this machine with a model in them that the settings name."""
    if settings.policy.KIND != "tiny" and ":" not in settings.policy.model:
        yield paths.repository() / Path(settings.policy.model).expanduser()
    if settings.judge.KIND == "local":
        yield Path(settings.judge.folder)


def _model_sha256(source: str) -> str:
    folder = model_folder(source)
    if source.startswith("hub:") or folder.parent == paths.cache() / "models":
        return folder.name  # the revision of a snapshot; or a GGUF file's name and hash
    return _folder_sha256(folder)


def _folder_sha256(folder: Path) -> str:
    return sha256_json([[file.name, content_sha256(file)] for file in _model_files(folder)])


def _model_files(folder: Path) -> list[Path]:
    found = {file for pattern in _MODEL_FILES for file in folder.glob(pattern)}
    return sorted(file for file in found if file.is_file())
