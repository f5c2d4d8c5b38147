"""Any environment of this package under other people's loops; only the protocol is needed.

`chat` speaks in messages (OpenAI style, and the hooks of the `verifiers` library), `text_gym` in
Gymnasium's methods, both ways, `tokens` in token ids (verl's agent loops and anything else with an
asynchronous `generate`), and `verifiers_style` plays multi-turn environments of `verifiers`.
`served` plays a shop and a sandbox behind servers of their own, by way of `text_gym`.
"""

from turncredit.environments.adapters.chat import (
    ChatEnvironment,
    ChatEpisode,
    chat_messages,
    tool_schemas,
    trajectory_messages,
)
from turncredit.environments.adapters.served import SandboxServer, WebShopServer
from turncredit.environments.adapters.text_gym import GymEnvironment, TextGym
from turncredit.environments.adapters.tokens import TokenEpisode, play_tokens
from turncredit.environments.adapters.verifiers_style import VerifiersEnvironment

__all__ = [
    "ChatEnvironment",
    "ChatEpisode",
    "GymEnvironment",
    "SandboxServer",
    "TextGym",
    "TokenEpisode",
    "VerifiersEnvironment",
    "WebShopServer",
    "chat_messages",
    "play_tokens",
    "tool_schemas",
    "trajectory_messages",
]
