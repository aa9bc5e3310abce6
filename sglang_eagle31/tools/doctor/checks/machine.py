"""The machine: CPU, GPU, cores and threads, memory, load, compiler."""

from __future__ import annotations

from functools import partial

from sglang_eagle31.tools.doctor.facts import GIB, Head, Line, Machine, Started

line = partial(Line, "machine")
VECTORS = ("neon", "asimd", "sve", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "bf16")
"""Flags of /proc/cpuinfo that decide how fast products are; the first three and the last are those of ARM."""
SPARE = 0.8
"""Share of the free memory that weights may take and leave room for activations and the KV cache."""


def platform(machine: Machine) -> Line:
    """Tested is Linux on x86-64."""
    text = f"{machine.system} {machine.arch}"
    if machine.system == "Linux" and machine.arch in ("x86_64", "AMD64"):
        return line("platform", "ok", text)
    return line("platform", "warn", f"{text}: not tested", "run make test before you rely on it")


def accelerator(machine: Machine, started: Started | None) -> Line:
    """A GPU that torch does not see is not used."""
    if started is None or started.error:
        found = f"device files {', '.join(machine.gpus)}" if machine.gpus else "no GPU device file"
        return line("GPU", "skip", f"{found}; torch was not asked", "run doctor without --quick")
    if started.gpus:
        return line("GPU", "ok", "; ".join(f"{name}, {size / GIB:.0f} GiB" for name, size in started.gpus))
    if machine.gpus:
        return line(
            "GPU",
            "warn",
            f"{', '.join(machine.gpus)} is there, but torch sees no GPU: servers run on the CPU",
            "check the driver, CUDA_VISIBLE_DEVICES, and that torch was built for this GPU",
        )
    return line("GPU", "ok", "none: servers run on the CPU (--device cpu)")


def cpu(machine: Machine, started: Started | None) -> Line:
    """Instruction sets, and which of our fast paths run."""
    sets = [flag for flag in VECTORS if flag in machine.flags]
    text = f"{machine.cores} cores, {', '.join(sets) or 'no vector flags known'}"
    if started is None or started.error:
        return line("CPU", "skip", f"{text}; what runs on it was not tried", "run doctor without --quick")
    if not _serves(started):
        return line("CPU", "ok", text)
    packed = [name for name, why in started.unpacked.items() if not why]
    lacking = [f"{name} ({why})" for name, why in started.unpacked.items() if why]
    text += f"; weights are packed in {' and '.join(packed) or 'no dtype'}"
    text += f", not in {', '.join(lacking)}" if lacking else ""
    if packed:
        return line("CPU", "ok", text)
    return line("CPU", "warn", text, "a torch with oneDNN, or a newer CPU: else four verified tokens cost four steps")


def dtype(started: Started | None) -> Line:
    """The ``--dtype`` that suits a server on this CPU."""
    if started is None or started.error:
        return line("dtype", "skip", "what this CPU multiplies was not tried", "run doctor without --quick")
    if not _serves(started):
        return line("dtype", "ok", "the model's own")
    return line("dtype", "ok", "--dtype {}: {}".format(*started.dtype))


def _serves(started: Started) -> bool:
    """Whether EAGLE servers run on our CPU backend."""
    return started.kernel == "stand-in" and not started.gpus


def threads(machine: Machine, started: Started | None) -> Line:
    """More threads than cores wait for each other; fewer leave cores idle."""
    cores = machine.cores if machine.quota is None else min(machine.cores, max(1, int(machine.quota)))
    allowed = f"{cores} of {machine.cores} cores by the control group" if cores < machine.cores else f"{cores} cores"
    given = machine.variables.get("OMP_NUM_THREADS")
    fix = f"OMP_NUM_THREADS={cores}, or as many physical cores as the server may use"
    if given is None:
        if cores < machine.cores and not (started is not None and started.gpus):
            return line("threads", "warn", f"OMP_NUM_THREADS is not set, and torch would start {machine.cores}", fix)
        return line("threads", "ok", f"OMP_NUM_THREADS is not set: torch takes what it finds of {allowed}")
    first = given.split(",")[0].strip()
    if not first.isdigit() or int(first) < 1:
        return line("threads", "FAIL", f"OMP_NUM_THREADS={given!r} is no number of threads", fix)
    if int(first) > cores:
        return line("threads", "warn", f"OMP_NUM_THREADS={first}, but there are {allowed}", fix)
    if int(first) < cores and not (started is not None and started.gpus):
        return line("threads", "warn", f"OMP_NUM_THREADS={first} leaves some of {allowed} idle", fix)
    return line("threads", "ok", f"OMP_NUM_THREADS={first}, {allowed}")


def load(machine: Machine) -> Line:
    """What is measured on a machine that is busy is worth little."""
    text = f"load {machine.load:.1f} on {machine.cores} cores"
    if machine.load <= machine.cores:
        return line("load", "ok", text)
    return line("load", "warn", f"{text}: others work here", "measure when they have ended; one server at a time")


def memory(machine: Machine, started: Started | None, head: Head | None) -> Line:
    """Do the weights fit; on a CPU without ``sgl_kernel`` they are kept twice."""
    text = f"{machine.free / GIB:.1f} of {machine.memory / GIB:.1f} GiB free"
    if head is None or head.size is None:
        return line("memory", "ok", text)
    gpus = started.gpus if started is not None else ()
    copies = 2 if started is not None and started.kernel == "stand-in" and not gpus else 1
    need = head.size * copies
    have = sum(size for _, size in gpus) if gpus else machine.free
    where = "of the GPUs' memory" if gpus else "free"
    text = f"weights take {need / GIB:.1f} GiB{' in two layouts' if copies == 2 else ''}, {have / GIB:.1f} GiB {where}"
    if need > have:
        return line("memory", "FAIL", text, "a machine with more memory, or a smaller target")
    if need > SPARE * have:
        return line("memory", "warn", f"{text}: little is left for the KV cache", "--max-total-tokens, fewer requests")
    return line("memory", "ok", text)


def compiler(machine: Machine, started: Started | None) -> Line:
    """Triton needs a C compiler on a GPU; torch.compile a C++ compiler on a CPU, for repetition penalties at least."""
    if started is not None and started.gpus:
        if machine.c_compiler:
            return line("compiler", "ok", machine.c_compiler)
        return line("compiler", "FAIL", "no C compiler, and Triton needs one on a GPU", "install gcc, or set CC")
    if machine.compiler:
        return line("compiler", "ok", machine.compiler)
    disabled = machine.variables.get("TORCH_COMPILE_DISABLE")
    if disabled == "1":
        return line("compiler", "ok", "none, and TORCH_COMPILE_DISABLE=1: none is needed")
    ours = started is None or started.kernel == "stand-in"
    if ours and disabled is None:
        return line(
            "compiler",
            "warn",
            "no C++ compiler: EAGLE servers on this CPU need none, but a server without speculation fails at the first "
            "request with a repetition penalty",
            "TORCH_COMPILE_DISABLE=1 for such servers, or install g++",
        )
    return line(
        "compiler",
        "FAIL",
        "no C++ compiler, and SGLang compiles functions at the first speculative request",
        "TORCH_COMPILE_DISABLE=1, or install g++",
    )
