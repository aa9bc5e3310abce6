#!/usr/bin/env bash
# Serve the demo model with its EAGLE 3.1 head on a CPU (no AMX, no compiled sgl_kernel and no compiler needed).
#   launch/serve_cpu.sh                              the demo model; run `make demo` once, which prepares it
#   MODEL=DIR HEAD=DIR launch/serve_cpu.sh           another target and its head
#   launch/serve_cpu.sh --port 8000 --log-level warning    more flags of SGLang, or other values of those below
# With the environment of `make setup` active (source .venv/bin/activate), or with PYTHON=.venv/bin/python.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python}
dtype=$("$python" -m sglang_eagle31.server.cpu.fast_paths)   # bfloat16 where this CPU multiplies it, else float32; says why

args=(
  --model-path "${MODEL:-${SGLANG_EAGLE31_CACHE:-$HOME/.cache/sglang-eagle31}/smollm2-135m-instruct}"
  --device cpu                      # nothing else is needed: the attention backend that knows trees is the default
  --dtype "$dtype"                  # in float32 greedy output is the same as without speculation to the last token
  --speculative-algorithm EAGLE31   # refuses a head that it cannot run exactly as trained, before any weight is loaded
  --speculative-draft-model-path "${HEAD:-$here/heads/smollm2-135m-eagle31}"
  --speculative-num-steps 3         # depth of the draft: each step is one pass of the small head
  --speculative-eagle-topk 1        # 1 is a chain; more is a tree, which a CPU must pay for in the verify step
  --speculative-num-draft-tokens 4  # tokens verified by the target at once: steps + 1 for a chain
  --max-running-requests 4          # short chains win at low concurrency; measure others with `make bench`
  --max-total-tokens 8192           # size of the KV cache, in tokens, of all running requests together
  --host 127.0.0.1                  # this machine only; 0.0.0.0 lets others in
  --port 30000
)
exec "$python" -m sglang.launch_server "${args[@]}" "$@"
