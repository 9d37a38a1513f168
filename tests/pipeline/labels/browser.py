"""A headless Chromium for tests of a page, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--remote-debugging-port=0")
KEYS = {"Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}


class Tab:
    """A tab. `events`: what it has told, as {method, params}."""

    def __init__(self, session: aiohttp.ClientSession, server: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session, self._server, self._socket = session, server, socket
        self._calls = 0
        self.events: list[dict[str, Any]] = []

    @classmethod
    async def at(cls, session: aiohttp.ClientSession, server: str, page: dict[str, Any]) -> Tab:
        """A tab that the browser says it has."""
        found = cls(session, server, await session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0))
        for domain in ("Page", "Runtime", "Network", "Log"):
            await found.call(f"{domain}.enable")
        return found

    async def another(self) -> Tab:
        """A second tab of the same browser."""
        async with self._session.put(f"{self._server}/json/new?about:blank") as answer:
            return await Tab.at(self._session, self._server, json.loads(await answer.text()))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == self._calls:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    async def run(self, script: str) -> Any:
        """The value of a script in the page, also of a promise."""
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until the script is true."""
        while not await self.run(script):
            await asyncio.sleep(0.02)

    async def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            code = {"key": key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[0].upper())), **text}
            await self.call("Input.dispatchKeyEvent", type="keyDown", **code)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    async def open(self, path: Path) -> None:
        await self._load("Page.navigate", url=path.as_uri())

    async def reload(self) -> None:
        await self._load("Page.reload")

    async def _load(self, method: str, **params: Any) -> None:
        before = len(self.told("Page.loadEventFired"))
        await self.call(method, **params)
        while len(self.told("Page.loadEventFired")) == before:
            self.events.append(await self._socket.receive_json())

    async def look(self, picture: Path, width: int, height: int = 800, *, dark: bool = False) -> None:
        """Take a picture of the window at a size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await asyncio.sleep(0.2)
        shot = await self.call("Page.captureScreenshot", format="png")
        picture.write_bytes(base64.b64decode(shot["data"]))

    def told(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]


@asynccontextmanager
async def tab(folder: Path, downloads: Path) -> AsyncIterator[Tab]:
    """A tab of a Chromium with its profile in `folder`, which saves files in `downloads`."""
    assert CHROMIUM is not None
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank", stdout=null, stderr=null
    )
    try:
        port = folder / "DevToolsActivePort"
        while not port.exists() or "\n" not in port.read_text():
            await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as session:
            server = f"http://127.0.0.1:{port.read_text().split()[0]}"
            async with session.get(f"{server}/json/list") as answer:
                pages = [page for page in json.loads(await answer.text()) if page["type"] == "page"]
            found = await Tab.at(session, server, pages[0])
            await found.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
            yield found
    finally:
        process.terminate()
        await process.wait()
