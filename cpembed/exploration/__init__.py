"""Which hardware for these layers: instruction shapes, and spaces of machines with their fronts."""
