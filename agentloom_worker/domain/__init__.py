"""Nouns and pure rules: frozen dataclasses, no I/O."""
