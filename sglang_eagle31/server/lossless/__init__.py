"""What SGLang's verification leaves out or does roughly, done for every verified node as without speculation.

`paths` finds the tokens of each node's path, `penalties`, `processors` and `filters` adjust the target's logits, and
`rates` counts what a request accepted. These are free of SGLang; `repair` applies them to its objects.
"""
