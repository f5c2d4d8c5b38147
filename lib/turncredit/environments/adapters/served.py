"""Environments behind servers of their own, as what `GymEnvironment` plays: a shop and a sandbox.

`WebShopServer` speaks to AgentGym's server of WebShop (`agentenv-webshop`), `SandboxServer` to
SWE-ReX (`swerex-remote`), in which commands of software engineering run.  Neither the servers nor
their data are brought here; requests and answers were taken from their public code, and the tests
play local stand-ins that speak the same protocol.  A server that refuses, is slow or answers
something else raises OSError, which ends the episode with a counted `error`.
"""

import json
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

Observed = tuple[str, float, bool, dict[str, Any]]
"""Observation, reward, whether it is over, what else is known."""


def asked(
    url: str,
    body: Mapping[str, Any] | None,
    timeout: float,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """The JSON that a server answers to a POST of `body`, or to a GET if that is None.

    Raises OSError naming the address for a status that is none of success, for no answer within
    `timeout` seconds, and for an answer that is no JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, data, sent), timeout=timeout
        ) as answer:
            return json.loads(answer.read())
    except ValueError as error:
        raise OSError(f"{url}: the answer is no JSON ({error})") from error
    except OSError as error:
        raise OSError(f"{url}: {error}") from error


class WebShopServer:
    """One session of WebShop on AgentGym's server.

    url: of the server.  session: number of its goal, which decides everything, so that an episode
    can be replayed.  Its reward is between 0 and 1, and 1 is a success.
    """

    def __init__(self, url: str, session: int, *, timeout: float = 60.0) -> None:
        self.url, self.session, self.timeout = url.rstrip("/"), session, timeout
        self.number = _expected(self._post("create", {}), int, "a number")

    def reset(self) -> str:
        """The first page, with the instruction."""
        shown, *_ = self._post("reset", {"env_idx": self.number, "session_id": self.session})
        return _expected(shown, str, "a text")

    def step(self, action: str) -> Observed:
        """Give `search[...]` or `click[...]`."""
        found = self._post("step", {"env_idx": self.number, "action": action})
        state, reward, done = (found[name] for name in ("state", "reward", "done"))
        return state, float(reward), bool(done), {"success": float(reward) >= 1.0}

    def available_actions(self) -> list[str]:
        """What can be given now: the `offered` of `GymEnvironment`."""
        query = urlencode({"env_idx": self.number})
        found = asked(f"{self.url}/available_actions?{query}", None, self.timeout)
        search = ["search[words]"] if found["has_search_bar"] else []
        return [*search, *(f"click[{name}]" for name in found["clickables"])]

    def close(self) -> None:
        """Give the session back."""
        self._post("close", {"env_idx": self.number})

    def _post(self, name: str, body: Mapping[str, Any]) -> Any:
        return asked(f"{self.url}/{name}", body, self.timeout)


class SandboxServer:
    """A shell session on a SWE-ReX server: commands until `submit`, which runs the tests.

    prepare: a command that puts the repository into its first state; its output is the first
    observation.  grade: a command whose exit status says whether the task is done (0: it is).
    token: of the server.  timeout: seconds for one command.
    """

    SUBMIT = "submit"

    def __init__(
        self, url: str, *, prepare: str, grade: str, token: str = "", timeout: float = 120.0
    ) -> None:
        self.url, self.prepare, self.grade = url.rstrip("/"), prepare, grade
        self.headers = {"X-API-Key": token} if token else {}
        self.timeout, self.name = timeout, f"turncredit-{uuid.uuid4().hex}"
        self._post("create_session", {"session": self.name, "session_type": "bash"})

    def reset(self) -> str:
        """What the command `prepare` prints.  Raises OSError if it fails."""
        shown, status = self._run(self.prepare)
        if status != 0:
            raise OSError(f"{self.url}: exit status {status} of {self.prepare!r}: {shown}")
        return shown

    def step(self, command: str) -> Observed:
        """Run a command, or hand in."""
        if command.strip() == self.SUBMIT:
            shown, status = self._run(self.grade)
            return shown, float(status == 0), True, {"success": status == 0, "exit_code": status}
        shown, status = self._run(command)
        text = shown if status == 0 else f"{shown}\n[exit status {status}]".lstrip()
        return text, 0.0, False, {"exit_code": status}

    def close(self) -> None:
        """End the session."""
        self._post("close_session", {"session": self.name, "session_type": "bash"})

    def _run(self, command: str) -> tuple[str, int]:
        """Output and exit status of a command, which may fail."""
        body = {"command": command, "session": self.name, "timeout": self.timeout}
        found = self._post("run_in_session", body | {"action_type": "bash", "check": "silent"})
        return found["output"], _expected(found["exit_code"], int, "an exit status")

    def _post(self, name: str, body: Mapping[str, Any]) -> Any:
        return asked(f"{self.url}/{name}", body, self.timeout + 5.0, self.headers)


def _expected(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise OSError(f"{value!r} instead of {what}")
    return value
