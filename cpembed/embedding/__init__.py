"""The search for embeddings: problems, both models, constraints, solving, explanations."""
