"""Questions under each condition, by tokenizers of three families and, where it is here, SmolLM2's."""

import json

import pytest
from robust_tokenizers import CHATML, LLAMA, PLAIN, tokenizer

from sglang_eagle31.tools.shared import texts
from sglang_eagle31.tools.shared.conditions import BASE, CONDITIONS, CONTEXTS, parse_conditions, parse_contexts
from sglang_eagle31.tools.shared.demo_model import FOLDER, default_cache_dir
from sglang_eagle31.tools.shared.filler import TOLERANCE, Filler
from sglang_eagle31.tools.shared.prompts import Renderer, condition_cases, find_start, read_prompts

CHAT = [{"role": "user", "content": "Why?"}]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *CHAT]


@pytest.fixture(scope="module")
def chatml():
    return Renderer(tokenizer(CHATML))


@pytest.fixture(scope="module")
def llama():
    return Renderer(tokenizer(LLAMA))


def shown(renderer, ids):
    """The text that ids stand for, each token as it is."""
    return "".join(renderer.tokenizer.convert_ids_to_tokens(list(ids)))


def test_the_four_conditions_of_a_tokenizer_with_bos(llama):
    assert llama.start.kind == "bos"
    found = {name: shown(llama, llama.ids(name, CHAT)) for name in list(CONDITIONS)[:4]}
    assert found == {
        "regular": "<s>[user]Why?[assistant]",
        "no_bos": "[user]Why?[assistant]",
        "no_template": "<s>Why?\n\n",
        "no_bos_no_template": "Why?\n\n",
    }


def test_without_a_bos_the_first_token_of_the_template_stands_for_it(chatml):
    assert (chatml.start.kind, chatml.start.text) == ("template", "<|im_start|>")
    regular = shown(chatml, chatml.ids("regular", CHAT))
    assert regular.startswith("<|im_start|>system\nHelp.<|im_end|>\n<|im_start|>user\nWhy?")
    assert shown(chatml, chatml.ids("no_bos", CHAT)) == regular.removeprefix("<|im_start|>")
    assert shown(chatml, chatml.ids("no_template", CHAT)) == "<|im_start|>Why?\n\n"
    assert shown(chatml, chatml.ids("no_bos_no_template", WITH_SYSTEM)) == "Be brief.\n\nWhy?\n\n"
    assert "no separate BoS" in chatml.notes()[0]


def test_a_bos_that_marks_every_turn_is_the_templates(chatml):
    assert find_start(tokenizer(CHATML, bos="<|im_start|>")).kind == "template"


def test_without_a_start_token_two_conditions_are_left_out():
    plain = Renderer(tokenizer(PLAIN))
    assert plain.start.kind == "none"
    assert plain.ids("no_bos", CHAT) is None
    assert plain.ids("no_bos_no_template", CHAT) is None
    assert shown(plain, plain.ids("no_template", CHAT)) == "Why?\n\n"
    assert condition_cases(plain, "no_bos", [CHAT, CHAT]) == []
    assert "left out" in plain.notes()[0]


def test_system_prompts_replace_the_chats_own(chatml):
    text = shown(chatml, chatml.ids("swapped_system", WITH_SYSTEM))
    assert text.startswith(f"<|im_start|>system\n{texts.SWAPPED_SYSTEM}<|im_end|>")
    assert "Be brief." not in text and "Help." not in text
    assert texts.LONG_SYSTEM in shown(chatml, chatml.ids("long_system", CHAT))


def test_a_template_without_system_role_gets_it_in_the_first_message(llama):
    assert not llama.systems
    text = shown(llama, llama.ids("swapped_system", CHAT))
    assert text == f"<s>[user]{texts.SWAPPED_SYSTEM}\n\nWhy?[assistant]"
    assert any("no system role" in note for note in llama.notes())


def test_tools_by_the_template_if_it_knows_them(llama):
    assert llama.tools is False  # arguments as an object: this template reads a field of them
    text = shown(llama, llama.ids("tool_calls", CHAT))
    assert text.startswith("<s>[TOOLS]") and "Current weather of a city" in text
    assert "[assistant]get_weatherLisbon[tool]" in text
    assert text.endswith(f"{texts.TOOL_ANSWER}[user]Why?[assistant]")


def test_tools_as_text_if_it_does_not(chatml):
    assert chatml.tools is None
    text = shown(chatml, chatml.ids("tool_calls", CHAT))
    assert text.startswith("<|im_start|>system\nHelp.<|im_end|>")  # the system prompt is not what changes
    assert json.dumps(texts.TOOL) in text
    assert '<tool_call>\n{"name": "get_weather"' in text
    assert text.index("<tool_response>") < text.index("Why?")


def test_earlier_turns_come_between_system_prompt_and_question(chatml):
    text = shown(chatml, chatml.ids("multi_turn", WITH_SYSTEM))
    assert text.count("<|im_start|>user") == 4 and text.count("<|im_start|>assistant") == 4
    assert text.index("Be brief.") < text.index(texts.EARLIER_TURNS[0][0]) < text.index("Why?")


@pytest.mark.parametrize("tokens", [3000])
def test_contexts_are_filled_up_to_their_length_with_the_question_at_the_end(chatml, tokens):
    chats = [[{"role": "user", "content": f"Why {name}?"}] for name in ("A", "B", "C")]
    filler = Filler.of_python(chatml, seed=0)
    cases = filler.cases(tokens, chats)
    assert [case.prompt for case in cases] == [0, 1, 2]
    assert all(TOLERANCE * tokens <= len(case.ids) <= tokens for case in cases)
    texts_ = [shown(chatml, case.ids) for case in cases]
    assert all(f"Why {name}?<|im_end|>" in text[-120:] for name, text in zip("ABC", texts_, strict=True))
    assert texts_[0][300:500] != texts_[1][300:500]  # each question has text of its own around it
    assert cases == Filler.of_python(chatml, seed=0).cases(tokens, chats)
    assert cases != Filler.of_python(chatml, seed=1).cases(tokens, chats)


def test_a_question_that_fills_the_context_alone_is_left_out(chatml):
    filler = Filler("one\ntwo", chatml, 0)
    assert filler.case(100, 0, [{"role": "user", "content": "x" * 90}]) is None
    assert filler.case(5000, 0, CHAT) is None  # two lines do not fill it


def test_filler_of_a_file(chatml, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("word " * 200 + "\n\nend\n")
    filler = Filler.of_file(path, chatml, 0)
    assert filler.lines[-1] == "end" and max(map(len, filler.lines)) <= 160
    assert filler.sizes == [len(line) + 1 for line in filler.lines]  # one token a character
    path.write_text("\n")
    with pytest.raises(ValueError, match="--filler .*no text in it; fix"):
        Filler.of_file(path, chatml, 0)
    with pytest.raises(ValueError, match="--filler .*nowhere.*fix"):
        Filler.of_file(tmp_path / "nowhere", chatml, 0)


def test_prompts_of_a_file(tmp_path):
    path = tmp_path / "p.jsonl"
    lines = [{"messages": [*CHAT, {"role": "assistant", "content": "So."}]}, {"messages": WITH_SYSTEM}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_prompts(path, None) == [CHAT, WITH_SYSTEM]
    assert read_prompts(path, 1) == [CHAT]
    with pytest.raises(ValueError, match="--limit 0"):
        read_prompts(path, 0)
    path.write_text(json.dumps({"messages": [{"role": "user", "content": [{"type": "image"}]}]}))
    with pytest.raises(ValueError, match="prompt 1 has no user message as text"):
        read_prompts(path, None)


def test_names_of_conditions_and_contexts():
    assert [c.name for c in parse_conditions("no_bos")] == [BASE, "no_bos"]
    assert len(parse_conditions(None)) == 8
    with pytest.raises(ValueError, match="--conditions no_boss: .*no_bos_no_template"):
        parse_conditions("no_boss")
    assert parse_contexts("2048, 512") == (512, 2048)
    assert parse_contexts("none") == ()
    assert parse_contexts(None) == CONTEXTS
    with pytest.raises(ValueError, match="--contexts 2k"):
        parse_contexts("2k")


def test_a_folder_without_tokenizer_or_template_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer"):
        Renderer.load(tmp_path)
    tokenizer(None).save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match="has no chat template"):
        Renderer.load(tmp_path / "bare")
    tokenizer(CHATML).save_pretrained(tmp_path / "chat")
    assert Renderer.load(tmp_path / "chat").start.kind == "template"


@pytest.mark.skipif(
    not (default_cache_dir() / FOLDER).is_dir(), reason="the demo's model is not prepared on this machine"
)
def test_smollm2():
    renderer = Renderer.load(default_cache_dir() / FOLDER)
    ids = {name: renderer.ids(name, CHAT) for name in CONDITIONS}
    assert renderer.start.kind == "template" and ids["regular"][0] == renderer.start.id
    assert ids["no_bos"] == ids["regular"][1:]
    assert ids["no_template"] == (renderer.start.id, *ids["no_bos_no_template"])
    assert renderer.tokenizer.decode(ids["no_bos_no_template"]) == "Why?\n\n"
    assert 550 <= len(ids["long_system"]) - len(ids["swapped_system"]) <= 750
    regular = renderer.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert ids["regular"] == tuple(regular)
