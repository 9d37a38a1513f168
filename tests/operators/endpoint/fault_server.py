"""FaultServer: a server of OpenAI's shape that misbehaves as a test says.

As a process: `python fault_server.py PORT [seconds per answer]`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import ssl
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Fault:
    """What is done to a request instead of answering it.

    Args:
        status, body, headers: of the response; a body that is no text is sent as JSON.
        hang_s: seconds before anything is sent.
        cut: how many bytes of the response are sent before the connection is reset; None: all.
        slow_s: seconds between two bytes.
        has_length: the response says how long it is; else the end of the connection is its end.
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    cut: int | None = None
    slow_s: float = 0.0
    has_length: bool = True


Script = Callable[[int, dict[str, Any]], Fault | None]
"""By the number of the request, from 0, and its body what is done to it; None: it is answered."""


def answer_to(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request: a function of its prompt and seed, by the model that it asks for."""
    name = body.get("model", "stub")
    if (texts := body.get("input")) is not None:
        vectors = [list(hashlib.sha256(text.encode()).digest()[:4]) for text in texts]
        data = [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        return {"model": name, "data": data, "usage": {"prompt_tokens": 3 * len(texts)}}
    if (documents := body.get("documents")) is not None:  # as vLLM and llama-server write it, best first
        scores = {i: len(set(body["query"]) & set(text)) / 100 for i, text in enumerate(documents)}
        results = [{"index": i, "relevance_score": scores[i]} for i in sorted(scores, key=lambda i: -scores[i])]
        return {"model": name, "results": results, "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    if body.get("echo"):
        tokens = [*re.findall(r"\s*\S+", body["prompt"]), " end"]
        logprobs = [None, *(-float(len(token)) for token in tokens[1:])]
        tops = [None, *({token: -float(len(token))} for token in tokens[1:])]
        given = {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops}
        counts = {"prompt_tokens": len(tokens) - 1, "completion_tokens": 1}
        choice = {"index": 0, "text": "".join(tokens), "logprobs": given, "finish_reason": "length"}
        return {"model": name, "choices": [choice], "usage": counts}
    asked = json.dumps([body.get("messages"), body.get("prompt"), body.get("seed")], sort_keys=True)
    text = f"answer {hashlib.sha256(asked.encode()).hexdigest()[:8]}"
    said = {"text": text} if "prompt" in body else {"message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    return {"model": name, "choices": [{"index": 0, "finish_reason": "stop", **said}], "usage": usage}


class FaultServer:
    """A server in a thread, from entering it to leaving it.

    Args:
        faults: what is done to which request.
        owner: of the model, which tells the dialect.
        models: what /v1/models answers instead; its `data`, if it is a list.
        delay_s: seconds before each answer.
        limit: requests at a time; more get 429.
        tls: with a certificate; None: HTTP.
        tokenizes: it has /tokenize, where the tokens are bytes.

    Attributes:
        served: how often each body was answered.
        tokenized: the bodies of /tokenize.
        headers: of the last request.
        asked_for: path and query of each request; from a proxy's point of view the whole URL.
        most: requests at a time at most.
    """

    def __init__(
        self,
        faults: Script | None = None,
        *,
        owner: str = "vllm",
        delay_s: float = 0.0,
        limit: int = 10**9,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        tokenizes: bool = True,
        models: Fault | list[dict[str, Any]] | None = None,
    ) -> None:
        self.models = models or [{"id": "stub", "owned_by": owner}]
        self.faults, self._delay_s, self._limit = faults, delay_s, limit
        self.served: Counter[str] = Counter()
        self.headers: dict[str, str] = {}
        self.requests = self.active = self.most = 0
        self._port, self._tls, self._tokenizes = port, tls, tokenizes
        self.tokenized: list[dict[str, Any]] = []
        self.asked_for: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        """Listen; again on the same port."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def stop(self) -> None:
        """Close the port, and reset all connections."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        for writer in self._connections:
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *fields = head.decode().splitlines()
                headers = dict(each.split(": ", 1) for each in fields if each)
                length = int(next((v for k, v in headers.items() if k.lower() == "content-length"), 0))
                body = await reader.readexactly(length)
                self.headers = headers
                self.active += 1
                self.most = max(self.most, self.active)
                try:
                    if not await self._respond(writer, line.split()[1], body):
                        return
                finally:
                    self.active -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _respond(self, writer: asyncio.StreamWriter, path: str, body: bytes) -> bool:
        """Answer a request; return whether the connection stays open."""
        self.asked_for.append(path)
        path = path.partition("?")[0]
        if path.endswith("/models"):
            await _send(writer, self.models if isinstance(self.models, Fault) else Fault(body={"data": self.models}))
            return True
        asked = json.loads(body)
        if path == "/tokenize":
            self.tokenized.append(asked)
            text = asked.get("content", asked.get("prompt"))
            await _send(writer, Fault(body={"tokens": list(text.encode())}) if self._tokenizes else Fault(404, {}))
            return True
        number, self.requests = self.requests, self.requests + 1
        fault = self.faults(number, asked) if self.faults else None
        if fault is None and self.active > self._limit:
            fault = Fault(429, {"error": {"message": "too many requests"}})
        if fault is not None:
            await asyncio.sleep(fault.hang_s)
            return await _send(writer, fault if fault.body is not None else Fault(body=answer_to(asked), cut=fault.cut))
        await asyncio.sleep(self._delay_s)
        await _send(writer, Fault(body=answer_to(asked)))
        self.served[body.decode()] += 1
        return True


async def _send(writer: asyncio.StreamWriter, fault: Fault) -> bool:
    is_text = isinstance(fault.body, str)
    content = (fault.body if is_text else json.dumps(fault.body)).encode()
    headers = {"Content-Type": "text/html" if is_text else "application/json", "Content-Length": str(len(content))}
    if not fault.has_length:
        del headers["Content-Length"]
    lines = [f"HTTP/1.1 {fault.status} X", *(f"{k}: {v}" for k, v in (headers | dict(fault.headers)).items())]
    whole = "\r\n".join([*lines, "", ""]).encode() + content
    if fault.slow_s:
        for i in range(len(whole)):
            writer.write(whole[i : i + 1])
            await writer.drain()
            await asyncio.sleep(fault.slow_s)
        return True
    writer.write(whole if fault.cut is None else whole[: fault.cut])
    await writer.drain()
    if fault.cut is not None:
        _reset(writer)
    return fault.cut is None and fault.has_length


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def at(numbers: Sequence[int], fault: Fault) -> Script:
    """Return a script with `fault` for the requests of these numbers."""
    return lambda number, body: fault if number in numbers else None


if __name__ == "__main__":
    with FaultServer(port=int(sys.argv[1]), delay_s=float(sys.argv[2]) if sys.argv[2:] else 0.0):
        threading.Event().wait()
