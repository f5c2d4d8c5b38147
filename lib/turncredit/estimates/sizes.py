"""The shapes of a policy, from its settings or its config.json; no weight is read."""

from dataclasses import dataclass

from torch import nn

from turncredit.policies.huggingface import HuggingFaceSettings, LoraSettings
from turncredit.policies.model_sources import causal_skeleton
from turncredit.policies.tiny import TinySettings


@dataclass(frozen=True)
class Sizes:
    """Shapes of a decoder-only transformer."""

    layers: int
    width: int
    heads: int
    queries: int
    """Width of all heads' queries together."""
    keys: int
    """Width of the keys of a token, which is that of its values."""
    inner: int
    """Width inside the MLP."""
    vocabulary: int
    parameters: int
    """Each once, embeddings included."""
    matrices: int
    """Those that multiply every token: embeddings, norms and head left out."""
    trained: int
    normed_heads: bool = False
    """Queries and keys pass a norm, as in Qwen3."""


def tiny_sizes(policy: TinySettings, vocabulary: int) -> Sizes:
    """The shapes of a tiny policy that knows `vocabulary` words."""
    width, keys = policy.width, policy.width // policy.heads
    matrices = policy.layers * (10 * width * width + 2 * width * keys)
    total = matrices + vocabulary * width + (2 * policy.layers + 1) * 2 * width
    shapes = (policy.layers, width, policy.heads, width, keys, 4 * width, vocabulary)
    return Sizes(*shapes, parameters=total, matrices=matrices, trained=total)


def model_sizes(policy: HuggingFaceSettings) -> Sizes:
    """The shapes of a language model, by its configuration; of no weight is anything read."""
    _, config = policy.find_model()
    skeleton, text = causal_skeleton(config), config.get_text_config()
    heads = text.num_attention_heads
    depth = getattr(text, "head_dim", None) or text.hidden_size // heads
    head = skeleton.get_output_embeddings()
    layers = {n: m for n, m in skeleton.named_modules() if type(m) is nn.Linear}
    inner = {n: m.weight.numel() for n, m in layers.items() if m is not head}
    total = sum(parameter.numel() for parameter in skeleton.parameters())
    trained = total if policy.lora is None else _adapter_size(policy.lora, layers, head)
    return Sizes(
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        heads=heads,
        queries=heads * depth,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * depth,
        inner=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocabulary=text.vocab_size,
        parameters=total + (0 if policy.lora is None else trained),
        matrices=sum(inner.values()),
        trained=trained,
        normed_heads=any(name.endswith("q_norm") for name, _ in skeleton.named_modules()),
    )


def _adapter_size(lora: LoraSettings, layers: dict, head: nn.Module) -> int:
    chosen = [
        layer
        for name, layer in layers.items()
        if layer is not head and (not lora.targets or name.rsplit(".", 1)[-1] in lora.targets)
    ]
    return sum(lora.rank * (layer.in_features + layer.out_features) for layer in chosen)
