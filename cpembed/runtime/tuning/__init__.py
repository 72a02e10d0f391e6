"""Tuning, whatever machine measures: spaces of schedules, the search, sessions, files of trials."""
