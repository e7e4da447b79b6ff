"""The smallest client of an OpenAI-style server that the tests need: completions from token ids, health, metrics.

Invariant: standard library only, loopback only, every call has a deadline. Used by the live tests.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the server reports for one request."""

    id: str
    """The server's response id; the engine's request id begins with it."""
    prompt_tokens: int
    cached_tokens: int
    """Tokens the server says it took from its cache (``usage.prompt_tokens_details``)."""
    token_ids: tuple[int, ...]
    """Sampled token ids, where they were asked for."""
    text: str


class HttpClient:
    """One server on loopback."""

    def __init__(self, port: int, model: str = "m") -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.model = model

    def request(self, path: str, body: Any = None, *, method: str = "GET", deadline_s: float = DEADLINE_S) -> str:
        """Send one request and return the body of the answer; raises ``urllib.error.HTTPError`` on a status ≥ 400."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - loopback
            self.base + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=deadline_s) as answer:  # noqa: S310
            text: str = answer.read().decode()
            return text

    def healthy(self) -> bool:
        """Tell whether the server answers."""
        try:
            self.request("/health", deadline_s=5.0)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def complete(self, prompt: Sequence[int], *, tokens: int = 4, **fields: Any) -> Completion:
        """Complete a prompt of token ids greedily and return what the server says about it."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        } | fields
        answer = json.loads(self.request("/v1/completions", body, method="POST"))
        usage = answer["usage"]
        choice = answer["choices"][0]
        return Completion(
            id=answer["id"],
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            token_ids=tuple(choice.get("token_ids") or ()),
            text=choice["text"],
        )

    def metric(self, name: str) -> float:
        """Return the sum over all label sets of one metric."""
        lines = [line for line in self.request("/metrics").splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
