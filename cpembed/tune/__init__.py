"""Tuning: which embedding and which schedule take the fewest cycles, found once and kept."""
