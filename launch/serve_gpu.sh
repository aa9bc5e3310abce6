#!/usr/bin/env bash
# Serve a target with its EAGLE-3 or EAGLE 3.1 head on a GPU; without MODEL and HEAD, the demo's head and model, which
# `make demo` prepares. With the environment of `make setup` active (source .venv/bin/activate), or with PYTHON=...
#   MODEL=DIR_OR_ID HEAD=DIR_OR_ID launch/serve_gpu.sh [more flags of SGLang, or other values of those below]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

args=(
  --model-path "${MODEL:-${SGLANG_EAGLE31_CACHE:-$HOME/.cache/sglang-eagle31}/smollm2-135m-instruct}"
  --dtype bfloat16                  # the dtype that heads are trained against
  --speculative-algorithm EAGLE31   # refuses a head that it cannot run exactly as trained, before any weight is loaded
  --speculative-draft-model-path "${HEAD:-$here/heads/smollm2-135m-eagle31}"
  --speculative-num-steps 3         # depth of the draft; 5 and more pays at low concurrency with a good head
  --speculative-eagle-topk 1        # 1 is a chain; 4 with 16 draft tokens is a usual tree at concurrency 1
  --speculative-num-draft-tokens 4  # tokens verified by the target at once: steps + 1 for a chain
  # --speculative-draft-window-size 2048   # the head attends to its last 2048 tokens only: for heads trained on short texts
  --mem-fraction-static 0.8         # of the GPU memory for weights and KV cache of both models; the rest is for activations
  --max-running-requests 64         # gains shrink as the batch grows: measure before raising it
  --host 127.0.0.1                  # this machine only; 0.0.0.0 lets others in
  --port 30000
)
exec "${PYTHON:-python}" -m sglang.launch_server "${args[@]}" "$@"
