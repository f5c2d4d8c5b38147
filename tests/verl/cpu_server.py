"""The rollout server of `cpu_engine`.

Nothing of verl is imported on top: Ray imports this module first in the server's process, and verl
would load its plugins before the platform is there.
"""

import hashlib
from collections import Counter

import torch


class Server:
    """Samples token by token with the model of a folder, then with the weights it is sent.

    What it draws depends on the seed, the step, the context and how often that was asked before at
    this step, but not on who asks first: a run that goes on draws what it would have drawn.
    """

    def __init__(self, path, seed):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.seed, self.step, self.asked = seed, None, Counter()

    def load(self, weights, step):
        """Take over weights by name; a missing or unknown one is an error."""
        self.model.load_state_dict(weights, strict=True)
        self.step, self.asked = step, Counter()

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        """As verl's servers answer; like vLLM a message ends at a stop text or the end token."""
        from verl.workers.rollout.replica import TokenOutput

        most, stop = sampling_params["max_tokens"], tuple(sampling_params["stop"])
        ids, logprobs = self.sample(prompt_ids, most, stop, sampling_params["temperature"])
        return TokenOutput(
            token_ids=ids, log_probs=logprobs, stop_reason="completed",
            extra_fields={"global_steps": self.step},
        )  # fmt: skip

    @torch.no_grad()
    def sample(self, prompt, most, stop, temperature):
        """Ids and log-probs of one message."""
        ids, logprobs, given, cache = [], [], list(prompt), None
        stream = self.stream(tuple(prompt))
        while len(ids) < most:
            output = self.model(torch.tensor([given]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            scores = output.logits[0, -1].float()
            known = torch.log_softmax(scores / (temperature or 1.0), dim=-1)
            token = int(torch.multinomial(known.exp(), 1, generator=stream))
            token = int(known.argmax()) if temperature == 0 else token
            ids.append(token)
            logprobs.append(float(known[token]))
            given = [token]
            if token == self.tokenizer.eos_token_id or self.tokenizer.decode(ids).endswith(stop):
                break
        return ids, logprobs

    def stream(self, context):
        """The stream of the next message that is asked for after this context."""
        named = repr((self.seed, self.step, self.asked[context], context)).encode()
        self.asked[context] += 1
        seed = int.from_bytes(hashlib.sha256(named).digest()[:7], "big")
        return torch.Generator().manual_seed(seed)

    async def idle(self):
        """For everything that a GPU would have to wake, drain or free."""

    sleep = wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = idle
    resume_generation = abort_all_requests = idle
