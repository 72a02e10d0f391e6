"""Arm's dot-product and matrix instructions, on an Arm core or emulated on another one."""
