"""A server that answers as llama-server does: tests run it in a thread, or as the program that they measure."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Keeps what it was asked. A prompt with "slow" waits for `released`, one with "fail" is refused."""

    bodies: list[dict[str, object]] = []  # noqa: RUF012
    released = threading.Event()

    def do_GET(self):
        self.answer(200, {"status": "ok", "media_marker": "<marker>"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        if "slow" in body["prompt"]:
            self.released.wait(60)
        status = 500 if "fail" in body["prompt"] else 200
        self.answer(status, {"tokens_evaluated": len(body["prompt"]), "tokens_predicted": body["n_predict"]})

    def answer(self, status, values):
        text = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format, *args):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
