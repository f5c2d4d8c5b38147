"""The settings of a language model that the benchmarks load as it is, on a CPU."""

from turncredit.policies.huggingface import HuggingFaceSettings


def on_cpu(source: str, max_tokens: int) -> HuggingFaceSettings:
    """fp32 without a template, preface or adapter; `source` as in docs/training.md."""
    return HuggingFaceSettings(
        model=source,
        max_tokens=max_tokens,
        chat=False,
        preface="",
        dtype="float32",
        attention="sdpa",
        micro_batch_rows=4,
        gradient_checkpointing=False,
        device="cpu",
        lora=None,
    )
