"""Chains of two products in one kernel, with what is between them in registers or shared memory."""
