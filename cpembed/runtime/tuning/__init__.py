"""Tuning: the fastest embedding and schedule of a workload, found once and kept."""
