"""Addresses, refusals, and whole runs against a small HTTP server that answers as SGLang does."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console
from robust_heads import INFO
from robust_tokenizers import CHATML, PLAIN, tokenizer

from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.robust.ask import reply_of
from sglang_eagle31.tools.robust.run import Options, run
from sglang_eagle31.tools.shared.conditions import parse_conditions
from sglang_eagle31.tools.shared.prompts import Case
from sglang_eagle31.tools.shared.served_head import head_of, parse_urls, read_head


class Fake(BaseHTTPRequestHandler):
    """Answers every prompt with as many tokens; prompts without a system block get fewer drafts accepted."""

    def do_GET(self):
        self.send(200, self.server.info)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids, tokens = body["input_ids"], body["sampling_params"]["max_new_tokens"]
        if len(ids) > self.server.most:
            self.send(400, {"error": "too long"})
            return
        self.server.asked.append(body["sampling_params"].get("custom_params"))
        good = 1 in ids[:1]
        histogram = [10 + sum(ids) % 5, 8, 6, 4, 2] if good else [22, 6, 1, 1, 0]
        meta = {"spec_verify_ct": 30, "spec_correct_drafts_histogram": histogram, "finish_reason": {"type": "length"}}
        self.send(200, {"output_ids": list(range(tokens)), "meta_info": meta})

    def send(self, status, answer):
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    """Start a fake server; returns its address."""
    servers = []

    def start(most=10**6, **info):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        server.info, server.most, server.asked = {**INFO, **info}, most, []
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        start.servers = servers
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer(CHATML).save_pretrained(folder)
    return folder


def options(urls, model, out, **more):
    known = {"conditions": parse_conditions(None), "contexts": (1500, 3000, 90000), "limit": 8, "max_tokens": 40}
    return Options(urls=urls, model=model, out=out, **{**known, **more})


def run_quietly(chosen):
    return run(chosen, ["robust"], Console(quiet=True))


def test_a_run_writes_everything_and_again_the_same(serve, model, tmp_path):
    url = serve()
    records = []
    for name in ("one", "two"):
        report = run_quietly(options([f"a={url}", f"b={serve()}"], model, tmp_path / name, concurrency=3))
        records.append(json.loads((tmp_path / name / "robust.json").read_text()))
        assert (tmp_path / name / "robust.png").read_bytes().startswith(b"\x89PNG")
    one, two = ({**record, "heads": [{**h, "url": ""} for h in record["heads"]]} for record in records)
    assert one == two
    assert {"argv", "versions", "git", "cpu", "schema"} <= one.keys()
    assert one["settings"]["prompts"] == 8
    assert one["start_token"] == {"id": 1, "text": "<|im_start|>", "kind": "template"}
    conditions = {c["condition"]: c for c in one["heads"][0]["conditions"]}
    assert list(conditions)[:4] == ["regular", "no_bos", "no_template", "no_bos_no_template"]
    assert conditions["regular"]["prompts"] == 8
    assert conditions["no_bos"]["accept_length"]["value"] == pytest.approx(1 + (6 + 2 + 3) / 30)
    assert conditions["no_bos"]["sglang_accept_length"] == 40 / 30
    assert 1350 <= conditions["context_1500"]["prompt_tokens"]["least"]
    assert conditions["context_1500"]["prompt_tokens"]["most"] <= 1500
    assert any("context_90000 left out" in note for note in one["notes"])
    kinds = {d["condition"]: d["kind"] for d in one["diagnosis"] if d["head"] == "a"}
    assert kinds["no_bos"] == kinds["no_bos_no_template"] == "template"
    assert kinds["multi_turn"] == kinds["context_3000"] == kinds["no_template"] == "kept"
    assert {c["accept_length_ratio"]["value"] for c in one["comparisons"]} == {1.0}
    assert {c["same_answers"] for c in one["comparisons"]} == {1.0}
    assert len(report.comparisons) == len(conditions)


def test_a_template_without_start_token(serve, tmp_path):
    tokenizer(PLAIN).save_pretrained(tmp_path / "plain")
    report = run_quietly(options([serve()], tmp_path / "plain", tmp_path / "out", contexts=()))
    assert set(report.results[0].measured) & {"no_bos", "no_bos_no_template"} == set()
    assert sum("left out: no such thing here" in note for note in report.notes) == 2


def test_a_server_that_does_not_speculate_is_refused(serve, model, tmp_path):
    url = serve(speculative_algorithm=None)
    with pytest.raises(ValueError, match="runs without speculation .*fix: start it with --speculative-algorithm"):
        run_quietly(options([url], model, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    answer = {"output_ids": [1, 2, 3], "meta_info": {"finish_reason": None}}
    with pytest.raises(ValueError, match="3 tokens and no spec_verify_ct"):
        reply_of("http://x", Case("regular", 0, (1,)), answer)


def test_prompts_that_do_not_fit_are_left_out_or_refused(serve, model, tmp_path):
    report = run_quietly(options([serve(max_req_input_len=240)], model, tmp_path / "out"))
    assert list(report.results[0].measured) == ["regular", "no_bos", "no_template", "no_bos_no_template"]
    assert any("long_system: 8 questions left out, longer than the 240 tokens" in note for note in report.notes)
    with pytest.raises(ValueError, match="--max-tokens 40: no question with its answer fits the 50 tokens"):
        run_quietly(options([serve(max_req_input_len=50)], model, tmp_path / "out"))
    with pytest.raises(ValueError, match="regular, prompt 0 of .* tokens was refused with status 400: .*too long"):
        run_quietly(options([serve(most=20)], model, tmp_path / "out"))


def guarded(mode):
    return {"internal_states": [{}, {"eagle31": {"guard": {"mode": mode, "configured": "4,1,5"}}}]}


@pytest.mark.parametrize(
    ("info", "pin"),
    [({}, None), (guarded("observe"), None), (guarded("on"), {"eagle31_shape": "4,1,5"})],
)
def test_the_head_is_measured_and_not_the_guard(serve, model, tmp_path, info, pin):
    report = run_quietly(options([serve(**info)], model, tmp_path / "out", contexts=(), limit=2))
    asked = serve.servers[0].asked
    assert len(asked) > 4 and all(one == pin for one in asked)
    assert report.results[0].head.pinned == (pin and pin["eagle31_shape"])
    assert any("pins the shape 4,1,5" in note for note in report.notes) == bool(pin)


def test_nothing_there(model):
    with pytest.raises(ValueError, match="no SGLang server answers"):
        read_head(None, "http://127.0.0.1:9")


def test_the_command(serve, model, tmp_path, capsys):
    arguments = ["robust", "--url", serve(), "--model", str(model), "--limit", "1", "--contexts", "none"]
    assert main([*arguments, "--conditions", "no_bos", "--out", str(tmp_path)]) == 0
    assert "accept length" in capsys.readouterr().out
    assert main([*arguments, "--max-tokens", "0"]) == 2
    assert "--max-tokens 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("items", "found"),
    [
        (["http://a:1"], [(None, "http://a:1")]),
        (["new=https://a/", "http://b/x"], [("new", "https://a"), (None, "http://b/x")]),
    ],
)
def test_addresses(items, found):
    assert parse_urls(items) == found


@pytest.mark.parametrize(
    ("items", "says"),
    [
        (["localhost:30000"], "--url localhost:30000: expected URL or NAME=URL"),
        (["a=http://x", "a=http://y"], "the name a is given twice"),
        (["a=http://x", "b=http://x/"], "the address http://x is given twice"),
    ],
)
def test_wrong_addresses(items, says):
    with pytest.raises(ValueError, match=says):
        parse_urls(items)


def test_facts_of_stock_and_of_our_servers(tmp_path):
    config = {"max_position_embeddings": 2048, "sliding_window": 512, "use_sliding_window": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    stock = head_of(None, "http://x", {**INFO, "speculative_draft_model_path": str(tmp_path)})
    assert (stock.name, stock.algorithm, stock.variant) == (tmp_path.name, "EAGLE3", None)
    assert (stock.positions, stock.window, stock.config_known) == (2048, None, True)
    assert stock.chain
    windowed = head_of("w", "http://x", {**INFO, "speculative_draft_window_size": 256})
    assert (windowed.window, windowed.positions, windowed.config_known) == (256, None, False)
    spec = {"max_position_embeddings": 4096, "sliding_window": 100}
    ours = {"algorithm": "EAGLE31", "variant": "EAGLE 3.1", "head": "/heads/mine", "spec": spec}
    found = head_of(None, "http://x", {**INFO, "speculative_eagle_topk": 4, "eagle31": ours})
    assert (found.name, found.algorithm, found.variant) == ("mine", "EAGLE31", "EAGLE 3.1")
    assert (found.positions, found.window, found.chain) == (4096, 100, False)
    elsewhere = head_of(None, "http://x", {**INFO, "speculative_draft_model_path": "some/repository-not-here"})
    assert (elsewhere.name, elsewhere.config_known) == ("repository-not-here", False)
    ngram = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8}
    assert head_of(None, "http://x", ngram).name == "NGRAM"
