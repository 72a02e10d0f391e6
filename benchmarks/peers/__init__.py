"""Scripts that run other mappers in environments of their own."""
