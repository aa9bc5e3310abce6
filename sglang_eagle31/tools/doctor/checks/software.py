"""Versions against the declared bounds."""

from __future__ import annotations

from functools import partial

from sglang_eagle31.tools.doctor.facts import Line, Software

line = partial(Line, "software")


def python(software: Software) -> Line:
    """Python's version."""
    text = f"Python {software.python}, declared {software.python_bound or 'without a bound'}"
    if software.python_fits:
        return line("Python", "ok", text)
    return line("Python", "FAIL", text, f"a virtual environment with Python {software.python_bound}")


def sglang(software: Software) -> Line:
    """SGLang's version; signatures decide, so an untested one within the bounds is a warning."""
    if software.sglang is None:
        return line("SGLang", "FAIL", "SGLang is not installed here", "pip install . brings it")
    text = f"SGLang {software.sglang}, sglang-eagle31 {software.ours}"
    declared = next((one for one in software.requirements if one.name == "sglang"), None)
    if declared is not None and not declared.fits:
        return line("SGLang", "FAIL", f"{text}: outside {declared.text}", f"pip install '{declared.text}'")
    if software.sglang not in software.tested:
        tested = ", ".join(software.tested)
        return line(
            "SGLang",
            "warn",
            f"{text}: not among the tested versions ({tested})",
            "make test before you rely on it; what decides is whether the seams fit",
        )
    return line("SGLang", "ok", f"{text}: tested")


def packages(software: Software) -> Line:
    """The other dependencies, and whether the metadata that declares them is this version's."""
    others = [one for one in software.requirements if one.name != "sglang"]
    missing = [f"{one.text} is missing" for one in others if one.installed is None]
    wrong = [f"{one.name} {one.installed} is outside {one.text}" for one in others if one.installed and not one.fits]
    if missing or wrong:
        return line("packages", "FAIL", "; ".join(missing + wrong), "pip install . again")
    if software.declared != software.ours or not others:
        text = f"installed as version {software.declared} with {len(others)} declared packages"
        return line(
            "packages", "warn", f"{text}, but this code is {software.ours} and needs some", "pip install . again"
        )
    return line("packages", "ok", f"all {len(others)} others are installed")
