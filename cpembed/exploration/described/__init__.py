"""Explorations of machines that vary in keys of a person's own specification."""
