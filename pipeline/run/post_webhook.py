"""POSTs what is on standard input to the URL in PIPELINE_WEBHOOK_URL, as JSON. A process of its own; see hooks.py.

Exit code 1 when the answer is not one of success; then it says why, without the URL.
"""

import base64
import os
import sys
import urllib.error
import urllib.parse
import urllib.request


class NoDetour(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without a body, and look like success."""

    def redirect_request(self, *_: object) -> None:
        """Never: the answer is an error with its code."""


def main() -> int:
    """Send it."""
    url = urllib.parse.urlsplit(os.environ["PIPELINE_WEBHOOK_URL"])
    user, _, host = url.netloc.rpartition("@")
    headers = {"Content-Type": "application/json", "User-Agent": "llama-batch-pipeline"}
    if user:  # urllib would take it for a part of the host's name
        headers["Authorization"] = "Basic " + base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    bare = url._replace(netloc=host).geturl()
    request = urllib.request.Request(bare, data=sys.stdin.buffer.read(), headers=headers, method="POST")
    try:
        urllib.request.build_opener(NoDetour).open(request).close()
    except urllib.error.HTTPError as error:
        print(f"HTTP {error.code}")
    except urllib.error.URLError as error:
        print(getattr(error.reason, "strerror", None) or type(error.reason).__name__)
    except Exception as error:  # whatever it is, its text may hold the URL
        print(type(error).__name__)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
