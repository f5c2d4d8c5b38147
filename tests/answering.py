"""Small HTTP servers for tests: every request gets what a function makes of it."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, Any, Mapping[str, str]], tuple[int, Any]]
"""(path, JSON body or None, headers) to a status and what is sent: bytes, or anything as JSON."""


@contextlib.contextmanager
def served(answer: Answer) -> Iterator[str]:
    """The address of a server that answers GET and POST with `answer`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self):
            self.answer(None)

        def answer(self, body):
            status, found = answer(self.path, body, self.headers)
            text = found if type(found) is bytes else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def json_server(
    answer: Callable[[dict], dict], *, status: int = 200
) -> contextlib.AbstractContextManager[str]:
    """The address of a server that answers a POST of JSON with `answer` of it and this status."""
    return served(lambda path, body, headers: (status, answer(body)))
