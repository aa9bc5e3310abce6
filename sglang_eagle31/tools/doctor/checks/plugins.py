"""Does SGLang find and load us: entry points, what may hide them, seams, kernels, attention."""

from __future__ import annotations

from functools import partial

from sglang_eagle31.tools.doctor.facts import Line, Machine, Plugins, Started

line = partial(Line, "plugin")
ENTRY = "eagle31"


def entry_points(plugins: Plugins) -> Line:
    """The two entry points, by which SGLang finds us."""
    missing = [group for group, value in plugins.found.items() if value is None]
    if missing:
        text = f"no entry point {ENTRY} in {', '.join(missing)}"
        return line("entry points", "FAIL", f"{text}: SGLang cannot find us", "pip install . again (--editable too)")
    others = f"; other plugins: {', '.join(plugins.others)}" if plugins.others else ""
    return line("entry points", "ok", f"{', '.join(plugins.found)}{others}")


def enabled(machine: Machine) -> Line:
    """``SGLANG_PLUGINS`` lists the plugins that are loaded; ``SGLANG_PLATFORM`` skips packages of other platforms."""
    allowed, platform = (machine.variables.get(name) for name in ("SGLANG_PLUGINS", "SGLANG_PLATFORM"))
    if allowed and ENTRY not in [name.strip() for name in allowed.split(",")]:
        return line(
            "enabled", "FAIL", f"SGLANG_PLUGINS={allowed} leaves {ENTRY} out", f"SGLANG_PLUGINS={allowed},eagle31"
        )
    if platform:
        text = f"SGLANG_PLATFORM={platform} makes SGLang skip the plugins of ours, which is no platform of its own"
        return line("enabled", "FAIL", text, "unset SGLANG_PLATFORM")
    return line(
        "enabled", "ok", f"SGLANG_PLUGINS={allowed}" if allowed else "SGLANG_PLUGINS and SGLANG_PLATFORM not set"
    )


def loaded(started: Started | None) -> Line:
    """What became of us in a fresh process: SGLang logs a plugin that fails, and goes on without it."""
    if started is None:
        return line("loaded", "skip", "SGLang was not started", "run doctor without --quick")
    if started.error:
        return line(
            "loaded",
            "FAIL",
            f"a fresh process that loads SGLang {started.error}",
            "python -c 'import sglang.srt.server_args'",
        )
    if not started.registered:
        text = "SGLang does not know the name EAGLE31 after it has loaded its plugins"
        return line("loaded", "FAIL", text, "the lines above; then SGLang's log at --log-level debug")
    if started.lost:
        text = f"hooks that did not take effect: {', '.join(started.lost)}"
        return line("loaded", "FAIL", text, "another plugin may have them: SGLANG_PLUGINS=eagle31")
    return line("loaded", "ok", "a fresh process knows EAGLE31, and every hook is in place")


def seams(plugins: Plugins, started: Started | None) -> Line:
    """Whether SGLang still has what we rely on; those of the group ``cpu`` count where there is no ``sgl_kernel``."""
    real = started is not None and started.kernel == "real"
    reasons = [why for group, found in plugins.unfit.items() if group != "cpu" or not real for why in found]
    if reasons:
        return line("seams", "FAIL", "; ".join(reasons), "install a tested version of SGLang (docs/compatibility.md)")
    unused = [why for found in plugins.unfit.values() for why in found]
    if unused:
        return line("seams", "ok", f"those in use fit; not used on this machine: {'; '.join(unused)}")
    return line("seams", "ok", f"all fit ({', '.join(plugins.unfit)})")


def options(plugins: Plugins) -> Line:
    """``SGLANG_EAGLE31_OPTIONS``."""
    if plugins.options_error:
        text, _, fix = plugins.options_error.partition("; fix: ")
        return line("options", "FAIL", text, fix or "correct SGLANG_EAGLE31_OPTIONS (docs/guide.md)")
    return line("options", "ok", "SGLANG_EAGLE31_OPTIONS can be read or is not set")


def cache(plugins: Plugins) -> Line:
    """Heads are staged there."""
    if plugins.cache_error:
        text = f"staged heads cannot be written: {plugins.cache_error}"
        return line("cache", "FAIL", text, "--eagle31-cache-dir DIR, or SGLANG_EAGLE31_CACHE")
    return line("cache", "ok", plugins.cache)


def kernel(started: Started | None) -> Line:
    """``sgl_kernel`` or its stand-in."""
    if started is None or started.error:
        return line("sgl_kernel", "skip", "SGLang was not started", "run doctor without --quick")
    if started.kernel == "real":
        return line("sgl_kernel", "ok", "SGLang's own")
    if started.kernel == "stand-in":
        return line("sgl_kernel", "ok", "has no CPU ops here; our stand-in serves EAGLE (docs/compatibility.md)")
    fix = "install the sgl_kernel of this GPU" if started.gpus else "unset SGLANG_USE_CPU_ENGINE, or set it to 1"
    return line("sgl_kernel", "FAIL", f"cannot be imported, and nothing stands in: {started.kernel_error}", fix)


def attention(started: Started | None) -> Line:
    """Which attention an EAGLE server would have here."""
    if started is None or started.error:
        return line("attention", "skip", "SGLang was not started", "run doctor without --quick")
    if started.gpus:
        return line("attention", "ok", "SGLang's own choice for this GPU, or --attention-backend")
    if started.kernel == "none":
        return line("attention", "skip", "no server starts without sgl_kernel", "the line above")
    if started.kernel == "stand-in":
        return line("attention", "ok", "ours, in the place of torch_native, for EAGLE servers")
    if started.kernel == "real" and started.amx:
        return line("attention", "ok", "SGLang's intel_amx")
    text = "without AMX SGLang takes torch_native, which cannot serve EAGLE, and ours comes only with the stand-in"
    return line("attention", "FAIL", text, "uninstall sgl_kernel on this CPU, or serve on a GPU")
