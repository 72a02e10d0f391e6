"""x86 instruction sets: AVX-512 VNNI and AMX."""
