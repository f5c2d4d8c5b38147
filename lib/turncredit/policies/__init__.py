"""Policies: sample ids with log-probs, score ids with log-probs and entropies."""
