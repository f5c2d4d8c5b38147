"""The agent loop of verl that plays our environments."""

import time
from functools import lru_cache
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from turncredit.environments.protocol import Environment
from turncredit.policies.tokenizer import ModelTokens
from turncredit.seeding import derive
from turncredit.verl_plugin.episodes import (
    Said,
    message_tags,
    open_environment,
    play,
    question_of,
    unreported,
)
from turncredit.verl_plugin.evaluations import outcome_of
from turncredit.verl_plugin.outputs import FAILURES, NOTE, response_of
from turncredit.verl_plugin.settings import AGENT_LOOP, AgentSettings, read_agent


@register(AGENT_LOOP)
class TurnCreditAgentLoop(AgentLoopBase):
    """Plays one episode: exact turn spans and stop reason travel in `extra_fields`.

    The prompt is the environment's, made from the row's question; the row's own is not read.
    """

    def __init__(self, *args: Any, tools: Any = None, **kwargs: Any) -> None:
        from omegaconf import OmegaConf

        super().__init__(*args, **kwargs)
        custom = OmegaConf.to_container(self.rollout_config.custom, resolve=True)
        self.settings = read_agent({"actor_rollout_ref": {"rollout": {"custom": custom}}})
        self.environment: Environment = open_environment(self.settings)
        source = str(self.config.actor_rollout_ref.model.path)
        self.tokens = tokens_of(self.tokenizer, self.settings, source)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """The output of one episode on the row's question."""
        begun, server = time.perf_counter(), _Server(self, sampling_params)
        question = question_of(kwargs)
        trajectory = await play(
            server.sample,
            self.tokens,
            self.environment,
            question,
            seed=_seed(self.settings.seed, kwargs, question.id),
            prompt_tokens=self.rollout_config.prompt_length,
            response_tokens=self.rollout_config.response_length,
            max_turn_tokens=self.settings.max_turn_tokens,
        )
        failures = unreported(self.settings).take(lambda: self.environment.failures)
        response = response_of(trajectory)
        told = outcome_of(trajectory) | {FAILURES: float(sum(failures.values()))}
        seconds = time.perf_counter() - begun
        return AgentLoopOutput(
            prompt_ids=list(trajectory.prompt_ids),
            response_ids=response.ids,
            response_mask=response.mask,
            response_logprobs=response.logprobs,
            reward_score=float(trajectory.reward or 0.0),  # a missing one is None in the note
            num_turns=2 * len(trajectory.turns),
            metrics=AgentLoopMetrics(
                generate_sequences=server.seconds, tool_calls=seconds - server.seconds
            ),
            extra_fields=server.extra
            | {NOTE: response.note | {FAILURES: failures}, "reward_extra_info": told},
        )


@lru_cache(maxsize=4)
def tokens_of(tokenizer: Any, settings: AgentSettings, source: str) -> ModelTokens:
    """The tokens of a worker's tokenizer, made once: verl makes an agent loop for each episode."""
    ends = [tokenizer.eos_token_id]
    return ModelTokens(tokenizer, ends, source, chat=settings.chat, preface=settings.preface)


class _Server:
    """The engine behind one episode: one request id, and what the engine says of its weights."""

    def __init__(self, loop: TurnCreditAgentLoop, sampling_params: dict[str, Any]) -> None:
        self.loop, self.params = loop, sampling_params
        self.stop = list(message_tags(loop.environment))
        self.request = uuid4().hex
        self.seconds = 0.0
        self.extra: dict[str, Any] = {}

    async def sample(self, ids: list[int], most: int) -> Said:
        """The next message: the engine stops at a closing tag, and its sign is kept."""
        begun = time.perf_counter()
        wanted = {"max_tokens": most, "stop": self.stop, "include_stop_str_in_output": True}
        output = await self.loop.server_manager.generate(
            request_id=self.request, prompt_ids=ids, sampling_params=self.params | wanted
        )
        self.seconds += time.perf_counter() - begun
        if output.stop_reason == "aborted":
            raise RuntimeError("the engine aborted a message, which a synchronous run never does")
        latest = output.extra_fields.get("max_global_steps")
        self.extra = self.extra or dict(output.extra_fields)
        if latest is not None:
            self.extra["max_global_steps"] = latest
        return Said(output.token_ids, output.log_probs or ())


def _seed(seed: int, row: dict[str, Any], question: str) -> int:
    """The episode's seed: by step, question and member of the group, so that a run repeats.

    The question's id is unique among all files; verl's `index` is counted anew in each.
    """
    known = (str(row.get(key, "")) for key in ("global_steps", "index", "session_id"))
    return derive(seed, "agent loop", question, *known)
