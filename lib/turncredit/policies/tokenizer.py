"""The tokens of a Hugging Face model, as the rollout engine wants them."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turncredit.policies.model_sources import import_transformers
from turncredit.policies.protocol import MessageEnd

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


class ModelTokens:
    """A model's own tokenizer; `end_ids` end a message wherever they are sampled.

    chat: put the prompt into the model's chat template, as the user's message.  preface: what
    stands before every prompt, such as worked examples.  Observations are encoded as plain text:
    what a document says is never a control token.  `source` is what errors name.
    """

    def __init__(
        self, tokenizer: Any, end_ids: Sequence[int], source: str, *, chat: bool, preface: str
    ) -> None:
        if chat and tokenizer.chat_template is None:
            raise ValueError(f"chat = True, but {source} has no chat template")
        self.end_ids = frozenset(end_ids)
        self._tokenizer, self._source = tokenizer, source
        self._chat, self._preface = chat, preface
        self._encode = functools.lru_cache(maxsize=8192)(self._encode_once)
        self._piece = functools.lru_cache(maxsize=None)(lambda index: self.decode([index]))

    def __len__(self) -> int:
        return len(self._tokenizer)

    @functools.cached_property
    def entries(self) -> tuple[str, ...]:
        """The tokens in order of their ids, as the tokenizer writes them."""
        return tuple(self._tokenizer.convert_ids_to_tokens(range(len(self))))

    def id(self, word: str) -> int:
        """Id of a word that is one token; KeyError naming it if it takes several."""
        ids = self._encode(word)
        if len(ids) != 1:
            raise KeyError(f"word {word!r} is {len(ids)} tokens of {self._source}, not one")
        return ids[0]

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text, none of them a control token."""
        return self._encode(text)

    def _encode_once(self, text: str) -> tuple[int, ...]:
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return tuple(ids["input_ids"])

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Ids of preface and text in the chat template, or after the model's start token."""
        text = self._preface + text
        if self._chat:
            message = [{"role": "user", "content": text}]
            text = self._tokenizer.apply_chat_template(
                message, tokenize=False, add_generation_prompt=True
            )
        ids = self._tokenizer(text, add_special_tokens=not self._chat)["input_ids"]
        while ids and ids[-1] == self._tokenizer.eos_token_id:  # the text is to go on
            ids.pop()
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without control tokens."""
        kept = [index for index in ids if index not in self.end_ids]
        return self._tokenizer.decode(
            kept, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def message_end(self, closing: Sequence[str]) -> MessageEnd:
        """Where a message ends: at an end token, or with the token that completes a closing tag.

        A tag may span several tokens, and its last one may hold more text.  Only a token with a
        tag's last sign makes it look back, over as many tokens as the longest tag has letters.
        Raises ValueError naming a tag that the tokenizer cannot spell, and the tokenizer.
        """
        longest, last = max(map(len, closing)), {tag[-1] for tag in closing}

        def ended(ids: Sequence[int]) -> bool:
            if ids[-1] in self.end_ids:
                return True
            if last.isdisjoint(self._piece(ids[-1])):
                return False
            tail = self.decode(ids[-longest:])
            return any(tag in tail for tag in closing)

        for tag in closing:
            self._require_spelling(tag, ended)
        return ended

    def _require_spelling(self, tag: str, ended: MessageEnd) -> None:
        text = f"{tag.replace('</', '<', 1)} {tag}"
        ids = self._encode(text)
        spelt = self.decode(ids)
        if spelt.strip() != text or not ended(ids):
            raise ValueError(f"{self._source}: the tokenizer turns {text!r} into {spelt!r}")


def open_tokens(folder: Path, config: Any, *, chat: bool, preface: str) -> ModelTokens:
    """The tokens of the model in `folder` with this configuration.

    Raises ValueError naming the folder if it holds no readable tokenizer or one with more entries
    than the model knows.
    """
    transformers = import_transformers()
    if not any((folder / name).is_file() for name in _FILES):  # transformers would make up one
        raise ValueError(f"{folder}: no tokenizer here, none of {', '.join(_FILES)}")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a broken or missing file raises nearly anything
        raise ValueError(f"{folder}: no readable tokenizer ({error})") from error
    size = config.get_text_config().vocab_size
    if not 0 < len(tokenizer) <= size:
        raise ValueError(
            f"{folder}: the tokenizer has {len(tokenizer)} entries, the model of config.json {size}"
        )
    return ModelTokens(
        tokenizer,
        sorted(_end_ids(transformers, folder, config, tokenizer)),
        str(folder),
        chat=chat,
        preface=preface,
    )


def _end_ids(transformers: Any, folder: Path, config: Any, tokenizer: Any) -> set[int]:
    """Ids after which the model's own generation stops; chat models have several."""
    named = [tokenizer.eos_token_id, config.get_text_config().eos_token_id]
    if (folder / "generation_config.json").is_file():
        generation = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
        named.append(generation.eos_token_id)
    found: set[int] = set()
    for value in named:
        found |= set(value) if isinstance(value, (list, tuple)) else {value}
    return found - {None}
