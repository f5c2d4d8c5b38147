"""Worlds: where questions and documents come from."""

from turncredit.worlds.base import Document, Hop, Question, World

__all__ = ["Document", "Hop", "Question", "World"]
