"""Hardware targets: instructions, the memories that feed them, and their TOML files."""
