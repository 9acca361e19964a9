"""The one error that a person sees when what they named can't be checked."""

from __future__ import annotations


class SubjectError(Exception):
    """The subject can't be had or built: one clear line that says what to do. The command line exits with 2."""
