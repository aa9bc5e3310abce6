"""Acceptance of drafts in a live server: counters that add up, by depth, context and template, and an alarm.

Nothing is asked of the device: what is counted is what SGLang has on the host when it commits a verify round.
"""
