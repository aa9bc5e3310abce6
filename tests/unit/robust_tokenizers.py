"""Small tokenizers of single characters with the chat templates of three families."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "<|im_start|>system\nHelp.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<s>{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "[{{ m['role'] }}]{% if m.get('tool_calls') %}{{ m['tool_calls'][0]['function']['name'] }}"
    "{{ m['tool_calls'][0]['function']['arguments']['city'] }}{% endif %}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<unk>"]


def tokenizer(template, bos="<s>"):
    """One token a character; the special tokens have ids 0 to 3."""
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *characters])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=bos, eos_token="<|im_end|>", unk_token="<unk>", pad_token="<|im_end|>"
    )
    made.add_special_tokens({"additional_special_tokens": SPECIAL[:3]})
    made.chat_template = template
    return made
