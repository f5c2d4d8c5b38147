"""A served model as the probe's responder: a local HTTP stand-in that samples a tiny policy."""

import http.server
import json
import math
import threading
from contextlib import suppress

import pytest
import torch
from play import TINY, coin_environment, policy, questions, vocabulary

from turncredit.batching import from_trajectories
from turncredit.environments.actions import closing_tags
from turncredit.policies.prefix_cache import read_prefix
from turncredit.probe import (
    Endpoint,
    PolicyResponder,
    Probe,
    ProbeSettings,
    agreement_table,
    all_states,
    draw_responses,
    fresh_alphas,
    least_entropy,
    measure,
    proxy_table,
    response_table,
)
from turncredit.rollout import asynchronous, roll_out

pytest.importorskip("httpx", reason="a model behind a server needs httpx")

WORDS, ROOM = vocabulary(), 5
ENDED = WORDS.message_end(closing_tags(coin_environment().actions))


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers `/v1/completions` in vLLM's form."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers.get("Authorization"), body))
        status, answer = self.server.behave(body)
        payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        with suppress(BrokenPipeError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            for header in self.server.headers.items():
                self.send_header(*header)
            self.end_headers()
            self.wfile.write(payload)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    """A model server; `change` edits what it says, `statuses` come before it says anything."""

    daemon_threads = True

    def __init__(self, model, change=lambda answer: None, statuses=(), headers=()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.change, self.statuses = model, change, list(statuses)
        self.headers = dict(headers)
        self.requests: list[tuple] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def behave(self, body):
        if self.statuses:
            return self.statuses.pop(0), {"message": "not now"}
        speaker = PolicyResponder(self.model, lambda ids: False, body["max_tokens"])
        turns = speaker.respond(body["prompt"], body["n"], seed=body["seed"])
        choices = [self._choice(n, turn, body) for n, turn in enumerate(turns)]
        answer = {"choices": choices[::-1]}  # in any order: they are numbered
        changed = self.change(answer)
        return 200, answer if changed is None else changed

    def _choice(self, number, turn, body):
        tops = []
        if body["logprobs"] > 1:
            ids, top = turn.sampled_ids, min(body["logprobs"], len(WORDS))
            for token, logprobs in zip(ids, spoken(self.model, body["prompt"], ids), strict=True):
                best = {*logprobs.topk(top).indices.tolist(), token}
                tops.append({f"token_id:{t}": float(logprobs[t]) for t in best})
        given = {
            "tokens": [f"token_id:{token}" for token in turn.sampled_ids],
            "token_logprobs": list(turn.sampled_logprobs),
            "top_logprobs": tops,
        }
        return {"index": number, "token_ids": list(turn.sampled_ids), "logprobs": given}


@torch.no_grad()
def spoken(model, prefix, ids):
    """What the model thought of every word before it said each of `ids`: log-probs [V] each."""
    hidden, decoder = read_prefix(model, prefix)
    found = []
    for token in ids:
        found.append(model.logits(hidden)[0].double().log_softmax(-1))
        hidden = decoder.step(torch.tensor([token]))
    return found


@pytest.fixture
def serve():
    """(change, statuses) -> a running server of one tiny policy; all end with the test."""
    servers = []

    def start(**options) -> Server:
        servers.append(Server(policy(), **options))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def endpoint(server, **options) -> Endpoint:
    options = {"max_turn_tokens": ROOM, "max_tokens": TINY.max_tokens, "pause": 0.0} | options
    return Endpoint(server.url, "tiny", ENDED, **options)


def played(count: int = 3, group_size: int = 4):
    asked = [question for question in questions(count) for _ in range(group_size)]
    given = (policy(), WORDS, coin_environment(), asked)
    return roll_out(*given, seed=0, step=0, max_turn_tokens=ROOM)


# --- what comes back


def test_a_served_policy_gives_the_surprisals_of_the_policy_itself(serve):
    state = all_states(played(), step=0)[3]
    turns = endpoint(serve()).respond(state.prefix_ids, 20, seed=3)
    assert {len(turn.sampled_ids) for turn in turns} > {ROOM}, "some end by a tag, some by the cap"
    for turn in turns:
        assert ENDED(turn.sampled_ids) or len(turn.sampled_ids) == ROOM
        assert not any(ENDED(turn.sampled_ids[:n]) for n in range(1, len(turn.sampled_ids)))
        thought = spoken(policy(), state.prefix_ids, turn.sampled_ids)
        expected = [float(p[token]) for p, token in zip(thought, turn.sampled_ids, strict=True)]
        assert turn.sampled_logprobs == pytest.approx(expected, abs=1e-5)
        assert all(math.isnan(entropy) for entropy in turn.sampled_entropies)


def test_the_prefix_is_sent_once_a_state_and_nothing_is_cut(serve, monkeypatch):
    monkeypatch.setenv("SERVED_KEY", "sk-secret")
    server, states = serve(), all_states(played(2, 2), step=0)[:3]
    draw_responses(endpoint(server, key_variable="SERVED_KEY"), states, 6, seed=0)
    assert [body["prompt"] for _, _, body in server.requests] == [[*s.prefix_ids] for s in states]
    for path, key, body in server.requests:
        assert (path, key) == ("/v1/completions", "Bearer sk-secret")
        assert body["n"] == 6
        assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (1, 1, -1, 0)
        assert (body["repetition_penalty"], body["ignore_eos"]) == (1, True)


def test_responses_come_in_blocks_with_seeds_of_their_own_and_repeat(serve):
    server, prefix = serve(), all_states(played(), step=0)[0].prefix_ids
    turns = endpoint(server, rows=4).respond(prefix, 10, seed=1)
    bodies = [body for _, _, body in server.requests]
    assert [body["n"] for body in bodies] == [4, 4, 2]
    assert len({body["seed"] for body in bodies}) == 3

    def again(seed):
        found = endpoint(server, rows=4).respond(prefix, 10, seed=seed)
        return [turn.sampled_logprobs for turn in found]

    assert again(1) == [turn.sampled_logprobs for turn in turns] != again(2)


def test_a_plain_server_gets_openai_s_fields_alone_and_its_texts_are_numbered(serve):
    def texts(answer):
        for choice in answer["choices"]:
            del choice["token_ids"]
            tokens = choice["logprobs"]["tokens"]
            choice["logprobs"]["tokens"] = [WORDS.entries[int(t.split(":")[1])] for t in tokens]

    server, prefix = serve(change=texts), all_states(played(), step=0)[0].prefix_ids
    told = endpoint(server, plain=True, token_id=WORDS.id).respond(prefix, 5, seed=1)
    expected = endpoint(serve()).respond(prefix, 5, seed=1)
    assert [turn.sampled_ids for turn in told] == [turn.sampled_ids for turn in expected]
    assert not {"top_k", "min_p", "ignore_eos", "return_token_ids"} & set(server.requests[0][2])
    with pytest.raises(ValueError, match=r"127\.0\.0\.1.*texts without ids; give token_id"):
        endpoint(server, plain=True).respond(prefix, 5, seed=1)


def test_marked_tokens_are_ids(serve):
    def without_ids(answer):
        for choice in answer["choices"]:
            del choice["token_ids"]

    prefix = all_states(played(), step=0)[0].prefix_ids
    found = [
        [turn.sampled_ids for turn in endpoint(server).respond(prefix, 5, seed=1)]
        for server in (serve(change=without_ids), serve())
    ]
    assert found[0] == found[1]


# --- entropies of the alternatives


def test_entropies_of_the_likeliest_tokens_are_lower_bounds_that_become_exact(serve):
    server, prefix = serve(), all_states(played(), step=0)[2].prefix_ids
    whole, part = (
        endpoint(server, top_logprobs=top).respond(prefix, 6, seed=0) for top in (len(WORDS), 4)
    )
    strictly = []
    for exact, least in zip(whole, part, strict=True):
        assert exact.sampled_ids == least.sampled_ids
        thought = spoken(policy(), prefix, exact.sampled_ids)
        pairs = zip(exact.sampled_entropies, least.sampled_entropies, strict=True)
        for logprobs, (entropy, bound) in zip(thought, pairs, strict=True):
            assert entropy == pytest.approx(-float(logprobs.exp() @ logprobs), abs=1e-5)
            assert bound <= entropy + 1e-9
            strictly.append(bound < entropy - 1e-3)
    assert any(strictly)


def test_what_is_left_of_the_mass_counts_as_one_token():
    quarter = math.log(0.25)
    assert least_entropy([quarter] * 4) == pytest.approx(math.log(4))
    assert least_entropy([quarter] * 3) == pytest.approx(math.log(4))
    assert least_entropy([quarter] * 2) == pytest.approx(1.5 * math.log(2))
    assert least_entropy([]) == 0.0


# --- a whole probe


def test_a_served_model_plays_and_is_probed_to_the_tables(serve, tmp_path):
    """Episodes, states, responses, alphas and proxies: no weight of the model is ever here."""
    served = endpoint(serve(), top_logprobs=len(WORDS))
    asked = [question for question in questions(4) for _ in range(3)]
    trajectories = asynchronous.roll_out(
        served, WORDS, coin_environment(), asked, seed=0, step=0,
        max_turn_tokens=ROOM, max_tokens=TINY.max_tokens,
    )  # fmt: skip
    assert {t.stop_reason for t in trajectories} != {"error"}
    settings = ProbeSettings(
        questions=4, group_size=3, states=12, responses=4, rule="turns", seed=0
    )
    probe = Probe(tmp_path, settings, 0, {"model": "tiny"})
    assert list(probe.draw(served, trajectories, policy_hash="tiny, revision 1"))[-1] == 12
    found = probe.read()
    rows = response_table([found], min_spread=0.0)
    assert len(rows) == 12 * 5
    bins = {question.id: "any" for question in asked}
    overall = [row for row in agreement_table(rows, bins) if row["by"] == "all"]
    assert {row["pairs"] for row in overall} == {12, 48}
    martingale = [row for row in proxy_table([found]) if row["proxy"] == "martingale"]
    (signs,) = [row for row in martingale if row["silent"] == "half"]
    assert 0 <= signs["value"] <= 1
    assert signs["pairs"] > 0


def test_without_alternatives_the_surprisals_stand_and_the_missing_entropies_are_named(serve):
    trajectories = played(group_size=4)
    states = all_states(trajectories, step=0)[:2]
    measures = measure(draw_responses(endpoint(serve()), states, 4, seed=0))
    assert measures.surprisals.isfinite().all()
    assert measures.predictable.isnan().all()
    batch = from_trajectories(trajectories, group_ids=[n // 4 for n in range(len(trajectories))])
    with pytest.raises(ValueError, match=f"{states[0].name}: responses without entropies"):
        fresh_alphas(measures, batch, states)


# --- servers that fail


def drop(name):
    return lambda answer: [choice["logprobs"].pop(name) for choice in answer["choices"]] and None


def shorten(answer):
    """Ends each response before its last token, as after an end-of-text token that is kept back."""
    for choice in answer["choices"]:
        for values in (choice["token_ids"], *choice["logprobs"].values()):
            del values[1:]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda answer: b"<html>", "no JSON"),
        (lambda answer: {"error": "x"}, "lacks 'choices'"),
        (lambda answer: {"choices": answer["choices"][1:]}, "2 choices for n = 3"),
        (drop("token_logprobs"), "lacks 'token_logprobs'"),
        (shorten, "breaks off after 1 of 5 tokens"),
        (lambda answer: answer["choices"][0]["token_ids"].pop() and None, "4 tokens with 5"),
    ],
)
def test_an_answer_that_is_none_is_refused_with_its_address(serve, change, complaint):
    server = serve(change=change)
    with pytest.raises(ValueError, match=f"{server.url}: .*{complaint}"):
        endpoint(server).respond(all_states(played(), step=0)[0].prefix_ids, 3, seed=0)
    assert len(server.requests) == 1, "asking again would not help"


def put(name, value):
    """Puts `value` in the place of one entry: of a choice, or of its log-probs at every token."""

    def change(answer):
        for choice in answer["choices"]:
            given = choice["logprobs"]
            if name in choice:
                choice[name] = value
            else:
                given[name] = [value for _ in given[name]]

    return change


def texts_alone(answer):
    """Leaves ids out, and has no text either."""
    for choice in answer["choices"]:
        choice["token_ids"] = None
        choice["logprobs"]["tokens"] = [None for _ in choice["logprobs"]["tokens"]]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (texts_alone, "startswith"),
        (put("token_ids", "7777777"), "token id '7' is no number"),
        (put("token_ids", [1.5] * 5), "token id 1.5"),
        (put("token_ids", [-1] * 5), "token id -1"),
        (put("token_ids", [math.inf] * 5), "token id inf"),
        (put("token_logprobs", None), "log-prob None"),
        (put("token_logprobs", "-1.0"), "log-prob '-1.0'"),
        (put("token_logprobs", False), "log-prob False"),
        (put("token_logprobs", math.nan), "log-prob nan"),
        (put("token_logprobs", 0.7), "log-prob 0.7"),
        (put("top_logprobs", None), "5 tokens with 5 top_logprobs, or with empty ones"),
        (put("top_logprobs", {}), "5 tokens with 5 top_logprobs, or with empty ones"),
        (put("top_logprobs", {"a": math.nan}), "log-prob nan"),
        (put("top_logprobs", {"a": 1e4}), "log-prob 10000.0"),
        (put("top_logprobs", [-1.0]), "values"),
        (lambda answer: answer["choices"][0]["logprobs"]["top_logprobs"].pop() and None,
         "5 tokens with 4 top_logprobs"),
        (put("logprobs", None), "NoneType"),
        (lambda answer: {"choices": ["x", "y", "z"]}, "string indices"),
        (lambda answer: [1], "list indices"),
        (lambda answer: b"[" * 100_000, "no JSON"),
    ],
)  # fmt: skip
def test_what_is_no_distribution_is_refused_with_its_address(serve, change, complaint):
    server = serve(change=change)
    speaker = Endpoint(server.url, "tiny", lambda ids: False, ROOM, TINY.max_tokens, top_logprobs=2)
    with pytest.raises(ValueError, match=f"{server.url}: .*{complaint}"):
        speaker.respond([1, 2], 3, seed=0)


def test_a_server_may_not_ask_to_be_waited_for_without_end(serve):
    server = serve(statuses=(429,), headers={"Retry-After": "inf"})
    assert len(endpoint(server, timeout=5.0).respond([1, 2], 3, seed=0)) == 3
    slow = serve(statuses=(429,), headers={"Retry-After": "86400"})
    assert len(endpoint(slow, timeout=0.5).respond([1, 2], 3, seed=0)) == 3


def test_an_answer_that_cannot_be_unpacked_is_a_lost_one(serve):
    server = serve(headers={"Content-Encoding": "gzip"})
    with pytest.raises(ConnectionError, match=f"{server.url}: DecodingError, after 2 attempts"):
        endpoint(server, retries=1).respond([1, 2], 3, seed=0)


def test_a_busy_server_is_asked_again_and_one_that_refuses_is_not(serve):
    prefix = all_states(played(), step=0)[0].prefix_ids
    server = serve(statuses=(503, 429))
    assert len(endpoint(server).respond(prefix, 3, seed=0)) == 3
    assert len(server.requests) == 3
    with pytest.raises(ConnectionError, match=r"status 500.*after 2 attempts"):
        endpoint(serve(statuses=(500,) * 5), retries=1).respond(prefix, 3, seed=0)
    server = serve(statuses=(400,) * 2)
    with pytest.raises(ValueError, match=r"status 400: .*not now"):
        endpoint(server).respond(prefix, 3, seed=0)
    assert len(server.requests) == 1


def test_nobody_there_is_named_after_its_attempts(serve):
    server = serve()
    server.shutdown()
    server.server_close()
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1.*ConnectError, after 2 attempts"):
        endpoint(server, retries=1).respond([1, 2], 3, seed=0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rows": 0}, "rows = 0"),
        ({"top_logprobs": -1}, "top_logprobs = -1"),
        ({"key_variable": "NO_SUCH_KEY"}, "NO_SUCH_KEY.*no API key"),
        ({"base_url": "ftp://host/v1"}, "no http or https address"),
        ({"base_url": "http://me:pass@host/v1"}, "no user or password"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, complaint):
    given = {"base_url": "http://host/v1", "model": "m", "ended": ENDED}
    with pytest.raises(ValueError, match=complaint):
        Endpoint(**given | {"max_turn_tokens": 2, "max_tokens": 9} | options)


@pytest.mark.parametrize("length", [0, TINY.max_tokens])
def test_a_prefix_without_a_place_to_speak_is_refused_before_anyone_is_asked(serve, length):
    server = serve()
    with pytest.raises(ValueError, match=f"prefix_ids: {length} ids"):
        endpoint(server).respond([1] * length, 3, seed=0)
    assert server.requests == []
