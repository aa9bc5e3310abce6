"""Recorded traffic: reading it, and playing it to a server that is a few lines of http.server."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_eagle31.tools.bench import replay
from sglang_eagle31.tools.bench.replay import Recorded

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}


class Handler(BaseHTTPRequestHandler):
    """Streams three pieces, 1, 3 and 4 tokens so far, each as a chunk of its own, as SGLang does."""

    protocol_version = "HTTP/1.1"
    seen: list = []
    busy, most = 0, 0
    lock = threading.Lock()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        with self.lock:
            self.seen.append((self.path, body, time.perf_counter()))
            type(self).busy += 1
            type(self).most = max(self.most, self.busy)
        self.send_response(418 if body.get("user") == "bad" else 200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.path != "/flush_cache" and body.get("user") != "bad":
            self.stream(body)
        self.wfile.write(b"0\r\n\r\n")
        with self.lock:
            type(self).busy -= 1

    def stream(self, body):
        if body.get("user") == "broken":
            self.chunk('{"error": {"message": "out of luck"}}')
            return
        for tokens in (1, 3, 4):
            time.sleep(0.05)
            self.chunk(json.dumps(self.event(tokens)))
        self.chunk("[DONE]")

    def chunk(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, tokens):
        if self.path == "/generate":
            return {"text": "x" * tokens, "meta_info": {"completion_tokens": tokens}}
        choice = {"text": f"<{tokens}>"} if self.path == "/v1/completions" else {"delta": {"content": f"<{tokens}>"}}
        return {"choices": [choice], "usage": {"completion_tokens": tokens}}

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    Handler.seen, Handler.most = [], 0
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()


def test_every_route_is_streamed_and_timed(server):
    traffic = [
        Recorded("/generate", {"text": "a", "sampling_params": {"temperature": 0}}),
        Recorded("/v1/chat/completions", CHAT),
        Recorded("/v1/completions", {"prompt": "a", "temperature": 1.0}),
    ]
    done = []
    load, answers = replay.play(server, traffic, 1, advance=lambda: done.append(1))
    assert (load.requests, load.output_tokens, len(done)) == (3, 12, 3)
    assert 40 < load.ttft_ms < 1000 and 30 < load.tpot_ms < 300 and load.itl_ms_p50 >= 20
    assert answers[0] and answers[1] and answers[0] != answers[1] and answers[2] is None
    paths = [path for path, _, _ in Handler.seen]
    assert paths == ["/flush_cache", "/generate", "/v1/chat/completions", "/v1/completions"]
    sent = Handler.seen[2][1]
    assert sent["stream"] is True and sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert {name: sent[name] for name in CHAT} == CHAT and "stream_options" not in Handler.seen[1][1]


def test_so_many_at_a_time(server):
    replay.play(server, [Recorded("/v1/chat/completions", CHAT)] * 6, 2)
    assert Handler.most == 2


def test_the_recorded_times_are_kept_at_a_speed(server):
    traffic = [Recorded("/v1/chat/completions", {**CHAT, "user": str(at)}, at) for at in (105.0, 100.0, 102.0)]
    replay.play(server, traffic, 0, speed=5.0)
    sent = [(body["user"], when) for path, body, when in Handler.seen if path != "/flush_cache"]
    assert [user for user, _ in sent] == ["100.0", "102.0", "105.0"]
    assert 0.5 < sent[2][1] - sent[0][1] < 4.0  # a second at this speed; a busy machine may be late


@pytest.mark.parametrize(("user", "message"), [("bad", "status 418"), ("broken", "broke off.*out of luck")])
def test_a_request_that_fails_is_told(server, user, message):
    with pytest.raises(RuntimeError, match=message):
        replay.play(server, [Recorded("/v1/chat/completions", {**CHAT, "user": user})], 1)


def test_tokens_that_come_together_share_the_time():
    found = replay.timing(0.0, [(1.0, 2), (2.0, 4), (2.5, 5)])
    assert (found.first, found.end, found.tokens, found.gaps) == (1.0, 2.5, 5, (0.5, 0.5, 0.5))


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_reading(tmp_path):
    rows = [{"path": "/generate", "body": {"text": "a"}, "at": 1}, {"path": "/generate", "body": {}, "at": 2}]
    path = write(tmp_path / "a.jsonl", *rows, "")
    assert replay.read(path) == [Recorded("/generate", {"text": "a"}, 1.0), Recorded("/generate", {}, 2.0)]
    assert len(replay.read(path, 1)) == 1


GOOD = {"path": "/generate", "body": {"text": "a"}}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no request"),
        (["{"], "line 1: expected"),
        ([GOOD, {"body": {}}], "line 2: expected"),
        ([{"path": "/generate", "body": 3}], "line 1: expected"),
        (["[1]"], "line 1: expected"),
        ([{**GOOD, "at": "soon"}], "line 1: expected"),
        ([{**GOOD, "path": "/v1/embeddings"}], "'/v1/embeddings' is not measured"),
        ([{"path": "/v1/chat/completions", "body": {"n": 2}}], "n is 2"),
        ([GOOD, {**GOOD, "at": 1.0}], "some requests have a time"),
    ],
)
def test_wrong_lines_are_refused(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message) as refused:
        replay.read(write(tmp_path / "a.jsonl", *rows))
    assert "fix: " in str(refused.value)


@pytest.mark.parametrize(
    ("path", "body", "greedy"),
    [
        ("/generate", {"sampling_params": {"temperature": 0}}, True),
        ("/generate", {"temperature": 0}, False),
        ("/generate", {"sampling_params": {"top_k": 1}}, True),
        ("/v1/completions", {"temperature": 0.0}, True),
        ("/v1/completions", {}, False),
    ],
)
def test_greedy(path, body, greedy):
    assert Recorded(path, body).greedy is greedy


def test_answers_that_differ():
    base, other = [{"answers": ["a", "b", None, "c"]}], [{"answers": ["a", "x", None, "c"]}]
    assert replay.differing(other, base) == {"prompts": 3, "different": 1}
    assert replay.differing([], base) == {"prompts": 0, "different": 0}
