"""Tests of the experiments: their counts on a few cases, and what their tables state."""
