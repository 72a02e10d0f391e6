"""Other people's kernels of the same layers, run beside ours.

A :class:`~cpembed.runtime.baselines.base.Baseline` prepares a layer's operands in the layouts that
it likes and runs it; :mod:`cpembed.runtime.baselines.comparison` verifies it and times both sides,
interleaved (:mod:`cpembed.runtime.measurement.interleaved`).
:attr:`~cpembed.targets.base.Target.baselines` names what a target can be compared with.
``docs/benchmarks.md`` says how the comparison is kept fair.
"""
