"""Attempts: one try of a request at one of the URLs, and what its response says of request and URL."""

from __future__ import annotations

import asyncio
import json
import time
from logging import Logger
from typing import Any

from operators.endpoint.api.checks import Failed, Unusable
from operators.endpoint.api.usage import odd_usage
from operators.endpoint.connection.http import Http, NoAnswer, Reply, Unreachable
from operators.endpoint.connection.request import Request, Route, Routes
from operators.endpoint.connection.verdict import Again, judge, quoted
from operators.settings.endpoint import EndpointSettings


class Attempts:
    """Sends requests, each once to one of the URLs. For one event loop.

    Args:
        settings: `patience_s`.
        http: sends them.
        routes: the URLs, which hear of each failure.
        log: gets what is odd in answers, once each.
    """

    def __init__(self, settings: EndpointSettings, http: Http, routes: Routes, log: Logger) -> None:
        self._settings, self._http, self._routes, self._log = settings, http, routes, log
        self._told: set[str] = set()
        self.model: str | None = None
        """The model's id, to compare with that of the answers; None while it is not known."""

    async def make(self, request: Request) -> Route:
        """Send `request`, set its result, and return the URL that has answered.

        Raises:
            Again: it may be sent again.
            NotSent: it cannot be made.
            Unusable: each URL refuses it, or its answer cannot be used.
        """
        body = request.body
        if request.filled is not None and body is not None:
            body = await asyncio.to_thread(request.filled, body)
        route = await self._routes.enter(request.failed_at)
        request.tries += 1
        request.sent_s = time.perf_counter()
        try:
            reply = await self._http.ask(route.url + request.path, body, f"the server {route.name}")
            self._read(request, reply, route)
        except Again as failed:
            request.failed_at.add(route)
            self._note_failure(failed, route)
            raise
        except Unusable as refused:
            request.failed_at.add(route)
            request.refused_by.add(route)
            self._routes.failed(route, takes_none=False)
            if request.may_be_taken(self._routes.all):  # another server may know better
                raise Again(str(refused)) from None
            raise
        finally:
            self._routes.leave(route)
        self._routes.answered(route)
        return route

    def _read(self, request: Request, reply: Reply, route: Route) -> None:
        """Set the result of `request`, or raise what the response means instead."""
        where, url = f"the server {route.name}", route.url + request.path
        judge(reply.status, reply.headers, reply.body, where, url)
        try:
            body = json.loads(reply.body)
        except (ValueError, RecursionError):
            kind = reply.headers.get("Content-Type", "").partition(";")[0]
            said = f"{len(reply.body):,} bytes{f' of {kind}' if kind else ''} that are no JSON: {quoted(reply.body)}"
            raise Again(f"{where} answers with {said}") from None
        try:
            request.result = request.read(body)
        except Failed as failed:
            if failed.status is not None:
                judge(failed.status, reply.headers, str(failed).encode(), where, url)
            raise Again(f"{where} fails on it: {failed}") from None
        self._compare(body)

    def _note_failure(self, failed: Again, route: Route) -> None:
        hold_s = (failed.after_s or 0.0) if failed.busy else 0.0
        route.is_shut = failed.of_server and failed.ends is not None
        if len(self._routes.all) == 1 and hold_s > self._settings.patience_s:  # the next request shows whether for all
            self._routes.failed(route, takes_none=False)
            return
        if failed.busy or isinstance(failed, NoAnswer | Unreachable):
            route.limit.refused()
        self._routes.failed(route, takes_none=failed.of_server, hold_s=hold_s)

    def _compare(self, body: Any) -> None:
        """Tell once if an answer is of another model than was asked for, and once if it counts tokens in an odd way."""
        model, odd = body.get("model") if isinstance(body, dict) else None, odd_usage(body)
        oddities = {}
        if self.model is not None and model != self.model and isinstance(model, str) and model:
            oddities["model"] = f"{self.model!r} was asked for, and the server says that {model!r} answers: an alias?"
        if odd is not None:
            oddities["usage"] = f"the server says {odd}; such counts are null in the results"
        for kind, text in oddities.items():
            if kind not in self._told:
                self._told.add(kind)
                self._log.warning(text)
