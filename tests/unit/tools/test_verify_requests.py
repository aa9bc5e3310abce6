"""The file of requests that ``verify`` replays, and wrong command lines."""

from __future__ import annotations

import json

import pytest

from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.shared.requests_file import CHAT, NATIVE, read_requests


def test_the_file(tmp_path) -> None:
    file = tmp_path / "r.jsonl"
    ids = {"input_ids": [1], "sampling_params": {"temperature": 0}}
    chat = {"messages": [{"role": "user", "content": "x"}], "temperature": 0}
    file.write_text("\n".join(map(json.dumps, [ids, {**chat, "stream": True, "stream_options": {}}])))
    first, second = read_requests(file)
    assert (first.route, second.route, second.line) == (NATIVE, CHAT, 2) and first.greedy and second.greedy
    sent = second.to_send()
    assert sent["stream"] is False and "stream_options" not in sent and sent["return_token_ids"] and sent["model"]
    assert len(read_requests(file, limit=1)) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no request"),
        ("{", "line 1: no JSON"),
        ("[1]", "found list"),
        ('{"prompt": "x"}', r"found \['prompt'\]"),
        ('{"text": "a", "input_ids": [1]}', "one of messages"),
        ('{"input_ids": [[1], [2]]}', "is a batch"),
        ('{"text": ["a"]}', "is a batch"),
        ('{"text": "a", "sampling_params": [{}]}', "sampling_params is no object"),
    ],
)
def test_a_wrong_file(tmp_path, content, message) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_requests(file)
    with pytest.raises(ValueError, match="cannot be read"):
        read_requests(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs two servers"),
        (["--url", "http://x"], "needs two servers"),
        (["--url", "http://x", "--baseline", "http://y", "--target", "t"], "needs two servers"),
        (["--url", "http://x", "--baseline", "http://y", "--", "--dtype", "float32"], "--dtype float32: flags for"),
        (["--url", "http://x", "--baseline", "http://y", "--concurrency", "0"], "--concurrency 0"),
    ],
)
def test_mistakes(tmp_path, capsys, arguments, message) -> None:
    assert main(["verify", "--requests", str(tmp_path / "r.jsonl"), *arguments]) == 2
    assert message in capsys.readouterr().err
