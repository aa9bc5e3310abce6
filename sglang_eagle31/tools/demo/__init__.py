"""The demo: its target model, its prompts."""
