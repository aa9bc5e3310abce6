"""A server that answers as it is told, and SGLang's answer to a request for log-probabilities of the input."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OTHERS = -30.0
"""Log-probability of every token that is not named."""


def input_logprobs(body, logprobs):
    """``meta_info``; ``logprobs(prefix)`` are log-probabilities by token id."""
    ids, start = body["input_ids"], body["logprob_start_len"]
    own, top, named = [[None, ids[start], None]], [None], [None]
    for at in range(start + 1, len(ids)):
        found = logprobs(ids[:at])
        best = sorted(found.items(), key=lambda item: -item[1])[: body["top_logprobs_num"]]
        own.append([found.get(ids[at], OTHERS), ids[at], None])
        top.append([[value, token, None] for token, value in best])
        named.append([[found.get(token, OTHERS), token, None] for token in body.get("token_ids_logprob") or ()])
    meta = {"input_token_logprobs": own, "input_top_logprobs": top}
    return meta | ({"input_token_ids_logprobs": named} if body.get("token_ids_logprob") else {})


@contextmanager
def serving(reply, info=None):
    """The address of a server; ``reply(path, body)`` gives status and answer, ``info`` is /server_info."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = reply(self.path, body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer.encode() if isinstance(answer, str) else json.dumps(answer).encode())

        def do_GET(self):
            self.send_response(200 if self.path == "/server_info" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(info or {}).encode())

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.01}).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
