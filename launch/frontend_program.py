"""A program in SGLang's frontend language against a running server: free text, a choice, and a regular expression.

    launch/serve_cpu.sh                                       # in another terminal
    python launch/frontend_program.py [--url http://127.0.0.1:30000]

Nothing here knows of speculation: the answers are those of the target, and the server says how many tokens each of
the target's steps gave.
"""

from __future__ import annotations

import argparse

import sglang as sgl

DATE = r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]"


@sgl.function
def review(s: sgl.lang.interpreter.ProgramState, text: str) -> None:
    """Summarise a review, choose its mood, and extract a date; each answer sees the ones before."""
    s += sgl.system("You answer questions about product reviews.")
    s += sgl.user(f"Review: {text}\nSummarise this review in one sentence.")
    s += sgl.assistant(sgl.gen("summary", max_tokens=64, temperature=0))
    s += sgl.user("Is the reviewer satisfied?")
    s += sgl.assistant("The reviewer is " + sgl.gen("mood", choices=["satisfied", "dissatisfied"]))
    s += sgl.user("On which date was it bought? Write it as YYYY-MM-DD.")
    s += sgl.assistant("It was bought on " + sgl.gen("date", regex=DATE, max_tokens=16, temperature=0))


def main() -> None:
    """Run the program and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="a running SGLang server")
    parser.add_argument("--chat-template", default="chatml", help="frontend template of the model (default: chatml)")
    parser.add_argument("--review", default="I bought this kettle on 2026-03-14. It boils fast, and I love the colour.")
    args = parser.parse_args()

    backend = sgl.RuntimeEndpoint(args.url, chat_template_name=args.chat_template)
    state = review.run(text=args.review, backend=backend)
    for name in ("summary", "mood", "date"):
        print(f"{name:8} {state[name]}")
    accept_length = state.get_meta_info("summary").get("spec_accept_length")
    print(f"{accept_length:.2f} tokens per target step" if accept_length else "the server does not speculate")


if __name__ == "__main__":
    main()
