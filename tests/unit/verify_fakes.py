"""Two servers in the place of SGLang's, and the command that compares them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from logprob_fakes import input_logprobs

from sglang_eagle31.tools.cli import main

PLAIN = {"speculative_algorithm": None, "dtype": "float32", "model_path": "m", "version": "0.5.23"}
EAGLE = {**PLAIN, "speculative_algorithm": "EAGLE3"}


class Fake(BaseHTTPRequestHandler):
    """Counts up from the prompt's last token; ``changes`` maps a prefix's length to another token.

    It tells ``best`` of that token, and what ``logits`` has of others.
    """

    def do_GET(self):
        self.send(200, self.server.info)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if "messages" in body:
            ids = [len(message["content"]) for message in body["messages"]]
            self.send(*self.chat(ids, body))
            return
        if "text" in body and body.get("return_logprob"):
            pairs = [[0.0, token, None] for token in map(ord, body["text"])]
            self.send(200, {"output_ids": [0], "meta_info": {"input_token_logprobs": pairs}})
            return
        ids = body.get("input_ids") or [ord(letter) for letter in body["text"]]
        if ids[0] in self.server.refuses:
            self.send(400, {"error": "refused"})
        elif body.get("return_logprob"):
            self.send(200, self.tell(body))
        else:
            tokens = self.answer(ids, body["sampling_params"]["max_new_tokens"])
            meta = {"finish_reason": {"type": self.server.finish}, "spec_verify_ct": self.server.rounds}
            self.send(200, {"output_ids": tokens, "text": str(tokens), "meta_info": meta})

    def answer(self, ids, count):
        out = list(ids)
        for _ in range(count):
            out.append(self.server.changes.get(len(out), out[-1] + 1))
        return out[len(ids) :]

    def chat(self, ids, body):
        tokens = self.answer(ids, body["max_tokens"])
        choice = {"message": {"content": str(tokens)}, "finish_reason": "length"}
        choice |= {"prompt_token_ids": ids, "response_token_ids": tokens}
        return 200, {"choices": [choice], "sglext": {"spec_tokens_details": {"spec_verify_ct": self.server.rounds}}}

    def tell(self, body):
        return {"output_ids": [0], "meta_info": input_logprobs(body, self.logprobs)}

    def logprobs(self, prefix):
        return {self.answer(prefix, 1)[0]: self.server.best, **self.server.logits}

    def send(self, status, answer):
        if self.server.late:
            return
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    """Start a fake server; it is returned with its address as ``url``."""
    servers = []

    def start(info, changes=None, logits=None, best=-0.5, finish="length", refuses=(), rounds=None):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        server.info, server.changes, server.logits, server.best = info, changes or {}, logits or {}, best
        server.finish, server.refuses, server.bodies, server.late = finish, refuses, [], False
        server.rounds = (3 if info["speculative_algorithm"] else 0) if rounds is None else rounds
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def native(ids, count=6, **sampling):
    return {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": count, **sampling}}


def chat(*contents, count=6, **more):
    messages = [{"role": "user", "content": content} for content in contents]
    return {"messages": messages, "temperature": 0, "max_tokens": count, **more}


@pytest.fixture
def compare(tmp_path, capsys):
    """Compare two fake servers on some bodies; returns exit status, record and what was printed."""

    def run_it(first, second, *bodies, more=()):
        file = tmp_path / "requests.jsonl"
        file.write_text("".join(json.dumps(body) + "\n" for body in bodies))
        arguments = ["verify", "--requests", str(file), "--url", first.url, "--baseline", second.url]
        status = main([*arguments, "--out", str(tmp_path), *more])
        record = tmp_path / "identity.json"
        text = capsys.readouterr()
        return status, json.loads(record.read_text()) if status in (0, 1, 3) else None, text.out + text.err

    return run_it
