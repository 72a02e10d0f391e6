"""Targets that are instructions of CPUs: schedules, a performance model, measurement and tuning."""
