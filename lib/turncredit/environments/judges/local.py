"""A judge that is a language model on this machine."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from turncredit.environments.judges.base import VERDICTS
from turncredit.environments.judges.prompt import judge_messages, latest_sections
from turncredit.params import require_positive
from turncredit.worlds.base import Question


@dataclass(frozen=True)
class LocalSettings:
    """Which model judges, and how much it reads."""

    KIND: ClassVar[str] = "local"

    folder: str
    """Hugging Face folder of a causal language model and its tokenizer; nothing is downloaded."""
    context_tokens: int = 2048
    """Of the gathered context; the earliest sections are left out."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_positive(self, "context_tokens")


class LocalJudge:
    """Compares the probabilities that the model's reply starts with each of the three words.

    No text is sampled, so equal requests get equal verdicts, and there is no junk to read.  The
    verdict never depends on the gold answer.  `counts` holds `answered` and, each UNCERTAIN,
    `too_long` (the prompt exceeds the model's positions), `not_finite` (its numbers are broken) and
    `error`.

    Raises ImportError with the pip command when transformers is missing, FileNotFoundError naming
    the folder when there is no model in it, and ValueError naming it when it cannot be read or
    lacks weights.
    """

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._tokenizer, self._model = _load(Path(settings.folder), settings.device)
        chat = self._tokenizer.chat_template is not None
        # After a chat template's generation prompt a reply starts on a new line, else in mid-line.
        self._words = [self._encode(word if chat else f" {word}") for word in VERDICTS]

    def __repr__(self) -> str:
        return f"LocalJudge({self.settings!r})"

    def verdict(
        self, question: Question, answer: str, context: Sequence[str], stream: random.Random
    ) -> str:
        """Verdict on `answer`; draws nothing from `stream`."""
        try:
            prompt = self.prompt_ids(question.text, answer, context)
            verdict, outcome = self._choose(prompt)
        except (RuntimeError, ValueError, IndexError):  # out of memory, a template that refuses
            verdict, outcome = "UNCERTAIN", "error"
        self.counts[outcome] += 1
        return verdict

    def prompt_ids(self, question: str, answer: str, context: Sequence[str]) -> list[int]:
        """Token ids of the prompt; its sections take at most `context_tokens`."""
        sections = latest_sections(
            context, self.settings.context_tokens, lambda block: len(self._encode(block))
        )
        messages = judge_messages(question, answer, sections)
        if self._tokenizer.chat_template is None:
            text = "\n\n".join(message["content"] for message in messages)
            return self._tokenizer.encode(f"{text}\nVerdict:")
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return self._encode(text)

    @torch.inference_mode()
    def log_probabilities(self, prompt_ids: Sequence[int]) -> Tensor:
        """(3,) float32: log-probability, in nats, of each of `VERDICTS` after the prompt."""
        device = self.settings.device
        longest = max(map(len, self._words))
        words = torch.tensor([ids + [0] * (longest - len(ids)) for ids in self._words])
        present = torch.arange(longest) < torch.tensor([[len(ids)] for ids in self._words])
        prompt = torch.tensor([list(prompt_ids)], device=device)
        read = self._model(input_ids=prompt, use_cache=True, logits_to_keep=1)
        cache = read.past_key_values
        cache.batch_repeat_interleave(len(words))  # the prompt is read once for all words
        after = self._model(input_ids=words[:, :-1].to(device), past_key_values=cache).logits
        logits = torch.cat([read.logits.expand(len(words), -1, -1), after], dim=1).float().cpu()
        chosen = torch.log_softmax(logits, dim=-1).gather(2, words.unsqueeze(2)).squeeze(2)
        return torch.where(present, chosen, 0.0).sum(1)

    def _choose(self, prompt_ids: list[int]) -> tuple[str, str]:
        """(verdict, outcome as counted)."""
        positions = getattr(self._model.config, "max_position_embeddings", None)
        if positions and len(prompt_ids) + max(map(len, self._words)) > positions:
            return "UNCERTAIN", "too_long"
        scores = self.log_probabilities(prompt_ids)
        if not scores.isfinite().all():
            return "UNCERTAIN", "not_finite"
        return VERDICTS[int(scores.argmax())], "answered"

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _load(folder: Path, device: str) -> tuple[Any, Any]:
    """Tokenizer and model; the errors are those of `LocalJudge`."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder}: no language model here (config.json is missing)")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ImportError("a local judge needs transformers: pip install transformers") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, loaded = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, dtype="auto"
        )
    except Exception as error:  # a broken folder raises nearly anything
        raise ValueError(f"{folder}: not a readable language model ({error})") from error
    if loaded["missing_keys"]:  # they would be drawn at random, and the verdicts with them
        raise ValueError(f"{folder}: weights are missing, such as {min(loaded['missing_keys'])}")
    return tokenizer, model.to(device).eval()
